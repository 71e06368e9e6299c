"""Shows the state of a rollout: text for people, JSON for machines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TextIO

from installer.model.event import name_some
from installer.model.jsontext import to_camel
from installer.model.names import Mode
from installer.model.overview import Generation, NodeGroup, Progress, Rollout, WindowView
from installer.report.terminal import BOLD, RED, YELLOW, one_line, paint, pick, wants_color, write_json

_SCHEMA = 1
_NAMED = 5  # failures


def print_rollouts(
    rollouts: Sequence[Rollout], output: str, stream: TextIO, progress: Progress | None = None
) -> int:
    """Write them to `stream`, with the `progress` of all; return the exit code: 0, or 3 where planned work is
    stopped, or stalled until a person has fixed a node, or unknown."""
    if output == "json":
        said = {"rollouts": [rollout_json(each) for each in rollouts], "progress": to_camel(progress)}
        write_json({"schema": _SCHEMA, **said}, stream)
    else:
        color = wants_color(stream)
        lines = [line for each in rollouts for line in _all_lines(each, color)]
        lines += [describe_progress(progress)] if progress else []
        stream.write("".join(f"{line}\n" for line in lines))
    return 3 if any(each.is_stopped or each.stuck or each.fault for each in rollouts) else 0


def _all_lines(rollout: Rollout, color: bool) -> Iterator[str]:
    yield from rollout_lines(rollout, color)
    if rollout.stuck:
        yield paint("  stalled: no node continues until one of these is fixed", RED, color)
    for group in rollout.awaited:
        names = name_some([one_line(name) for name in group.nodes])
        yield f"  not done: {len(group.nodes)} {group.health}{describe_group(group)} ({names})"


def describe_group(group: NodeGroup) -> str:
    """Return what follows the health of these nodes: their phase if it says more, and the reason."""
    phase = "" if group.phase in ("", group.health) else f", {one_line(group.phase)}"
    return phase + (f": {one_line(group.reason)}" if group.reason else "")


def describe_progress(progress: Progress) -> str:
    """Describe the queue, and an estimate of the rest."""
    counts = (
        (progress.working, "at work"),
        (progress.waiting, "waiting for a permit"),
        (progress.outdated, "with a pod still to be replaced"),
    )
    words = "nodes " + ", ".join(f"{what}: {count}" for count, what in counts if count)
    if progress.per_hour is None or progress.seconds_left is None:
        return words
    rest = describe_duration(progress.seconds_left)
    return f"{words}; {progress.per_hour} per hour, about {rest} left"


def describe_duration(seconds: float) -> str:
    """Return `less than a minute`, `12 min`, `3 h 20 min`, `4 days`."""
    minutes = round(seconds / 60)
    if minutes < 1:
        return "less than a minute"
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 72 else f"{round(hours / 24)} days"


def rollout_json(rollout: Rollout) -> Mapping[str, object]:
    return {
        **to_camel(rollout),
        "stopped": rollout.is_stopped,
        "paused": rollout.paused is not None,
        "why": rollout.paused or "",
        "permits": [{"node": node, "since": since} for node, since in rollout.permits],
        "awaited": [group_json(each) for each in rollout.awaited],
    }


def group_json(group: NodeGroup) -> Mapping[str, object]:
    return {"state": group.health.value, **pick(group, "phase reason nodes")}


def rollout_lines(rollout: Rollout, color: bool = False) -> Iterator[str]:
    """Yield the lines for people."""
    ready = rollout.nodes - rollout.waiting
    removal = ", a removal" if rollout.mode is Mode.REMOVE else ""
    head = f"{one_line(rollout.daemon_set)}{removal}: {ready} of {rollout.nodes} pods are available"
    yield paint(head if not rollout.fault else one_line(rollout.daemon_set), BOLD, color)
    if rollout.fault:
        yield paint(f"  its Leases cannot be read: {one_line(rollout.fault)}", RED, color)
        return
    if rollout.paused is not None:
        line = f"  paused: {one_line(rollout.paused) or 'no reason given'} (`rollout resume` ends it)"
        yield paint(line, YELLOW, color)
    if rollout.window is not None:
        yield f"  window: {_describe_window(rollout.window)}"
    held = name_some([f"{one_line(node)} since {since}" for node, since in rollout.permits])
    yield f"  permits: {len(rollout.permits)} of {rollout.limit} in use{f': {held}' if held else ''}"
    for why in dict.fromkeys(rollout.void.values()):
        names = name_some(
            [one_line(name) for name, other_reason in rollout.void.items() if other_reason == why]
        )
        yield paint(f"  {names}: {why} (`rollout retry` deletes it)", RED, color)
    for generation in rollout.generations:
        if generation.current:
            yield from _generation_lines(generation, color)
    if rollout.unreported:
        yield "  wanted: not known yet, because no pod of the present template has reported"
    if earlier := [
        one_line(generation.generation[:12]) for generation in rollout.generations if not generation.current
    ]:
        yield f"  earlier generations: {name_some(earlier)}"
    for name in rollout.unreadable:
        yield paint(f"  Lease {one_line(name)} cannot be parsed: `rollout retry` deletes it", RED, color)


def _describe_window(window: WindowView) -> str:
    if window.fault:
        return f"closed, because {one_line(window.fault)}"
    if window.open:
        return f"open until {window.until}" if window.until else "always open"
    return f"closed; it opens at {window.until}, and no generation begins on another node before"


def _generation_lines(generation: Generation, color: bool) -> Iterator[str]:
    canaries = f"{len(generation.succeeded)} of {len(generation.canaries)} canaries have it"
    passed = (
        f", passed {generation.passed}, watched until {generation.soaks_until}" if generation.passed else ""
    )
    missing = f", {generation.missing} labelled nodes have not started it yet" if generation.missing else ""
    counts = f"; nodes that have it: {generation.has}, waiting for a permit: {generation.awaits}"
    yield f"  wanted: generation {one_line(generation.generation[:12])}" + counts * bool(
        generation.has or generation.awaits
    )
    if generation.begun:
        yield f"    started {generation.begun}: {canaries}{missing}{passed}"
    elif not generation.has:
        yield "    no node has started it"
    if generation.stopped:
        yield paint(f"    {one_line(generation.stopped)} (`rollout retry` starts it again)", RED, color)
    failed = [f"{one_line(node)}: {one_line(why)}" for node, why in generation.failures.items()]
    yield from (f"    failed on {line}" for line in failed[:_NAMED])
    if len(failed) > _NAMED:
        yield f"    and on {len(failed) - _NAMED} more nodes"
