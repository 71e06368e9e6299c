"""What may happen to a fleet, and what has to hold of it each time. For the unit level and for `hack/faults`.

Each scenario gets a number of nodes and a seed, and returns what did not hold. Of every one: never more
planned restarts of kubelet at once than permits; none without a permit; no permit is left behind; every
healthy node gets there.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from installer.cluster.kubeapi import Answer
from installer.cluster.leases import share_of
from installer.model.fleet import FleetRules
from tests.faults.fleets.sim import Nature, SimFleet

MINUTE, HOUR = 60.0, 3600.0
RULES = FleetRules(hold_seconds=200.0, concurrent_restarts="5%")
AWAY = Answer(0, failure="no answer in time")
BUSY = Answer(429, failure="429: TooManyRequests", retry_after=60.0)
_REST = 0.6  # requests of a node in five minutes, by chance a little more than on average


@dataclass(frozen=True, slots=True)
class Chance:
    """The seed's own randomness, beside that of the program."""

    size: int
    random: random.Random

    def natures(self, bad: frozenset[str] = frozenset()) -> list[Nature]:
        """Work of 15 to 30 s, and clocks that are an hour wrong."""
        draw = self.random
        return [Nature(draw.uniform(15, 30), bad, draw.choice((-HOUR, 0.0, HOUR))) for _ in range(self.size)]

    def some(self, fleet: SimFleet, share: float) -> list[int]:
        return self.random.sample(range(self.size), round(share * self.size)) if fleet else []


Scenario = Callable[[Chance, int], list[str]]


def patience(fleet: SimFleet) -> float:
    """Ten times what the work takes one after the other, and the canaries' time."""
    return 4 * HOUR + 10 * 40 * len(fleet.nodes) / fleet.limit


def arrives(fleet: SimFleet, generation: str, seconds: float = 0.0) -> list[str]:
    """Lets it run to its end; what does not hold then."""
    fleet.run(seconds or patience(fleet), generation)
    missing = fleet.lacking(generation)
    bad = [f"{len(missing)} nodes do not run {generation}, {missing[:3]}"] if missing else []
    bad += [f"permits are left with {fleet.holders()[:3]}"] if fleet.holders() else []
    return bad + safe(fleet)


def safe(fleet: SimFleet) -> list[str]:
    """What has to hold at any time."""
    bad = []
    if fleet.most_at_work > fleet.limit:
        bad.append(f"{fleet.most_at_work} kubelets at once, of {fleet.limit}")
    if fleet.unasked:
        bad.append(f"{fleet.unasked[:3]} began without a permit")
    return bad


# -- scenarios -------------------------------------------------------------------------------------


def install(chance: Chance, seed: int) -> list[str]:
    """And then a day's rest."""
    fleet = SimFleet(chance.natures(), RULES, seed)
    fleet.controller.apply("one")
    bad = arrives(fleet, "one")
    fleet.run(900)
    before = fleet.asked
    fleet.run(HOUR)
    rest = (fleet.asked - before) / chance.size / 12
    return bad + ([f"{rest:.2f} requests of a node in five minutes of rest"] if rest > _REST else [])


def upgrade(chance: Chance, seed: int) -> list[str]:
    fleet = SimFleet(chance.natures(), RULES, seed)
    fleet.install("one")
    fleet.controller.apply("two")
    return arrives(fleet, "two")


def bad_generation(chance: Chance, seed: int) -> list[str]:
    """It fails everywhere: canaries alone are touched. Another generation is the way out."""
    fleet = SimFleet(chance.natures(bad=frozenset({"two"})), RULES, seed)
    fleet.install("one")
    fleet.controller.apply("two")
    fleet.run(HOUR)
    touched, canaries = len(fleet.touched["two"]), share_of("1%", chance.size)
    bad = [f"{touched} nodes have tried it"] if not 1 <= touched <= canaries else []
    bad += [f"{kept} nodes left what was good"] if (kept := fleet.installed_other_than("one")) else []
    fleet.controller.apply("three")
    return bad + arrives(fleet, "three")


def bad_generation_in_unrest(chance: Chance, seed: int) -> list[str]:
    """The same, where each pod is replaced in the middle of its pass: the next pod reports its failure."""
    fleet = SimFleet(chance.natures(bad=frozenset({"two"})), RULES, seed)
    fleet.install("one")
    fleet.controller.apply("two")
    replaced = set[int]()
    for _ in range(720):
        fleet.run(5)
        for number in fleet.at_work - replaced:
            replaced.add(number)
            fleet.nodes[number].replace_pod()
    touched, canaries = len(fleet.touched["two"]), share_of("1%", chance.size)
    bad = [f"{touched} nodes have tried it"] if not 1 <= touched <= canaries else []
    fleet.controller.apply("three")
    return bad + arrives(fleet, "three")


def bad_on_some(chance: Chance, seed: int) -> list[str]:
    """Without canaries, it fails on three nodes of ten: the breaker stops it at its limit, but for those that
    are at work by then."""
    natures = chance.natures()
    for number in chance.random.sample(range(chance.size), chance.size * 3 // 10):
        natures[number] = replace(natures[number], bad=frozenset({"two"}))
    fleet = SimFleet(natures, replace(RULES, order="any", max_failures="3"), seed)
    fleet.install("one")
    fleet.controller.apply("two")
    fleet.run(HOUR)
    failed = sum("two" in natures[number].bad for number in fleet.touched["two"])
    bad = [f"it failed on {failed} nodes"] if failed > 3 + fleet.limit else []
    fleet.controller.apply("three")
    return bad + arrives(fleet, "three")


def bad_pool(chance: Chance, seed: int) -> list[str]:
    """The last tenth of the nodes cannot run it; the others do, or it is stopped."""
    natures, pool = chance.natures(), chance.size // 10
    natures[-pool:] = [replace(nature, bad=frozenset({"two"})) for nature in natures[-pool:]]
    fleet = SimFleet(natures, RULES, seed)
    fleet.install("one")
    fleet.controller.apply("two")
    fleet.run(2 * HOUR)
    failed = sum("two" in natures[number].bad for number in fleet.touched["two"])
    bad = [f"it failed on {failed} nodes"] if failed > share_of("1%", chance.size) + fleet.limit else []
    fleet.controller.apply("three")
    return bad + arrives(fleet, "three")


def bad_image(chance: Chance, seed: int) -> list[str]:
    """No node can pull it: a tenth of the pods is away, and no kubelet is restarted."""
    fleet = SimFleet(chance.natures(), RULES, seed)
    fleet.install("one")
    fleet.unpullable.add("two")
    fleet.controller.apply("two")
    fleet.run(HOUR)
    away = len(fleet.controller.unavailable)
    bad = [f"{away} pods are away"] if away > chance.size // 10 else []
    bad += ["kubelets were restarted"] if fleet.most_at_work else []
    fleet.controller.apply("three")
    return bad + arrives(fleet, "three")


def mass_drift(chance: Chance, seed: int) -> list[str]:
    """A node agent takes the drop-in away on every node within a minute."""
    fleet = SimFleet(chance.natures(), RULES, seed)
    fleet.install("one")
    for node in fleet.nodes:
        fleet.clock.after(chance.random.uniform(0, 60), node.drift)
    fleet.run(60)
    return arrives(fleet, "one")


def held_in_the_queue(chance: Chance, seed: int) -> list[str]:
    """After a drift everywhere, nodes that wait for a permit get a person's hold, or their host cannot be
    looked at: the others go on without them, and they follow when that is over."""
    fleet = SimFleet(chance.natures(), replace(RULES, concurrent_restarts="1"), seed)
    fleet.install("one")
    for node in fleet.nodes:
        node.drift()
    fleet.run(15)
    waiting = [node for node in fleet.nodes if node.drifted and not node.busy]
    stopped = chance.random.sample(waiting, min(len(waiting), chance.size // 4))
    for node in stopped:
        node.hold, node.blind = chance.random.choice((("ask Kim", ""), ("", "D-Bus is gone")))
        assert node.watcher
        node.watcher.stir()
    bad = arrives(fleet, "one")
    for node in stopped:
        node.hold = node.blind = ""
        assert node.watcher
        node.watcher.stir()
    return bad + arrives(fleet, "one")


def mass_reboot(chance: Chance, seed: int) -> list[str]:
    """Every node loses its power in the middle of an upgrade."""
    fleet = SimFleet(chance.natures(), RULES, seed)
    fleet.install("one")
    fleet.controller.apply("two")
    fleet.run(chance.random.uniform(300, 900))
    for node in fleet.nodes:
        fleet.clock.after(chance.random.uniform(0, 60), lambda node=node: node.reboot(90.0))  # type: ignore[misc]
    fleet.run(60)
    return arrives(fleet, "two")


def upgrading(chance: Chance, seed: int) -> SimFleet:
    """A fleet without canaries in the middle of an upgrade to `two`."""
    fleet = SimFleet(chance.natures(), replace(RULES, order="any"), seed)
    fleet.install("one")
    fleet.controller.apply("two")
    fleet.run(200)
    return fleet


def api_away(chance: Chance, seed: int) -> list[str]:
    """For an hour, in the middle of an upgrade: nothing begins, and then it goes on."""
    fleet = upgrading(chance, seed)
    fleet.store.away = AWAY
    fleet.run(60)
    begun = len(fleet.touched["two"])
    fleet.run(HOUR)
    bad = ["nodes began without an answer"] if len(fleet.touched["two"]) != begun else []
    fleet.store.away = None
    return bad + arrives(fleet, "two")


def api_busy(chance: Chance, seed: int) -> list[str]:
    """It answers 429 and wants to be left alone for a minute: a node asks it no more than twice a minute."""
    fleet = upgrading(chance, seed)
    fleet.store.away, before = BUSY, fleet.asked
    fleet.run(1200)
    each = (fleet.asked - before) / chance.size / 20
    bad = [f"{each:.1f} requests of a node in a minute"] if each > 2 else []
    fleet.store.away = None
    return bad + arrives(fleet, "two")


def half_dead(chance: Chance, seed: int) -> list[str]:
    """Half of the nodes die within ten minutes of a first installation, some with a permit."""
    fleet = SimFleet(chance.natures(), RULES, seed)
    fleet.controller.apply("one")
    for number in chance.some(fleet, 0.5):
        fleet.clock.after(chance.random.uniform(0, 900), fleet.nodes[number].die)
    fleet.run(900)
    return arrives(fleet, "one")


def paused(chance: Chance, seed: int) -> list[str]:
    """A person stops a rollout for an hour: what has begun is finished, and within a minute nothing more
    begins anywhere: not in the queue, not to repair a drift, not for another generation."""
    fleet = upgrading(chance, seed)
    fleet.store.pause("a person looks")
    at = fleet.clock.now
    for number in chance.some(fleet, 0.3):
        fleet.clock.after(chance.random.uniform(0, HOUR / 2), fleet.nodes[number].drift)
    fleet.run(HOUR / 2)
    fleet.controller.apply("three")
    fleet.run(HOUR / 2)
    late = fleet.begun_at - at - MINUTE
    bad = [f"work began {late:.0f} s after the minute in which all had to stop"] if late > 0 else []
    fleet.store.pause(None)
    return bad + arrives(fleet, "three")


SCENARIOS: dict[str, Scenario] = {
    "install, and rest": install,
    "upgrade": upgrade,
    "bad generation": bad_generation,
    "bad generation, and pods are replaced": bad_generation_in_unrest,
    "bad on three of ten nodes": bad_on_some,
    "bad node pool": bad_pool,
    "bad image": bad_image,
    "mass drift": mass_drift,
    "mass drift, and some are held in the queue": held_in_the_queue,
    "mass reboot": mass_reboot,
    "API server away for an hour": api_away,
    "API server wants to be left alone": api_busy,
    "half of the nodes dead": half_dead,
    "paused for an hour": paused,
}


def play(scenario: Scenario, size: int, seed: int) -> list[str]:
    """What did not hold."""
    return scenario(Chance(size, random.Random(f"{scenario.__name__} {seed}")), seed)
