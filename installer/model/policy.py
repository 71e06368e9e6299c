"""A policy of cri-resmgr, and whose configuration asks for it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class PolicySource(StrEnum):
    FORCE = "force.cfg"
    AGENT = "cri-resmgr-agent"
    FALLBACK = "fallback.cfg"
    BUILT_IN = "built-in defaults"


@dataclass(frozen=True, slots=True)
class PolicyInForce:
    """`name` as in policy.Active; `source` is whose configuration says so. `pending` is the policy that the
    next start would activate where that is another one, else empty."""

    name: str
    source: PolicySource
    pending: str = ""

    @property
    def describe(self) -> str:
        """For people: `balloons, from fallback.cfg`."""
        pending = f" (the next start activates {self.pending})" if self.pending else ""
        return f"{self.name}, from {self.source}{pending}"
