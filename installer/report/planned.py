"""Shows a plan as its steps in order, for people, and as one JSON document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TextIO

from installer.errors import InstallerError, RolledBackError
from installer.model import paths
from installer.model.host import DesiredFile, FileState, Kind, Part
from installer.model.jsontext import to_camel
from installer.model.names import Mode
from installer.model.plan import (
    AS_GOOD,
    Assessment,
    Changes,
    FileChange,
    Finding,
    Plan,
    Severity,
    StepKind,
    UnitAction,
    UnitChange,
    Verb,
    describe_generation,
)
from installer.report.diffs import diff_lines, file_diff, file_line
from installer.report.terminal import (
    BOLD,
    RED,
    YELLOW,
    one_line,
    paint,
    pick,
    read_on,
    wants_color,
    write_json,
)

_FILE_STEPS = frozenset({StepKind.WRITE, StepKind.DELETE, StepKind.RESTORE})
_ACTING = {
    UnitAction.NOTHING: (
        StepKind.DISABLE,
        StepKind.DAEMON_RELOAD,
        StepKind.AWAIT_START,
    ),
    UnitAction.RELOAD: (StepKind.SIGNAL,),
    UnitAction.MOVE: (StepKind.MOVE,),
    UnitAction.RESTART: (StepKind.RESTART,),
    UnitAction.STOP: (StepKind.STOP,),
}
_VERBS = {UnitAction.RELOAD: "reload", UnitAction.MOVE: "move", UnitAction.STOP: "stop"}
_SCHEMA = 1
_WORDS = f"""
proxy: cri-resmgr, which runs in {paths.PROXY_UNIT}
relay: the socket where the proxy listens for kubelet
base endpoint: the socket that kubelet uses without the proxy, usually the container runtime's
"""


def print_plan(
    seen: Assessment,
    output: str,
    stream: TextIO,
    *,
    diffs: bool = False,
    error: InstallerError | None = None,
    verbose: bool = False,
) -> None:
    """Write the plan to `stream`; `output` is text or json (one document). `error`: how a run of this plan
    would end; only the JSON document has it."""
    if output == "json":
        of_host = pick(seen, "installed installed_version as_installed payload_version")
        write_json(plan_json(seen.plan, error) | of_host, stream)
        return
    notes = tuple(_generation_lines(seen))
    color = wants_color(stream)
    stream.write(
        render_plan(seen.plan, color, diffs=diffs, error=error, notes=notes, verbose=verbose)
        + _WORDS * (seen.plan.mode is Mode.INSTALL and bool(seen.plan.steps) and not seen.installed)
    )


def _generation_lines(seen: Assessment) -> Iterator[str]:
    """What is installed, and what the plan would install instead."""
    wanted = seen.plan.desired.generation
    if seen.as_installed:
        yield AS_GOOD
    if seen.installed:
        yield f"installed: {seen.describe_installed}"
    if wanted and wanted != seen.installed:
        yield f"to install: {describe_generation(wanted, seen.payload_version)}"


def render_plan(
    plan: Plan,
    color: bool = False,
    *,
    diffs: bool = False,
    error: InstallerError | None = None,
    notes: Sequence[str] = (),
    verbose: bool = False,
) -> str:
    """Return the plan for people: the summary and `notes`, refusals and warnings, every step with its reason;
    with `diffs` also what changes in each file, `verbose` also how our flag reaches kubelet."""
    lines = [paint(_first_line(plan, error), BOLD, color), *map(one_line, notes)]
    for finding in plan.refusals:
        lines += finding_lines(finding, paint("refused:", RED, color))
    for finding in plan.warnings:
        lines += finding_lines(finding, paint("warning:", YELLOW, color))
    lines += _step_lines(plan, color)
    if verbose and plan.strategy and plan.steps:
        lines.append(f"kubelet's strategy: {plan.strategy}: {one_line(plan.strategy_why)}")
    for change in plan.changes.files if diffs else ():
        lines += file_diff(change, color)
    return "\n".join(lines) + "\n"


def _first_line(plan: Plan, error: InstallerError | None) -> str:
    summary = summarise_plan(plan)
    if refusals := len(plan.refusals):
        reasons = f"{refusals} reason" + ("s" if refusals > 1 else "")
        return f"refused ({reasons}); otherwise: {summary}"
    if is_remembered(error):
        return f"failed here before, not retried; the last good generation: {summary}"
    return f"not possible now (see the error); otherwise: {summary}" if error else summary


def _step_lines(plan: Plan, color: bool) -> Iterator[str]:
    """Yield the steps in order: a file with its reason where it changes, a unit with its reason where it
    acts."""
    files = {change.path: change for change in plan.changes.files}
    units = {unit.part: unit for unit in plan.changes.units}
    for number, step in enumerate(plan.steps, 1):
        change = files.pop(step.target, None) if step.kind in _FILE_STEPS else None
        yield f"{number:>4}. {file_line(change, color) if change else one_line(step.describe)}"
        if step.kind in (StepKind.RESET_PINNING, StepKind.ADOPT):
            yield from (f"          {one_line(reset)}" for reset in plan.resets)
        unit = units.get(step.part)
        if unit is None or step.kind not in _ACTING[unit.action]:  # another step carries it out
            continue
        for why in units.pop(step.part).why:
            yield f"          because {one_line(why)}"


def summarise_plan(plan: Plan, *, done: bool = False) -> str:
    """Summarise the plan in one line, also if no file and no unit differs. `done`: it has been carried
    out."""
    if plan.changes or not plan.steps:
        return summarise(plan.changes, plan.kubelet_unit, done=done)
    if any(step.kind is StepKind.CLEAR_HOLD for step in plan.steps):
        return "only the hold on kubelet ends; nothing restarts"
    if any(step.kind is StepKind.CHECK_PODS for step in plan.steps):
        return "only the pods are compared; the proxy restarts if it does not know one"
    return "only cri-resmgr's own state is deleted; nothing restarts"


def finding_lines(finding: Finding, label: str) -> Iterator[str]:
    yield f"{label} {one_line(finding.message)} [{finding.code}]"
    if finding.hint:
        yield f"    hint: {one_line(finding.hint)}"
    if finding.severity is Severity.REFUSE:
        yield f"    more: {read_on(finding.code)}"


def summarise(changes: Changes, kubelet_unit: str = "kubelet.service", *, done: bool = False) -> str:
    """Return one line: `4 to create, 1 to change; cri-resource-manager restarts, kubelet does not`, or what
    was `done`: `4 created, 1 changed; cri-resource-manager restarted, kubelet did not`."""
    if not changes:
        return "nothing to do"
    counts = [(verb, sum(change.verb is verb for change in changes.files)) for verb in Verb]
    files = [f"{count} {_past(verb) if done else f'to {verb}'}" for verb, count in counts if count]
    created = _created(changes)
    acting, idle = [], []
    for part, name in ((Part.PROXY, paths.PROXY_UNIT), (Part.KUBELET, kubelet_unit)):
        unit, short = changes.unit(part), name.removesuffix(".service")
        if unit is not None and (unit.action or unit.awaited):
            acting.append(f"{short} {_action(unit, created, done=done)}")
        else:
            idle.append(short)
    units = f"nothing {'restarted' if done else 'restarts'}"
    if acting:
        does_not = "did not" if done else "does not"
        if not any(unit.action is UnitAction.RESTART for unit in changes.units):
            does_not += " restart"
        units = ", ".join([*acting, *(f"{short} {does_not}" for short in idle)])
    return f"{', '.join(files) or ('no file differed' if done else 'no file differs')}; {units}"


def _past(verb: str) -> str:
    return f"{verb.removesuffix('e')}ed"


def _created(changes: Changes) -> bool:
    """Whether the proxy's unit is new, so that its restart is a first start."""
    return any(
        change.path == paths.PROXY_UNIT_FILE and change.verb is Verb.CREATE for change in changes.files
    )


def _action(unit: UnitChange, created: bool, *, done: bool) -> str:
    if unit.action is UnitAction.RESTART:
        verb = "start" if created and unit.part is Part.PROXY else "restart"
    elif unit.action is UnitAction.NOTHING and unit.part is Part.KUBELET:
        return "has become healthy" if done else "has to become healthy"
    elif unit.action is UnitAction.NOTHING:
        return "was still starting" if done else "is still starting"
    else:
        verb = _VERBS[unit.action]
    return {"stop": "stopped", "move": "moved"}.get(verb, f"{verb}ed") if done else f"{verb}s"


def plan_json(plan: Plan, error: InstallerError | None = None) -> dict[str, object]:
    """Return the plan for machines; the keys are stable. `before` and `after` of a file are null where
    there is nothing, `mode` is octal. `resets`: a line for each container that gets CPUs or weight back.
    `error`: how a run would end instead, or null."""
    return {
        "schema": _SCHEMA,
        "mode": plan.mode.value,
        "converged": not plan.steps,
        "summary": summarise_plan(plan),
        "kubelet": {"unit": plan.kubelet_unit, "strategy": plan.strategy, "why": plan.strategy_why},
        "files": [_file_json(change) for change in plan.changes.files],
        "units": [_unit_json(unit) for unit in plan.changes.units],
        "steps": [pick(step, "kind target part") for step in plan.steps],
        "resets": list(plan.resets),
        "findings": to_camel(plan.findings),
        "error": error
        and {**pick(error, "exit_code message hint faults"), "remembered": is_remembered(error)},
    }


def is_remembered(error: InstallerError | None) -> bool:
    """Whether a run ends with it because this generation failed here before."""
    return isinstance(error, RolledBackError) and error.remembered


def _file_json(change: FileChange) -> dict[str, object]:
    before, after = _state_json(change.before), _state_json(change.after)
    picked = pick(change, "path part verb why")
    return {**picked, "before": before, "after": after, "diff": diff_lines(change)}


def _state_json(state: DesiredFile | FileState | None) -> dict[str, object] | None:
    if state is None or (isinstance(state, FileState) and state.kind is Kind.ABSENT):
        return None
    wanted = {"kind": "file", "uid": 0, "gid": 0, "target": ""}
    other = pick(state, "kind uid gid target") if isinstance(state, FileState) else wanted
    return {**other, "mode": f"{state.mode:04o}", "size": state.size, "digest": state.digest}


def _unit_json(unit: UnitChange) -> dict[str, object]:
    picked = pick(unit, "name part why daemon_reload disable")
    return {**picked, "enable": False, "action": unit.action.name.lower()}
