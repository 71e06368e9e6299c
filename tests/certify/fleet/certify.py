"""`hack/certify fleet`: enumerates every state of small fleets, by the program's own code.

A state is safe if never more kubelets are restarted than permitted, no permit is used by two, and nothing
begins that was paused or stopped a minute ago. It has a way out if every node reaches what is asked, and
every permit comes back, as soon as nothing more is in its way. Each fleet starts somewhere, everything may
happen at any moment in any order, and so many faults may happen in all.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

from installer.cluster import breaker, member, permit_choice, permit_client, rollout, sync_plan
from installer.model.fleet import FleetRules
from tests.certify.branches import Branches, Ways
from tests.certify.fleet.explore import Explorer, Found
from tests.certify.fleet.moves import KINDS, RULES, Fleet
from tests.certify.fleet.replay import Replay, read_schedule
from tests.faults.fleets.sim import Nature

#: The code under certificate.
CERTIFIED = (member, sync_plan, rollout, permit_client, permit_choice, breaker)
_CANARY = RULES
_ANY = replace(RULES, order="any")


def _two(rules: FleetRules) -> FleetRules:
    return replace(rules, concurrent_restarts="2")


FLEETS: Mapping[str, Fleet] = {
    "canary": Fleet(rules=_CANARY),
    "any": Fleet(rules=_ANY),
    "canary-2-permits": Fleet(rules=_two(_CANARY)),
    "any-2-permits": Fleet(rules=_two(_ANY)),
    "labelled": Fleet(rules=_CANARY, labelled=(0,)),
    "install": Fleet(rules=_CANARY, begins="install"),
    "drift": Fleet(rules=_ANY, begins="drift"),
    "annotated": Fleet(rules=_CANARY, annotates=True),
    "thief": Fleet(rules=replace(_ANY, concurrent_restarts="50%"), thief=True),
    "thief-canary": Fleet(rules=_CANARY, thief=True),
    "thief-failures": Fleet(rules=_ANY, thief=True, nature=Nature(bad=frozenset({"two"}))),
    "soak": Fleet(rules=replace(_CANARY, soak_seconds=100.0)),
    "two-failures": Fleet(rules=replace(_ANY, max_failures="2"), nature=Nature(bad=frozenset({"two"}))),
    "light": Fleet(rules=_CANARY, nature=Nature(light=True)),
    "light-unwatched": Fleet(rules=_CANARY, nature=Nature(light=True, soaks=False)),
    "window": Fleet(nodes=1, rules=_CANARY, window="shut"),
    "window-young": Fleet(nodes=1, rules=_CANARY, window="shut", young=(0,)),
    "pods": Fleet(rules=replace(_ANY, pod_seconds=60.0), pods=True),
    "remove": Fleet(rules=_ANY, begins="remove"),
    "successor": Fleet(nodes=1, rules=replace(_CANARY, successor="nri"), begins="remove"),
    "2-successors": Fleet(rules=replace(_CANARY, successor="nri"), begins="remove"),
    "rescue": Fleet(nodes=1, rules=_ANY, rescues=True),
    "alone": Fleet(nodes=1, rules=_CANARY, alone=True),
    "surge": Fleet(rules=_ANY, surges=True),
    "pages": Fleet(nodes=1, rules=_CANARY, litter="pages"),
    "lost": Fleet(nodes=1, rules=_ANY, litter="lost"),
    "3-canary": Fleet(nodes=3, rules=_CANARY),
    "3-any": Fleet(nodes=3, rules=_ANY),
    "3-canary-2-permits": Fleet(nodes=3, rules=_two(_CANARY)),
    "3-any-2-permits": Fleet(nodes=3, rules=_two(_ANY)),
}

#: Without faults these have too many states, or those of another fleet.
_ONLY_WITH_FAULTS = ("2-successors", "surge", "thief-failures")
#: What is enumerated if nothing else is asked for: fleets, the kind of each fault, the most states, 0: all.
BOUNDS: Sequence[tuple[str, str, int]] = (
    *((name, "", 0) for name, fleet in FLEETS.items() if fleet.nodes == 2 and name not in _ONLY_WITH_FAULTS),
    ("any", "pause", 0),
    ("any", "crash", 0),
    ("canary", "gone", 0),
    ("window", "window", 0),
    ("window-young", "window", 0),
    ("remove", "uninstall", 0),
    ("canary", "pass", 0),
    ("any", "pause-node", 5_000),
    ("any", "hold", 5_000),
    ("any", "answer", 5_000),
    ("annotated", "answer", 5_000),
    ("thief", "steal", 5_000),
    ("thief-failures", "steal", 5_000),
    ("two-failures", "boot", 5_000),
    ("two-failures", "crash", 5_000),
    ("successor", "resource", 3_000),
    ("successor", "boot", 7_000),
    ("successor", "answer", 5_000),
    ("rescue", "silent", 3_000),
    ("alone", "pass", 0),
    ("lost", "", 100),
    ("surge", "surge", 15_000),
    ("pages", "", 0),
    ("canary", "thwart", 0),
    ("remove", "start,answer", 5_000),
)


def certify(fleet: Fleet, states: int, seconds: float = float("inf")) -> tuple[Found, list[str]]:
    """Enumerate so many of its states at most. Return also what there is to say of a state that is wrong."""
    found = Explorer(fleet, states, seconds).run()
    if not found.wrong:
        return found, []
    said = [f"wrong: {found.wrong}", "the schedule:", *(f"    {move}" for move in found.schedule)]
    try:
        again = Replay(fleet).play(found.schedule)
    except Exception as error:
        again = f"the program has ended with {error!r}"
    return found, [*said, f"in the simulator: {again or 'all is well, so the certificate is wrong'}"]


def describe(name: str, found: Found) -> str:
    fleet = found.fleet
    whole = "all there are" if found.is_whole else "not all there are"
    kinds = f" ({', '.join(fleet.kinds)})" if fleet.kinds else ""
    about = f"{name}: {fleet.nodes} nodes, {fleet.limit} permits, {fleet.faults} faults{kinds}"
    figures = f"{found.states} states ({whole}), {found.moves} moves, depth {found.depth}"
    return f"{about}: {figures}, {found.seconds:.0f} s"


def read_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Exits if it knows no such fleet, or no such kind of fault."""
    parser = argparse.ArgumentParser(prog="hack/certify fleet", description=__doc__)
    parser.add_argument("names", metavar="FLEET", nargs="*", help=f"which of {', '.join(FLEETS)}")
    parser.add_argument("--faults", type=int, help="how many may happen in all (default: 1)")
    parser.add_argument("--kinds", help=f"of faults, with commas; all, if none: {', '.join(KINDS)}")
    parser.add_argument("--states", type=int, default=200_000, help="of each fleet at most (default: 200000)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="for each fleet at most")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="fleets at a time")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="play the schedule in the file instead")
    parser.add_argument("--coverage", action="store_true", help="also say which branches were not reached")
    given = parser.parse_args(arguments)
    given.kinds = tuple(given.kinds.split(",")) if given.kinds else ()
    if unknown := [name for name in given.names if name not in FLEETS] + [
        kind for kind in given.kinds if kind not in KINDS
    ]:
        parser.error(f"there is no {unknown[0]}")
    return given


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code: 0 if all has held."""
    given = read_arguments(arguments)
    names, kinds = given.names, given.kinds
    if given.replay:
        return _replay(names, given.replay)
    if names or given.kinds or given.faults is not None:
        faults, most = 1 if given.faults is None else given.faults, given.states
        every = [(name, replace(FLEETS[name], faults=faults, kinds=kinds), most) for name in names or FLEETS]
    else:
        every = [(name, of_kinds(name, kind), most or given.states) for name, kind, most in BOUNDS]
    return _run(every, given)


def of_kinds(name: str, kind: str) -> Fleet:
    """The fleet of that name with one fault of that kind; with none if there is no kind. With commas: so many
    faults, of these kinds."""
    kinds = tuple(filter(None, kind.split(",")))
    return replace(FLEETS[name], faults=len(kinds), kinds=kinds)


def _replay(names: Sequence[str], file: Path) -> int:
    wrong = 0
    for name in names or FLEETS:
        said = Replay(FLEETS[name]).play(read_schedule(file.read_text()))
        sys.stdout.write(f"{name}: {said or 'all is well'}\n")
        wrong += bool(said)
    return 1 if wrong else 0


def _certify(asked: tuple[str, Fleet, int], seconds: float, covers: bool) -> tuple[Found, list[str], Ways]:
    with Branches(CERTIFIED if covers else ()) as branches:
        found, said = certify(asked[1], asked[2], seconds)
    found.reached.clear()
    return found, said, branches.ways()


def _run(asked: Sequence[tuple[str, Fleet, int]], given: argparse.Namespace) -> int:
    began, states, depth, wrong = time.monotonic(), 0, 0, 0
    branches, cut = Branches(CERTIFIED if given.coverage else ()), list[str]()
    one = functools.partial(_certify, seconds=given.seconds, covers=given.coverage)
    with ProcessPoolExecutor(given.jobs) as pool:
        for (name, *_), (found, lines, ways) in zip(asked, pool.map(one, asked), strict=True):
            sys.stdout.write("\n".join([describe(name, found), *lines]) + "\n")
            sys.stdout.flush()
            branches.add(ways)
            states, depth, wrong = states + found.states, max(depth, found.depth), wrong + bool(found.wrong)
            cut += [] if found.is_whole else [f"{name} ({', '.join(found.fleet.kinds) or 'all kinds'})"]
    missed = list(branches.missed())
    for each in missed:
        sys.stdout.write(f"not reached: {each}\n")
    sys.stdout.write(f"cut, because there are more states: {'; '.join(cut)}\n" if cut else "")
    seconds = time.monotonic() - began
    sys.stdout.write(f"{states} states, depth {depth}, {seconds:.0f} seconds, {wrong} defects found\n")
    return 1 if wrong or missed else 0
