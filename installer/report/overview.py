"""Shows the state of a whole fleet: text for people, JSON for machines, one page of HTML for a browser."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TextIO

from installer.model.jsontext import to_camel
from installer.model.overview import (
    NEED_A_PERSON,
    NodeGroup,
    NodeHealth,
    NodeView,
    Overview,
    group_nodes,
)
from installer.rendering import render, runbooks
from installer.report.advice import advise
from installer.report.explain import find_entries
from installer.report.rollout import (
    describe_group,
    describe_progress,
    group_json,
    rollout_json,
    rollout_lines,
)
from installer.report.terminal import (
    BOLD,
    GREEN,
    RED,
    YELLOW,
    one_line,
    paint,
    pick,
    read_on,
    wants_color,
    write_json,
)

_SCHEMA = 1
_NAMED = 5  # nodes of a group
_COLORS = {NodeHealth.WELL: GREEN, NodeHealth.TROUBLE: RED, NodeHealth.SILENT: RED, NodeHealth.DIRTY: RED}
_COLUMNS = ["NODE", "STATE", "PHASE", "GENERATION", "WANTED", "POLICY", "CHANGED", "HOLD", "PAUSE", "REASON"]


def print_overview(overview: Overview, output: str, stream: TextIO, every_node: bool = False) -> int:
    """Write it to `stream`; return the exit code: 0, or 3 where a node needs a person, is at work or will
    be."""
    if output == "json":
        write_json(overview_json(overview), stream)
    elif output == "html":
        stream.write(render_page(overview))
    else:
        stream.write(render_overview(overview, wants_color(stream), every_node))
    return 0 if overview.well else 3


def render_overview(overview: Overview, color: bool = False, every_node: bool = False) -> str:
    """Return the text for people: first whether all is well, then what is wrong and what to do, the worst
    first; with `every_node` also a line for each node."""
    lines = list(_head(overview, color))
    for group in group_nodes(overview.nodes):
        what = paint(f"{group.health}", _COLORS.get(group.health, YELLOW), color)
        lines.append(f"{len(group.nodes):>7}  {what}{describe_group(group)}")
        if group.health is not NodeHealth.WELL:
            more = len(group.nodes) - _NAMED
            named = ", ".join(one_line(name) for name in group.nodes[:_NAMED])
            lines.append(f"{'':>9}{named}" + (f" and {more} more (--nodes names all)" if more > 0 else ""))
        if group.health in NEED_A_PERSON:
            advice = advise(group.health, group.phase)
            entry = _entry_of(advice.runbook)
            lines.append(f"{'':>9}-> {advice.text} ({read_on(entry) if entry else advice.runbook})")
    if every_node:
        lines += ["", *_table(overview.nodes, color)]
    return "\n".join(lines) + "\n"


def summarise(overview: Overview) -> str:
    """Say whether the fleet is well, in one line."""
    counts = {health: count for health, count in overview.counts.items() if health is not NodeHealth.WELL}
    said = ", ".join(f"{count} {health}" for health, count in counts.items())
    rest = f"{overview.counts.get(NodeHealth.WELL, 0)} of {len(overview.nodes)} nodes are well"
    if not overview.installations and overview.unproven:
        return f"UNKNOWN: {overview.unproven}; if one is yours, give its --namespace"
    if not overview.installations and not overview.nodes:
        return "not installed: no DaemonSet of cri-resmgr-installer was found, and no node reports it"
    if any(each.is_stopped for each in overview.rollouts):
        return f"STOPPED: planned work waits for an operator; {said + '; ' if said else ''}{rest}"
    if set(counts) & set(NEED_A_PERSON):
        return f"NOT WELL: {said}; {rest}"
    if any(each.fault for each in overview.rollouts):
        return f"UNKNOWN: the Leases of a rollout cannot be read; {said + '; ' if said else ''}{rest}"
    if NodeHealth.WORKING in counts or overview.progress:
        return f"AT WORK: {said + '; ' if said else ''}{rest}"
    return f"WELL: {rest}" + (f", {said}" if said else "")


def _head(overview: Overview, color: bool) -> Iterator[str]:
    words = summarise(overview)
    tone = {"WELL": GREEN, "AT WORK": YELLOW}.get(words.partition(":")[0], RED)
    yield paint(words, tone, color)
    if overview.installations and overview.unproven:
        yield one_line(f"{overview.unproven}; if one is yours, `report` with its --namespace shows its nodes")
    for installed in overview.installations:
        line = f"{installed.namespace}/{installed.name}, mode {installed.mode}, image {installed.image}"
        yield paint(one_line(line), BOLD, color)
    if not overview.installations and overview.nodes and not overview.unproven:
        yield "no DaemonSet of cri-resmgr-installer was found"
    for rollout in overview.rollouts:
        if rollout.is_stopped or rollout.permits or rollout.fault or overview.progress:
            yield from rollout_lines(rollout, color)
    if overview.progress:
        yield f"  {describe_progress(overview.progress)}"
    others = f"; {overview.others} other nodes are not served" if overview.others else ""
    yield f"seen at {overview.time}{others}"


def _table(nodes: tuple[NodeView, ...], color: bool) -> Iterator[str]:
    rows = [[one_line(text) for text in _cells(node)] for node in nodes]
    widths = [max(map(len, column)) for column in zip(_COLUMNS, *rows, strict=True)]
    yield paint(_row(_COLUMNS, widths), BOLD, color)
    yield from (_row(row, widths) for row in rows)


def _row(cells: list[str], widths: list[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def _cells(node: NodeView) -> list[str]:
    pause = "yes" if node.paused else ""
    generation = node.generation[:12]
    words = [node.name, node.health.value, node.phase, generation, node.wanted[:12], node.policy]
    return [*words, node.changed, node.hold, pause, node.reason]


def overview_json(overview: Overview) -> Mapping[str, object]:
    return {
        "schema": _SCHEMA,
        "time": overview.time,
        "installations": [
            {**pick(each, "namespace mode image"), "daemonSet": each.name, "name": each.instance}
            for each in overview.installations
        ],
        "well": overview.well,
        "summary": summarise(overview),
        "counts": {health.value: count for health, count in overview.counts.items()},
        "others": overview.others,
        "unproven": overview.unproven,
        "rollouts": [rollout_json(each) for each in overview.rollouts],
        "progress": overview.progress
        and {"summary": describe_progress(overview.progress), **to_camel(overview.progress)},
        "groups": [_group_json(group) for group in group_nodes(overview.nodes)],
        "nodes": [_node_json(node) for node in overview.nodes],
    }


def _group_json(group: NodeGroup) -> Mapping[str, object]:
    advice = advise(group.health, group.phase)
    return {**group_json(group), "advice": advice.text, "runbook": advice.runbook}


def _node_json(node: NodeView) -> Mapping[str, object]:
    picked = pick(node, "name phase reason generation wanted policy version changed hold paused")
    return {**picked, "state": node.health.value, "podReady": node.ready}


def _entry_of(runbook: str) -> str:
    """Return the name by which `explain` has a heading of the runbooks."""
    page, _, heading = runbook.partition("#")
    return heading.partition("-exit-")[0] if page == "docs/runbooks.md" else ""


def render_page(overview: Overview) -> str:
    """Render one page that contains its data and needs no network."""
    document = dict(overview_json(overview))
    entries = find_entries(runbooks())
    named = {advise(group.health, group.phase).runbook for group in group_nodes(overview.nodes)}
    document["runbooks"] = {name: entries[entry] for name in named if (entry := _entry_of(name)) in entries}
    data = json.dumps(document, separators=(",", ":"))
    for character in "<>&":  # so that no name or reason can end the script's element
        data = data.replace(character, f"\\u{ord(character):04x}")
    return render("report.html.j2", data=data)
