"""A plan as a readable diff, and as one JSON document."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TextIO

from installer.model import paths
from installer.model.change import Changes, FileChange, UnitAction, UnitChange, Verb
from installer.model.finding import Finding
from installer.model.plan import Plan, StepKind
from installer.model.resource import DesiredFile, FileState, Kind, Part, PayloadFile
from installer.report.terminal import (
    BOLD,
    CYAN,
    GREEN,
    RED,
    YELLOW,
    cut,
    one_line,
    paint,
    wants_color,
    write_json,
)

_DIFF_LINES = 200  # shown of one file
_DIFF_INPUT = 256 << 10  # bytes; comparing more line by line takes seconds
_VERB_COLORS = {Verb.CREATE: GREEN, Verb.CHANGE: YELLOW, Verb.DELETE: RED, Verb.RESTORE: CYAN}
_SCHEMA = 1
_BESIDES = {
    StepKind.DELETE_STATE: "delete  cri-resmgr's own state:",
    StepKind.CLEAR_HOLD: "delete  the hold on kubelet:",
    StepKind.RESET_CACHE: "clear   the agent's configuration in",
}
"""Effects besides files and units."""


def print_plan(plan: Plan, output: str, stream: TextIO) -> None:
    """Writes the plan to `stream`; `output` is text or json (one document)."""
    if output == "json":
        write_json(plan_json(plan), stream)
    else:
        stream.write(render_plan(plan, wants_color(stream)))


def render_plan(plan: Plan, color: bool = False) -> str:
    """The plan for people: files, units, strategy, findings; the summary is the last line."""
    lines: list[str] = []
    for change in plan.changes.files:
        lines += _file_lines(change, color)
    created = _created(plan.changes)
    for unit in plan.changes.units:
        lines += _unit_lines(unit, created, color)
    lines += [one_line(reset) for reset in plan.resets]
    besides = [step for step in plan.steps if step.kind in _BESIDES]
    lines += [f"{_BESIDES[step.kind]} {one_line(step.target)}" for step in besides]
    if plan.strategy and plan.steps:
        lines.append(f"kubelet's strategy: {plan.strategy}: {one_line(plan.strategy_why)}")
    for finding in plan.warnings:
        lines += finding_lines(finding, paint("warning:", YELLOW, color))
    for finding in plan.refusals:
        lines += finding_lines(finding, paint("refused:", RED, color))
    lines.append(paint(_last_line(plan), BOLD, color))
    return "\n".join(lines) + "\n"


def summarise_plan(plan: Plan) -> str:
    """The plan in one line, also if no file and no unit differs."""
    if plan.changes or not plan.steps:
        return summarise(plan.changes, plan.kubelet_unit)
    if any(step.kind is StepKind.CLEAR_HOLD for step in plan.steps):
        return "only the hold on kubelet is ended; nothing restarts"
    return "only cri-resmgr's own state is deleted; nothing restarts"


def _last_line(plan: Plan) -> str:
    summary = summarise_plan(plan)
    refusals = len(plan.refusals)
    if not refusals:
        return summary
    reasons = f"{refusals} reason" + ("s" if refusals > 1 else "")
    return f"refused ({reasons}); otherwise: {summary}"


def finding_lines(finding: Finding, label: str) -> Iterator[str]:
    yield f"{label} {one_line(finding.message)}"
    if finding.hint:
        yield f"    hint: {one_line(finding.hint)}"


def summarise(changes: Changes, kubelet_unit: str = "kubelet.service") -> str:
    """One line: `4 to create, 1 to change; cri-resource-manager restarts, kubelet does not`."""
    if not changes:
        return "nothing to do"
    counts = [(verb, sum(change.verb is verb for change in changes.files)) for verb in Verb]
    files = ", ".join(f"{count} to {verb}" for verb, count in counts if count) or "no file differs"
    created = _created(changes)
    acting, idle = [], []
    for part, name in ((Part.PROXY, paths.PROXY_UNIT), (Part.KUBELET, kubelet_unit)):
        unit, short = changes.unit(part), name.removesuffix(".service")
        if unit is not None and unit.action:
            acting.append(f"{short} {_third_person(unit, created)}")
        else:
            idle.append(short)
    if not acting:
        return f"{files}; nothing restarts"
    restarts = any(unit.action is UnitAction.RESTART for unit in changes.units)
    does_not = "does not" if restarts else "does not restart"
    return f"{files}; " + ", ".join([*acting, *(f"{short} {does_not}" for short in idle)])


def _created(changes: Changes) -> bool:
    """Whether the proxy's unit is new, so that its restart is a first start."""
    return any(
        change.path == paths.PROXY_UNIT_FILE and change.verb is Verb.CREATE for change in changes.files
    )


def _third_person(unit: UnitChange, created: bool) -> str:
    return _action(unit, created) + "s" if unit.action is not UnitAction.STOP else "stops"


def _action(unit: UnitChange, created: bool) -> str:
    if unit.action is UnitAction.RESTART:
        return "start" if created and unit.part is Part.PROXY else "restart"
    return {UnitAction.NOTHING: "no restart", UnitAction.RELOAD: "reload", UnitAction.STOP: "stop"}[
        unit.action
    ]


def _unit_lines(unit: UnitChange, created: bool, color: bool) -> Iterator[str]:
    actions = [_action(unit, created)]
    actions += ["enable"] * unit.enable + ["disable"] * unit.disable + ["daemon-reload"] * unit.daemon_reload
    yield f"{paint(unit.name, BOLD, color)}: {', '.join(actions)}"
    for why in unit.why:
        yield f"    because {one_line(why)}"
    if unit.action is UnitAction.RELOAD:
        yield "    by a signal; it restarts if it refuses the new force.cfg"


def _file_lines(change: FileChange, color: bool) -> Iterator[str]:
    verb = paint(f"{change.verb:<8}", _VERB_COLORS[change.verb], color)
    yield f"{verb}{one_line(change.path)}: {one_line(change.why)}"
    for line in _attribute_lines(change):
        yield f"    {line}"
    for line in diff_lines(change):
        yield "    " + _paint_diff(line, color)


def _paint_diff(line: str, color: bool) -> str:
    if line.startswith(("+++", "---")):
        return paint(line, BOLD, color)
    return paint(line, {"+": GREEN, "-": RED, "@": CYAN}.get(line[:1], BOLD), color and line[:1] in "+-@")


def _attribute_lines(change: FileChange) -> Iterator[str]:
    """What differs besides the content."""
    before, after = change.before, change.after
    if before.kind not in (Kind.ABSENT, Kind.FILE):
        target = f" to {one_line(before.target)}" if before.target else ""
        yield f"was a {before.kind}{target}" + (
            "; its original is kept" if change.verb is Verb.CHANGE else ""
        )
    if after is None:
        return
    if isinstance(after, FileState) and after.kind is Kind.SYMLINK:
        yield f"becomes a symlink to {one_line(after.target)}"
        return
    uid, gid = (after.uid, after.gid) if isinstance(after, FileState) else (0, 0)
    if before.kind is not Kind.FILE:
        yield f"mode {after.mode:04o}, owner {uid}:{gid}"
        return
    if before.mode != after.mode:
        yield f"mode {before.mode:04o} -> {after.mode:04o}"
    if (before.uid, before.gid) != (uid, gid):
        yield f"owner {before.uid}:{before.gid} -> {uid}:{gid}"


def diff_lines(change: FileChange) -> list[str]:
    """A unified diff of the contents, control characters visible; sizes and digests where the
    content is binary, large or unknown; empty where it stays the same."""
    before, after = change.before, change.after
    digest = _size_and_digest(after)[1]
    if before.kind is Kind.FILE and before.digest == digest:
        return []
    old, new = _text(_content_of_state(before)), _text(_content(after))
    if after is None or old is None or new is None:
        return [f"{_described(before.kind is Kind.FILE, before.size, before.digest)} -> {_after(after)}"]
    return _unified(old, new, change.path, before.kind is Kind.FILE)


def _unified(old: str, new: str, path: str, existed: bool) -> list[str]:
    # Imported late: most runs show no diff.
    from difflib import unified_diff

    # Not splitlines(): only a newline ends a line of a file.
    lines = list(unified_diff(_lines(old), _lines(new), path if existed else "/dev/null", path, lineterm=""))
    shown = [cut(one_line(line)) for line in lines[:_DIFF_LINES]]
    if len(lines) > _DIFF_LINES:
        shown.append(f"... {len(lines) - _DIFF_LINES} more lines")
    return shown


def _lines(text: str) -> list[str]:
    lines = text.split("\n")
    if lines[-1]:
        lines[-1] += " (no newline at the end)"
    else:
        lines.pop()
    return lines


def _content(after: DesiredFile | FileState | None) -> bytes | None:
    if isinstance(after, DesiredFile):
        return after.content if isinstance(after.content, bytes) else None
    return _content_of_state(after) if after is not None else None


def _content_of_state(state: FileState) -> bytes | None:
    return b"" if state.kind is not Kind.FILE else state.content


def _text(content: bytes | None) -> str | None:
    """The content as text, or None where a diff of it would be of no use."""
    if content is None or len(content) > _DIFF_INPUT or b"\0" in content:
        return None
    return content.decode("utf-8", "surrogateescape")


def _size_and_digest(after: DesiredFile | FileState | None) -> tuple[int, str]:
    if after is None:
        return 0, ""
    if isinstance(after, FileState):
        return after.size, after.digest
    size = after.content.size if isinstance(after.content, PayloadFile) else len(after.content)
    return size, after.digest


def _after(after: DesiredFile | FileState | None) -> str:
    size, digest = _size_and_digest(after)
    return _described(after is not None, size, digest)


def _described(exists: bool, size: int, digest: str) -> str:
    return f"{size} bytes, sha256 {digest[:16] or 'unknown'}" if exists else "nothing"


def plan_json(plan: Plan) -> dict[str, object]:
    """The plan for machines; keys are stable:

    schema, mode, converged, summary, kubelet {unit, strategy, why},
    files [{path, part, verb, why, before, after, diff}] with before/after {kind, mode (octal), uid,
    gid, size, digest, target} or null where there is nothing,
    units [{name, part, action, why, daemonReload, enable, disable}],
    steps [{kind, target, part}], resets [a line for each container that gets CPUs or weight back],
    findings [{severity, code, message, hint}].
    """
    return {
        "schema": _SCHEMA,
        "mode": plan.mode.value,
        "converged": not plan.steps,
        "summary": summarise_plan(plan),
        "kubelet": {"unit": plan.kubelet_unit, "strategy": plan.strategy, "why": plan.strategy_why},
        "files": [_file_json(change) for change in plan.changes.files],
        "units": [_unit_json(unit) for unit in plan.changes.units],
        "steps": [
            {"kind": step.kind.value, "target": step.target, "part": step.part.value} for step in plan.steps
        ],
        "resets": list(plan.resets),
        "findings": findings_json(plan.findings),
    }


def findings_json(findings: Iterable[Finding]) -> list[dict[str, str]]:
    return [
        {"severity": one.severity.value, "code": one.code, "message": one.message, "hint": one.hint}
        for one in findings
    ]


def _file_json(change: FileChange) -> dict[str, object]:
    return {
        "path": change.path,
        "part": change.part.value,
        "verb": change.verb.value,
        "why": change.why,
        "before": _state_json(change.before),
        "after": _state_json(change.after),
        "diff": diff_lines(change),
    }


def _state_json(state: DesiredFile | FileState | None) -> dict[str, object] | None:
    if state is None or (isinstance(state, FileState) and state.kind is Kind.ABSENT):
        return None
    size, digest = _size_and_digest(state)
    kind, uid, gid, target = Kind.FILE, 0, 0, ""
    if isinstance(state, FileState):
        kind, uid, gid, target = state.kind, state.uid, state.gid, state.target
    return {
        "kind": kind.value,
        "mode": f"{state.mode:04o}",
        "uid": uid,
        "gid": gid,
        "size": size,
        "digest": digest,
        "target": target,
    }


def _unit_json(unit: UnitChange) -> dict[str, object]:
    return {
        "name": unit.name,
        "part": unit.part.value,
        "action": unit.action.name.lower(),
        "why": list(unit.why),
        "daemonReload": unit.daemon_reload,
        "enable": unit.enable,
        "disable": unit.disable,
    }
