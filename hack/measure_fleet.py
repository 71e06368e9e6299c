"""`hack/bench fleet`: how long a fleet takes, by how many may restart kubelet at once, and its requests.

Simulated (tests/faults/fleets/sim.py): the daemon's own policy and talk with the API server, on a clock that
does not wait. Each node takes 15 to 30 s for its work. With `--svg FILE` the way of each fleet is drawn. With
`--kubernetes DIR` the same nodes ask a real API server (tests/faults/fleets/real.py).
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from installer.model.fleet import FleetRules
from tests.faults.fleets.sim import Nature, SimFleet
from tests.lib.throwaway.controlplane import ControlPlane, find_programs

_HOUR = 3600.0
_GENERATION = "1" * 16  # as a policy takes it
_SOAK = 10.0  # seconds that canaries are watched, where time is real
_WIDTH, _HEIGHT, _LEFT, _BELOW = 720, 360, 70, 46
_COLOURS = ("#9ecae1", "#4292c6", "#08519c", "#fd8d3c", "#a63603")
_ROW = "{:>8} {:>9} {:>9} {:>9} {:>10} {:>8} {:>8} {:>8}\n"


@dataclass(frozen=True, slots=True)
class Way:
    """Of one fleet: `done` are the seconds at which nodes were done, `rates` requests in each second until
    the last one was, `each` those of a node, `kinds` the same by what they are, `rest` a node's in five
    minutes afterwards, `upgrade` the seconds of an upgrade after that."""

    share: str
    upgrade: float
    done: tuple[float, ...]
    rates: tuple[int, ...]
    each: float
    kinds: Mapping[str, float]
    rest: float

    def rate(self, share: float) -> int:
        return self.rates[min(len(self.rates) - 1, int(share * len(self.rates)))]


def measure(nodes: int, share: str) -> Way:
    """A first installation: every pod is there at once. Then an upgrade, which restarts no kubelet."""
    draw = random.Random(1)
    rules = replace(FleetRules(), concurrent_restarts=share)
    fleet = SimFleet([Nature(draw.uniform(15, 30)) for _ in range(nodes)], rules)
    fleet.controller.apply("one")
    seconds = fleet.run(48 * _HOUR, "one")
    missing = fleet.lacking("one")
    if missing or fleet.unasked or fleet.most_at_work > fleet.limit:
        raise AssertionError(f"{len(missing)} nodes are missing, {fleet.most_at_work} were at work at once")
    rates = sorted(fleet.per_second[second] for second in range(int(seconds) + 1))
    each = fleet.asked / nodes
    done = tuple(sorted(fleet.done_at))
    kinds = {kind: count / nodes for kind, count in fleet.kinds.most_common()}
    fleet.run(300)
    before = fleet.asked
    fleet.run(600)
    rest = (fleet.asked - before) / nodes / 2
    for node in fleet.nodes:
        node.nature = replace(node.nature, light=True)
    fleet.controller.apply("two")
    upgrade = fleet.run(48 * _HOUR, "two")
    if lacking := fleet.lacking("two"):
        raise AssertionError(f"{len(lacking)} nodes are not upgraded")
    return Way(share, upgrade, done, tuple(rates), each, kinds, rest)


def ask_server(programs: Path, nodes: int, share: str, work: tuple[float, float]) -> None:
    """The same nodes at a real API server, in real time; then simulated, with the same work and soaking."""
    from tests.faults.fleets.real import RealClock, RealLoop, RealStore

    draw, say = random.Random(1), sys.stdout.write
    rules = replace(FleetRules(), concurrent_restarts=share, soak_seconds=_SOAK)
    natures = [Nature(draw.uniform(*work)) for _ in range(nodes)]
    with TemporaryDirectory() as place, ControlPlane(find_programs(programs), Path(place, "plane")) as plane:
        store = RealStore(plane, Path(place, "nodes"))
        fleet = SimFleet(natures, rules, clock=RealClock(), store=store, loop=RealLoop)
        with store:
            memory = plane.memory("kube-apiserver")
            fleet.controller.apply(_GENERATION)
            fleet.run(_HOUR, _GENERATION)
            say(f"{nodes} nodes, {fleet.limit} permits: done after {max(fleet.done_at):.0f} s\n")
            missing = fleet.lacking(_GENERATION)
            taken = sorted(store.seconds)
            p50, p99 = (taken[int(part * len(taken))] * 1000 for part in (0.5, 0.99))
            most = store.most_held, fleet.most_at_work, fleet.limit
            say(f"requests {len(taken)}, p50 {p50:.0f} ms, p99 {p99:.0f} ms, failed {len(store.failures)}\n")
            say(f"permits: {most[0]} held at once at most, in {store.versions} versions; at work {most[1]}\n")
            after = plane.memory("kube-apiserver")
            say(f"memory of the API server: {memory:.0f} MiB before, {after:.0f} MiB at most\n")
            for failure in sorted(set(store.failures))[:5]:
                say(f"  failed: {failure}\n")
    simulated = SimFleet(natures, rules)
    simulated.controller.apply(_GENERATION)
    simulated.run(_HOUR, _GENERATION)
    say(f"\nRequests of one node, and simulated (done after {max(simulated.done_at):.0f} s)\n")
    for kind in [name for name, _ in fleet.kinds.most_common()]:
        say(f"{kind:<30}{fleet.kinds[kind] / nodes:>9.2f}{simulated.kinds[kind] / nodes:>9.2f}\n")
    if missing or fleet.unasked or max(most[:2]) > most[2]:
        raise AssertionError(f"{len(missing)} nodes are missing, {most} permits held, at work, there are")


def plot(ways: list[Way], nodes: int) -> str:
    """Nodes that are done over time, a line for each fleet, as SVG."""
    hours = max(way.done[-1] for way in ways) / _HOUR

    def x(seconds: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - 20) * seconds / _HOUR / hours

    def y(count: float) -> float:
        return (_HEIGHT - _BELOW) - (_HEIGHT - _BELOW - 20) * count / nodes

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="sans-serif" font-size="13">',
        f"<title>{nodes} nodes: how many are done, over time</title>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
    ]
    middle = (_HEIGHT - _BELOW + 20) // 2
    lines += [
        f'<text x="{(_LEFT + _WIDTH - 20) // 2}" y="{_HEIGHT - 6}" text-anchor="middle">'
        "hours since the change was applied</text>",
        f'<text transform="translate(14 {middle}) rotate(-90)" text-anchor="middle">nodes done</text>',
    ]
    for part in range(5):
        count = nodes * part // 4
        lines.append(f'<path d="M{_LEFT} {y(count):.0f}H{_WIDTH - 20}" stroke="#ddd"/>')
        lines.append(f'<text x="{_LEFT - 8}" y="{y(count) + 4:.0f}" text-anchor="end">{count}</text>')
    step = max(1, round(hours / 6)) if hours > 3 else 0.5
    for number in range(int(hours / step) + 1):
        at = x(number * step * _HOUR)
        lines.append(f'<path d="M{at:.0f} {_HEIGHT - _BELOW}v5" stroke="#888"/>')
        lines.append(
            f'<text x="{at:.0f}" y="{_HEIGHT - _BELOW + 20}" text-anchor="middle">{number * step:g} h</text>'
        )
    for way, colour in zip(ways, _COLOURS, strict=False):
        each = max(1, len(way.done) // 200)
        points = [(0.0, 0), *((at, number) for number, at in enumerate(way.done, 1) if number % each == 0)]
        path = "L".join(f"{x(at):.1f} {y(number):.1f}" for at, number in points)
        lines.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
    for number, (way, colour) in enumerate(zip(ways, _COLOURS, strict=False)):
        top = _HEIGHT - _BELOW - 20 * (len(ways) - number)
        lines.append(f'<path d="M{_WIDTH - 130} {top}h24" stroke="{colour}" stroke-width="3"/>')
        lines.append(f'<text x="{_WIDTH - 98}" y="{top + 4}">{way.share} at once</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="hack/bench fleet", description=__doc__)
    parser.add_argument("nodes", metavar="NODES", type=int, nargs="?", default=0, help="10000; real: 200")
    parser.add_argument(
        "--at-once", metavar="SHARE", nargs="*", default=["1%", "2%", "5%"], help="rollout.concurrentRestarts"
    )
    parser.add_argument("--svg", metavar="FILE", type=Path)
    parser.add_argument("--kubernetes", metavar="DIR", type=Path, help="at a real API server, in real time")
    parser.add_argument(
        "--work", metavar="SECONDS", type=float, nargs=2, default=(3.0, 6.0), help="of a pass; real only"
    )
    arguments = parser.parse_args()
    if arguments.kubernetes:
        ask_server(arguments.kubernetes, arguments.nodes or 200, arguments.at_once[-1], tuple(arguments.work))
        return
    arguments.nodes = arguments.nodes or 10_000
    say = sys.stdout.write
    say(_ROW.format("at once", "minutes", "upgrade", "p50/s", "p99/s", "peak/s", "by node", "at rest"))
    ways = []
    with multiprocessing.get_context("spawn").Pool() as pool:  # nothing here depends on the time it takes
        for way in pool.imap(partial(measure, arguments.nodes), arguments.at_once):
            ways.append(way)
            rates = (way.rate(0.5), way.rate(0.99), way.rates[-1])
            minutes = f"{way.done[-1] / 60:.0f}"
            upgrade = f"{way.upgrade / 60:.0f}"
            say(_ROW.format(way.share, minutes, upgrade, *rates, f"{way.each:.1f}", f"{way.rest:.2f}"))
            sys.stdout.flush()
    say("\nRequests of one node until all are done\n")
    for kind in ways[0].kinds:
        counts = "".join(f"{way.kinds.get(kind, 0.0):>9.2f}" for way in ways)
        say(f"{kind:<30}{counts}\n")
    if arguments.svg:
        arguments.svg.write_text(plot(ways, arguments.nodes))


if __name__ == "__main__":
    main()
