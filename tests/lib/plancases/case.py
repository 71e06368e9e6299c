"""One file of tests/cases/plans: read strictly, asked as settings and configs are, and compared as YAML.

The format is described in tests/cases/README.md. A key that is not known is an error that names the
file: a misspelt fact would make another case of it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml

from installer.inputs.configs import load_configs
from installer.inputs.load import Consent, Inputs, Request
from installer.inputs.payload import Payload
from installer.inputs.settings import parse_settings
from installer.model import paths
from installer.model.host import DesiredFile, Part
from installer.model.names import Mode
from installer.model.plan import Assessment, Step, UnitChange
from tests.lib import yamltext

CASES = Path(__file__).parents[2] / "cases" / "plans"

ASKED = {"settings", "configs", "payload"}
_RUN = {"mode", "accept-pending", "without-record", "takeOver"}
_HOST = {
    "kubelet",
    "host",
    "had",
    "had-leftovers",
    "earlier",
    "from",
    "installed",
    "meanwhile",
    "until",
    "but",
}
_KEYS = {"shows", "wrong", "wrong-cut-off", "then-asked", "expected", *_HOST, *ASKED, *_RUN}


class CaseError(Exception):
    """A case that cannot be read, with the file."""


@dataclass(frozen=True)
class Case:
    """One file, as it was read; `text` is all of it before `expected:`."""

    path: Path
    text: str
    data: Mapping[str, Any]

    @property
    def mode(self) -> Mode:
        return Mode(self.data.get("mode", "install"))

    def part(self, data: Mapping[str, Any], name: str, known: Collection[str]) -> dict[str, Any]:
        """One mapping of the case. Raises CaseError for a key that is not `known`."""
        found = data.get(name) or {}
        if not isinstance(found, dict):
            raise CaseError(f"{self.path}: {name} must be a mapping")
        return self.check(found, name, known)

    def check(self, found: dict[str, Any], name: str, known: Collection[str]) -> dict[str, Any]:
        unknown = sorted(map(str, found.keys() - set(known)))
        if unknown:
            raise CaseError(
                f"{self.path}: unknown in {name}: {', '.join(unknown)}; known: {', '.join(sorted(known))}"
            )
        return found


def read_case(path: Path) -> Case:
    """Raises CaseError."""
    text = path.read_text()
    data = yamltext.load(text)
    if not isinstance(data, dict) or not data.get("shows"):
        raise CaseError(f"{path}: a case is a mapping that begins with what it shows")
    case = Case(path, text.partition("\nexpected:")[0].rstrip("\n") + "\n", data)
    case.check(data, "the case", _KEYS)
    return case


def inputs_of(case: Case, asked: Mapping[str, Any], mode: Mode, scratch: Path) -> Inputs:
    """What is asked, read and checked as the product reads it."""
    scratch.mkdir(parents=True, exist_ok=True)
    for name, text in (asked.get("configs") or {}).items():
        (scratch / name).write_text(text)
    payload = case.part(asked, "payload", {"version", "machine", "mib"})
    version = payload.get("version", "v0.9.2")
    digest = sha256(version.encode()).hexdigest()
    size = payload.get("mib", 38) << 20
    binary = DesiredFile(paths.BINARY, 0o755, Part.PROXY, digest, size, content=Path("/payload"))
    settings = asked.get("settings")
    case_settings = parse_settings(yaml.safe_dump(settings).encode() if settings else b"", str(case.path))
    request = Request(
        mode,
        case_settings,
        Path("/payload"),
        scratch,
        consent=Consent(
            accept_pending=bool(case.data.get("accept-pending")),
            without_record=bool(case.data.get("without-record")),
            take_over=bool(case.data.get("takeOver")),
        ),
    )
    configs = load_configs(None if mode is Mode.REMOVE else scratch)
    return Inputs(
        request, Payload(Path("/payload"), binary, version, payload.get("machine", "x86_64")), configs
    )


def line_of(step: Step) -> str:
    return f"{step.kind.value} {step.target}".rstrip()


def describe(found: Assessment) -> dict[str, Any]:
    """The assessment as `expected` has it. Of a refused plan nothing is carried out, so only why counts."""
    plan = found.plan
    refused = bool(plan.refusals)
    codes = [f"{finding.severity.value} {finding.code}" for finding in plan.findings]
    said: dict[str, Any] = {
        "converged": not plan.steps and not refused,
        "refused": refused,
        "findings": codes,
        "remembered": bool(found.remembered_failure),
    }
    if not refused:
        said |= {
            "strategy": plan.strategy if plan.steps else "",
            "files": [
                f"{change.verb.value} {change.path} ({name_of(change.why)})" for change in plan.changes.files
            ],
            "units": [_unit_line(change) for change in plan.changes.units],
            "steps": [line_of(step) for step in plan.steps],
        }
    return {key: value for key, value in said.items() if value}


def _unit_line(change: UnitChange) -> str:
    did = {"await": change.awaited, "disable": change.disable}
    did |= {"daemon-reload": change.daemon_reload}
    words = [word for word, needed in did.items() if needed]
    action = [change.action.name.lower()] if change.action else []
    return f"{' + '.join((*words, *action))} {change.name} ({'; '.join(map(name_of, change.why))})"


@cache
def _reasons() -> Mapping[str, re.Pattern[str]]:
    texts = yamltext.load((CASES.parent / "reasons.yaml").read_text())
    return {name: re.compile("(.*)".join(map(re.escape, text.split("{}")))) for name, text in texts.items()}


def name_of(why: str) -> str:
    """The name of a reason, and what is filled in; the reason itself if it is not listed."""
    found = ((name, pattern.fullmatch(why)) for name, pattern in _reasons().items())
    return next((" ".join((name, *match.groups())) for name, match in found if match), why)


def as_yaml(expected: Mapping[str, Any]) -> str:
    """How `expected` is written."""
    return yaml.safe_dump({"expected": dict(expected)}, sort_keys=False, width=1000, allow_unicode=True)
