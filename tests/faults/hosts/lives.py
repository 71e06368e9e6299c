"""Random lives of a node: what operators, other people and accidents do to it, in any order.

Some share a throwaway host, one after the other, with a kubelet of one flavour. Each begins bare and ends
with a removal that has to be exact; after each step kubelet is healthy and every container lives on, and
after each pass R2, R3 and R4 hold (see life). One that went wrong can be lived again, from its seed:

    .venv/bin/python -m tests.faults.hosts.lives FLAVOUR SEED AMOUNT
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, Verbosity, assume, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from installer.model.names import Mode
from tests.faults import Report
from tests.faults.hosts.abreast import Share, try_abreast
from tests.faults.hosts.bench import Tried
from tests.faults.hosts.life import Life
from tests.faults.hosts.lifemodel import (
    BROKEN,
    CONFIGURATIONS,
    DROP_INS,
    EXTRA,
    FORCE,
    GUARD_SECONDS,
    PAYLOADS,
    UNIT_DIRECTORIES,
    Asked,
    Since,
)
from tests.faults.hosts.people import People
from tests.host.mortal import Instant
from tests.host.node import BINARY, FALLBACK, KUBELET_ENVIRONMENT, PROXY, PROXY_ENVIRONMENT
from tests.lib.throwaway.kubelet import FLAVOURS, UNIT, runtime_of

STEPS = 14
SHARE = 5  # lives of one host
WIPE = "wipe"
AGENT = "agent"
PROXY_VERBS = (
    "stop",
    "add-wants kubelet.service",
    "add-wants multi-user.target",
    "restart",
    "mask",
    "mask --runtime",
    AGENT,
)
DRIFT = ("delete", "edit", "empty", "chmod", "chown", "link", "mask", "directory")
PLACES = (BINARY, PROXY_ENVIRONMENT, FALLBACK, KUBELET_ENVIRONMENT, FORCE, EXTRA)
MOST_EFFECTS = 36

_asked = st.builds(
    Asked,
    st.sampled_from(PAYLOADS),
    st.sampled_from(sorted(CONFIGURATIONS)),
    st.sampled_from((GUARD_SECONDS, GUARD_SECONDS, GUARD_SECONDS + 1)),
    st.sampled_from(("enabled", "enabled", "disabled")),
    st.sampled_from(("auto", "auto", "exec-start")),
    st.sampled_from((UNIT_DIRECTORIES[0], *UNIT_DIRECTORIES)),
)


def _alone(lives: Lives) -> bool:
    """Whether there is no daemon."""
    return lives.life.watcher is None


class Lives(RuleBasedStateMachine):
    """A step is a rule; what each is to hold is checked where it is done."""

    life: Life  # a subclass says which

    def __init__(self) -> None:
        super().__init__()
        self.people = People(self.life)
        self.lives = False

    def teardown(self) -> None:
        if self.lives:
            self._step("the end", self.life.end)

    def _step(self, words: str, do: Callable[[], object]) -> None:
        """Does it; a failure tells the life so far."""
        life = self.life
        life.say(words)
        try:
            life.undisturbed()
            before = life.ground.invocations()
            do()
            life.see_kubelet()
            life.watched(before)
        except Exception as error:
            self.lives = False
            raise AssertionError(life.fail(error)) from error

    # -- operators ----------------------------------------------------------

    @initialize(
        foreign=st.sets(st.sampled_from(PLACES), max_size=2), asked=_asked, number=st.integers(0, 1 << 30)
    )
    def first(self, foreign: set[str], asked: Asked, number: int) -> None:
        # Hypothesis begins with what is simplest, which would be many of a few lives.
        assume(number)
        self.life.begin()
        self.lives = True
        for path in sorted(foreign):
            self._step(f"somebody else's {path}", partial(self.people.put, path))
        self._step(f"installs {asked}", partial(self.life.ask_and_install, asked))

    @precondition(_alone)
    @rule(verb=st.sampled_from(("install", "install", "remove", *BROKEN)), asked=_asked)
    def operator(self, verb: str, asked: Asked) -> None:
        life = self.life
        settled = life.since == Since()
        if verb in BROKEN:
            self._step(f"an upgrade that {verb}", partial(life.failed_upgrade, verb))
        elif verb == "remove" and (life.converged or not settled):
            self._step("remove", life.remove)
        elif verb == "install" and (not life.converged or not settled):
            self._step("install", life.install)
        else:
            self._step(f"asks for {asked}", partial(life.ask_and_install, asked))

    @precondition(_alone)
    @rule(mode=st.sampled_from(Mode), asked=_asked, effect=st.integers(1, MOST_EFFECTS), after=st.booleans())
    def killed(self, mode: Mode, asked: Asked, effect: int, after: bool) -> None:
        instant = Instant(effect, after)
        words = f"kill -9 of {mode.value} {instant}, as {asked} is asked for"
        self._step(words, partial(self.people.kill, mode, asked, instant))

    @precondition(_alone)
    @rule(what=st.sampled_from(("pause", "comes or goes", "asks", "asks")), asked=_asked)
    def daemon(self, what: str, asked: Asked) -> None:
        life = self.life
        if what == "pause":
            self._step("the pause ends" if life.paused else "a pause", self.people.pause)
        elif _alone(self):
            self._step("a daemon comes", life.start_watcher)
        elif what == "asks":
            self._step(f"asks for {asked}", partial(life.ask, asked))
        else:
            self._step("the daemon goes", life.end_watcher)

    # -- other people -------------------------------------------------------

    @precondition(lambda self: self.people.in_place())
    @rule(which=st.integers(0, 8), how=st.sampled_from(DRIFT), reload=st.booleans())
    def drift(self, which: int, how: str, reload: bool) -> None:
        found = self.people.in_place()
        path = found[which % len(found)]
        words = f"{how} {path}{', daemon-reload' * reload}"
        self._step(words, partial(self.people.drift, path, how, reload))

    @rule(verb=st.sampled_from(PROXY_VERBS))
    def proxys_user(self, verb: str) -> None:
        if verb == "mask" and self.life.converged is None:
            verb = "mask --runtime"  # else it would be a file of theirs, where ours may be or not
        if verb == AGENT:
            self._step("the agent sends a configuration", self.people.be_the_agent)
        else:
            self._step(f"systemctl {verb} {PROXY}", partial(self.people.command_proxy, verb))

    @rule(deed=st.sampled_from(("restart", "stop", "mask", WIPE)))
    def kubelets_user(self, deed: str) -> None:
        if deed == WIPE:
            self._step(f"{DROP_INS} goes, and kubelet restarts", self.people.wipe)
        elif deed == "stop" and not self.life.since.stopped:
            self._step("systemctl stop kubelet", self.people.stop_kubelet)
        elif deed == "mask":
            self._step("systemctl mask kubelet", self.people.mask_kubelet)
        else:
            self._step("systemctl restart kubelet", partial(self.life.restart, UNIT))

    @rule(which=st.integers(0, 7), finish=st.booleans())
    def kubelets_owner(self, which: int, finish: bool) -> None:
        edits = self.life.ground.edits
        edit = edits[which % len(edits)]
        words = f"kubelet's owner writes {edit}{', and it restarts' * finish}"
        self._step(words, partial(self.people.edit, edit, finish))

    # -- accidents ----------------------------------------------------------

    @rule(cut=st.booleans())
    def boot(self, cut: bool) -> None:
        self._step("power cut, boot" if cut else "reboot", partial(self.people.boot, cut))


def live(life: Life, amount: int, steps: int = STEPS, number: int | None = None) -> None:
    """Lives `amount` lives; random ones if there is a seed `number`, else always the same.

    Raises the first failure, as hypothesis found it or made shorter, with how to see it again.
    """
    given: dict[str, Any] = {} if number is None else {"print_blob": True}
    how = settings(
        max_examples=amount,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        derandomize=number is None,
        # What a step costs is too much for making the failure shorter: it is told step by step.
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet if number is None else Verbosity.normal,
        **given,
    )

    class These(Lives):
        pass

    These.life = life
    run_state_machine_as_test(These if number is None else seed(number)(These), settings=how)


def live_share(scratch: Path, flavour: str, amount: int, number: int) -> Tried:
    """Lives random lives on a host of their own; tells of the one that went wrong, which is the last."""
    life = Life(scratch, flavour)
    tried = Tried()
    try:
        live(life, amount, number=number)
    except Exception as error:
        again = f".venv/bin/python -m tests.faults.hosts.lives {flavour} {number} {amount}"
        told = life.failures[0] if life.failures else f"{type(error).__name__}: {error}"
        tried.bad.append(f"{told}\nlived again by: {again}")
    finally:
        life.close()
    tried.count = life.count
    return tried


#: Lives have no runtime at an unusual place, and what others do to kubelet's unit in them is not made for a
#: link to a unit.
_LIVED = tuple(flavour for flavour in FLAVOURS if runtime_of(flavour) != "containerd-node")


def run(report: Report, amount: int) -> None:
    """Lives `amount` random lives, of every flavour of kubelet in turn."""
    number = random.SystemRandom().randrange(1 << 32)
    shares = []
    for turn, first in enumerate(range(0, amount, SHARE)):
        flavour = _LIVED[turn % len(_LIVED)]
        work = partial(live_share, flavour=flavour, amount=min(SHARE, amount - first), number=number + first)
        shares.append(Share("random lives", work))
    try_abreast(report, shares)


def main(flavour: str, number: str, amount: str) -> None:
    """Lives the lives of a share again."""
    with tempfile.TemporaryDirectory(prefix="lives-") as scratch:
        tried = live_share(Path(scratch), flavour, int(amount), int(number))
    sys.stdout.write(f"{tried.count} lives\n" + "\n".join(tried.bad) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
