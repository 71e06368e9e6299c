"""The state of a rollout: text for people, JSON for machines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TextIO

from installer.model.overview import GenerationView, RolloutView
from installer.report.terminal import BOLD, RED, YELLOW, one_line, paint, wants_color, write_json

_SCHEMA = 1
_NAMED = 5


def print_rollouts(seen: Sequence[RolloutView], output: str, stream: TextIO) -> int:
    """Writes them to `stream`; returns the exit code: 0, or 3 where planned work is stopped."""
    if output == "json":
        write_json({"schema": _SCHEMA, "rollouts": [rollout_json(each) for each in seen]}, stream)
    else:
        color = wants_color(stream)
        stream.write("".join(f"{line}\n" for each in seen for line in rollout_lines(each, color)))
    return 3 if any(each.is_stopped for each in seen) else 0


def rollout_json(seen: RolloutView) -> Mapping[str, object]:
    generations = [
        {
            "generation": each.generation,
            "begun": each.begun,
            "canaries": list(each.canaries),
            "succeeded": list(each.succeeded),
            "failures": dict(each.failures),
            "passed": each.passed,
            "soaksUntil": each.soaks_until,
            "stopped": each.stopped,
            "missing": each.missing,
        }
        for each in seen.generations
    ]
    return {
        "daemonSet": seen.daemon_set,
        "nodes": seen.nodes,
        "waiting": seen.waiting,
        "outdated": seen.outdated,
        "paused": seen.frozen is not None,
        "why": seen.frozen or "",
        "permits": [{"node": node, "since": since} for node, since in seen.permits],
        "limit": seen.limit,
        "generations": generations,
        "unreadable": list(seen.unreadable),
    }


def rollout_lines(seen: RolloutView, color: bool = False) -> Iterator[str]:
    """For people."""
    ready = seen.nodes - seen.waiting
    yield paint(f"{one_line(seen.daemon_set)}: {ready} of {seen.nodes} pods are available", BOLD, color)
    if seen.frozen is not None:
        what = f"  paused: {one_line(seen.frozen) or 'no reason given'} (`rollout resume` ends it)"
        yield paint(what, YELLOW, color)
    held = _shorten([f"{one_line(node)} since {since}" for node, since in seen.permits])
    yield f"  permits: {len(seen.permits)} of {seen.limit} in use{f': {held}' if held else ''}"
    for each in seen.generations:
        yield from _generation_lines(each, color)
    for name in seen.unreadable:
        yield paint(f"  Lease {one_line(name)} is not understood: `rollout retry` deletes it", RED, color)


def _generation_lines(seen: GenerationView, color: bool) -> Iterator[str]:
    canaries = f"{len(seen.succeeded)} of {len(seen.canaries)} canaries have it"
    through = f", through since {seen.passed}, watched until {seen.soaks_until}" if seen.passed else ""
    missing = f", {seen.missing} nodes with their label have not begun yet" if seen.missing else ""
    yield f"  generation {one_line(seen.generation[:12])}, begun {seen.begun}: {canaries}{missing}{through}"
    if seen.stopped:
        yield paint(f"    stopped: {one_line(seen.stopped)} (`rollout retry` begins it again)", RED, color)
    failed = [f"{one_line(node)}: {one_line(why)}" for node, why in seen.failures.items()]
    yield from (f"    failed on {line}" for line in failed[:_NAMED])
    if len(failed) > _NAMED:
        yield f"    and on {len(failed) - _NAMED} more nodes"


def _shorten(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
