"""`hack/certify fleet`: enumerates every state of small fleets, by the program's own code.

A state is safe if never more kubelets are restarted than permitted, no permit is used by two, and nothing
begins that was paused or stopped a minute ago. It has a way out if every node reaches what is asked, and
every permit comes back, as soon as nothing more is in its way. Each fleet starts somewhere, everything may
happen at any moment in any order, and so many faults may happen in all.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from installer.cluster import breaker, member, permit_choice, permit_client, rollout, sync_plan
from installer.daemon import fleet as fleet_of_daemon
from installer.daemon import pass_history, policy
from installer.model.fleet import FleetRules
from tests.certify.fleet.explore import Explorer, Found
from tests.certify.fleet.moves import KINDS, RULES, Fleet
from tests.certify.fleet.replay import Replay, read_schedule
from tests.certify.reached import Reached

#: The code under certificate.
_CERTIFIED = (
    member,
    sync_plan,
    rollout,
    permit_client,
    permit_choice,
    breaker,
    policy,
    pass_history,
    fleet_of_daemon,
)
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
    "3-canary": Fleet(nodes=3, rules=_CANARY),
    "3-any": Fleet(nodes=3, rules=_ANY),
    "3-canary-2-permits": Fleet(nodes=3, rules=_two(_CANARY)),
    "3-any-2-permits": Fleet(nodes=3, rules=_two(_ANY)),
}


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


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code: 0 if all has held."""
    parser = argparse.ArgumentParser(prog="hack/certify fleet", description=__doc__)
    parser.add_argument("names", metavar="FLEET", nargs="*", help=f"which; all, if none: {', '.join(FLEETS)}")
    parser.add_argument("--faults", type=int, default=1, help="how many may happen in all (default: 1)")
    parser.add_argument("--kinds", help=f"of faults, with commas; all, if none: {', '.join(KINDS)}")
    parser.add_argument("--states", type=int, default=50_000, help="of each fleet at most (default: 50000)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="for each fleet at most")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="play the schedule in the file instead")
    parser.add_argument("--coverage", action="store_true", help="also say which lines were not reached")
    given = parser.parse_args(arguments)
    names, kinds = given.names or list(FLEETS), tuple(given.kinds.split(",")) if given.kinds else ()
    if unknown := [name for name in names if name not in FLEETS] + [
        kind for kind in kinds if kind not in KINDS
    ]:
        parser.error(f"there is no {unknown[0]}")
    with Reached(_CERTIFIED if given.coverage else ()) as reached:
        code = _run(names, kinds, given)
    sys.stdout.write("".join(f"{line}\n" for line in reached.missed()))
    return code


def _run(names: Sequence[str], kinds: tuple[str, ...], given: argparse.Namespace) -> int:
    began, states, depth, wrong = time.monotonic(), 0, 0, 0
    for name in names:
        fleet = replace(FLEETS[name], faults=given.faults, kinds=kinds)
        if given.replay:
            said = Replay(fleet).play(read_schedule(given.replay.read_text()))
            sys.stdout.write(f"{name}: {said or 'all is well'}\n")
            wrong += bool(said)
            continue
        found, lines = certify(fleet, given.states, given.seconds)
        sys.stdout.write("\n".join([describe(name, found), *lines]) + "\n")
        sys.stdout.flush()
        states, depth, wrong = states + found.states, max(depth, found.depth), wrong + bool(found.wrong)
    seconds = time.monotonic() - began
    sys.stdout.write(f"{states} states, depth {depth}, {seconds:.0f} seconds, {wrong} defects found\n")
    return 1 if wrong else 0
