"""Changes and plans to report."""

from __future__ import annotations

import re
from hashlib import sha256

from installer.model import paths
from installer.model.host import DesiredFile, FileState, Kind, Part
from installer.model.names import Mode
from installer.model.plan import (
    Changes,
    Desired,
    DesiredKubelet,
    DesiredUnit,
    FileChange,
    Finding,
    Plan,
    Step,
    StepKind,
    Strategy,
    UnitAction,
    UnitChange,
    Verb,
)

FALLBACK = paths.FALLBACK_CONFIG


STEP = Step(StepKind.WRITE, FALLBACK, Part.PROXY)


HARMFUL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")


def there(content: bytes | None, mode: int = 0o644, uid: int = 0) -> FileState:
    raw = content or b""
    return FileState(Kind.FILE, mode, uid, uid, len(raw), sha256(raw).hexdigest(), content=content)


def file(
    before: FileState, after: DesiredFile | FileState | None, verb: Verb = Verb.CHANGE, path: str = FALLBACK
) -> FileChange:
    return FileChange(path, Part.PROXY, verb, before, after, "its content differs")


def unit(action: UnitAction, part: Part = Part.PROXY, why: str = "changed") -> UnitChange:
    name = paths.PROXY_UNIT if part is Part.PROXY else "kubelet.service"
    return UnitChange(name, part, action, (why,))


def plan(*files: FileChange, units: tuple[UnitChange, ...] = (), findings: tuple[Finding, ...] = ()) -> Plan:
    changes = Changes(files, units)
    steps = (STEP,) if changes else ()
    unit = DesiredUnit("kubelet.service", "", "", "")
    kubelet = DesiredKubelet(unit, Strategy.ENVIRONMENT, "it wins", "KUBELET_EXTRA_ARGS", ())
    return Plan(Mode.INSTALL, Desired(kubelet=kubelet), changes, "kubelet.service", steps, findings)
