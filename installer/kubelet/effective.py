"""Whether systemd has loaded our lines in kubelet's unit, and whether they take effect."""

from __future__ import annotations

from installer.model import paths
from installer.model.resource import UnitDetail, UnitState
from installer.model.state import DesiredKubelet, Strategy


def effective(detail: UnitDetail, unit: UnitState, desired: DesiredKubelet) -> str:
    """What is wrong, in words, or an empty string. Judges by what systemd has loaded, and so sees an
    interrupted run and drop-ins of others."""
    if unit.load_state != "loaded":
        return f"{unit.name} is {unit.load_state}"
    if not desired.unit.unit_digest and not unit.loaded_digest:
        return ""  # an earlier installation comes back: nothing of it is ours
    if unit.loaded_digest != desired.unit.unit_digest:
        return f"systemd has not loaded the current {desired.unit.unit_file}: daemon-reload required"
    wrong = _guard(detail) or _environment_files(detail, desired)
    if wrong:
        return wrong
    if len(detail.exec_start) != 1:
        return f"there are {len(detail.exec_start)} ExecStart= lines, not one"
    last = detail.exec_start[0].argv[-1:]
    if last != (f"${desired.variable}",) and not desired.passed_on:
        return f"the command line ends with {' '.join(last)!r}, not with ${desired.variable}"
    return ""


def _guard(detail: UnitDetail) -> str:
    verbs = [line.argv[-1] for line in detail.exec_start_pre if line.path == paths.GUARD and line.argv]
    if verbs[-2:] != ["reset", "compose"]:
        return "the guard is not among the ExecStartPre= lines"
    return ""


def _environment_files(detail: UnitDetail, desired: DesiredKubelet) -> str:
    files = tuple(path for path, _optional in detail.environment_files)
    ours = desired.environment_files
    if tuple(path for path in files if path in ours) != ours:
        return "our EnvironmentFile= lines are not in effect"
    # The other strategy's variable is ours alone: later files do not matter.
    if desired.strategy is Strategy.ENVIRONMENT and files[-len(ours) :] != ours:
        return f"{files[-1]} comes later than ours and can set ${desired.variable}"
    return ""
