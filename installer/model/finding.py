"""What preflight found: refusals and warnings, each with what would help."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    REFUSE = "refuse"
    WARN = "warn"


@dataclass(frozen=True, slots=True)
class Finding:
    """`code` is stable and for machines (`kubelet-masked`); the rest is for people."""

    severity: Severity
    code: str
    message: str
    hint: str = ""


def refusal(code: str, message: str, hint: str = "") -> Finding:
    """A reason not to serve this host."""
    return Finding(Severity.REFUSE, code, message, hint)


def warning(code: str, message: str, hint: str = "") -> Finding:
    """What an operator should know, and what does not stop a run."""
    return Finding(Severity.WARN, code, message, hint)
