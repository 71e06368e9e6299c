"""Random lives of a node: what operators, other people and accidents do to it, in any order.

One throwaway host for all lives. Each begins bare and ends with a removal that has to be exact;
after each step kubelet is healthy, and after each pass R2, R3 and R4 hold (see life).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

from hypothesis import HealthCheck, Phase, Verbosity, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from installer.model.state import Mode
from tests.faults import Report
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
    tell,
)
from tests.faults.hosts.people import People
from tests.host.node import BINARY, FALLBACK, KUBELET_ENVIRONMENT, PROXY, PROXY_ENVIRONMENT
from tests.throwaway.kubelet import UNIT

STEPS = 14
FLAGS = tuple(f"KUBELET_EXTRA_ARGS={one}" for one in ("", "--max-pods=57", '"--max-pods=57 --v=4"'))
WIPE = "wipe"
COMMAND = "$KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS"
DROP_IN_LINES = (
    f"ExecStart=\nExecStart=/usr/bin/kubelet --max-pods=9 {COMMAND}",
    "Environment=SOMEBODY=1",
    "EnvironmentFile=-/etc/somebody",
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
    """Whether there is no resident."""
    return lives.life.watcher is None


class Lives(RuleBasedStateMachine):
    """A step is a rule; what each is to hold is checked where it is done."""

    life: Life  # a subclass says which

    def __init__(self) -> None:
        super().__init__()
        self.people = People(self.life)
        self.life.begin()

    def teardown(self) -> None:
        if not self.life.broken:
            self._step("the end", self.life.end)

    def _step(self, words: str, do: Callable[[], object]) -> None:
        """Does it; a failure tells the life so far."""
        life = self.life
        life.say(words)
        try:
            life.undisturbed()
            before = life.invocation(UNIT), life.invocation(PROXY)
            do()
            life.wait_healthy()
            life.watched(before)
        except Exception as error:
            life.broken = True
            life.failures.append(f"{error}\n{tell(life.story)}")
            raise AssertionError(life.failures[-1]) from error

    # -- operators ----------------------------------------------------------

    @initialize(foreign=st.sets(st.sampled_from(PLACES), max_size=2), asked=_asked)
    def first(self, foreign: set[str], asked: Asked) -> None:
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
    @rule(mode=st.sampled_from(Mode), asked=_asked, effect=st.integers(1, MOST_EFFECTS))
    def killed(self, mode: Mode, asked: Asked, effect: int) -> None:
        words = f"kill -9 of {mode.value} before its effect {effect}, as {asked} is asked for"
        self._step(words, partial(self.people.kill, mode, asked, effect))

    @rule(what=st.sampled_from(("pause", "comes or goes", "asks", "asks")), asked=_asked)
    def resident(self, what: str, asked: Asked) -> None:
        life = self.life
        if what == "pause":
            self._step("the pause ends" if life.paused else "a pause", self.people.pause)
        elif _alone(self):
            self._step("a resident comes", life.start_watcher)
        elif what == "asks":
            self._step(f"asks for {asked}", partial(life.ask, asked))
        else:
            self._step("the resident goes", life.end_watcher)

    # -- other people -------------------------------------------------------

    @precondition(lambda self: self.people.in_place())
    @rule(which=st.integers(0, 8), how=st.sampled_from(DRIFT), reload=st.booleans())
    def drift(self, which: int, how: str, reload: bool) -> None:
        found = self.people.in_place()
        path = found[which % len(found)]
        words = f"{how} {path}{', daemon-reload' * reload}"
        self._step(words, partial(self.people.drift, path, how, reload))

    @rule(verb=st.sampled_from(("stop", "disable", "unlink", "restart")), unit=st.sampled_from((PROXY, UNIT)))
    def systemctl(self, verb: str, unit: str) -> None:
        if unit == PROXY:
            self._step(f"systemctl {verb} {PROXY}", partial(self.people.command_proxy, verb))
        else:
            self._step("systemctl restart kubelet", partial(self.life.restart, UNIT))

    @rule(line=st.sampled_from((*FLAGS, *DROP_IN_LINES, WIPE)), finish=st.booleans())
    def kubelets_owner(self, line: str, finish: bool) -> None:
        words = f"of kubelet's: {line}{', and it restarts' * finish}"
        if line == WIPE:
            self._step(f"{DROP_INS} goes, and kubelet restarts", self.people.wipe)
        elif line in FLAGS:
            self._step(words, partial(self.people.edit_base, line, finish))
        else:
            self._step(words, partial(self.people.edit_base_unit, line, finish))

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


def run(report: Report, amount: int) -> None:
    """Lives `amount` random lives, and tells of the one that went wrong, with its seed."""
    number = random.SystemRandom().randrange(1 << 32)
    life = Life()
    bad: list[str] = []
    try:
        live(life, amount, number=number)
    except Exception as error:
        told = life.failures[:1] or [str(error)]
        bad.append("\n".join((f"seed {number}: {told[0]}", *getattr(error, "__notes__", ()))))
    finally:
        life.close()
    report("random lives", amount, bad)
