"""Random lives of a node: what operators, other people and accidents do to it, in any order.

One throwaway host for all lives. Each begins bare and ends with a removal that has to be exact;
after each step kubelet is healthy, and after each pass R2, R3 and R4 hold (see life).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
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
from tests.faults.life import Life, tell
from tests.faults.lifemodel import BROKEN, CONFIGURATIONS, EXTRA, FORCE, GUARD_SECONDS, PAYLOADS, Asked, Since
from tests.faults.people import People
from tests.host.node import BINARY, FALLBACK, KUBELET_ENVIRONMENT, OURS, PROXY, PROXY_ENVIRONMENT
from tests.throwaway.kubelet import UNIT

Report = Callable[[str, int, Sequence[str]], None]

STEPS = 14
FLAGS = ("", "--max-pods=57", '"--max-pods=57 --node-ip=10.0.0.7"')
DROP_IN_LINES = ("Environment=SOMEBODY=1", "Nice=1", "EnvironmentFile=-/etc/somebody")
DRIFT = ("delete", "edit", "empty", "chmod", "chown", "link", "directory")
PLACES = (BINARY, PROXY_ENVIRONMENT, FALLBACK, KUBELET_ENVIRONMENT, FORCE, EXTRA)
MOST_EFFECTS = 60

_yes_or_no = st.booleans()
_asked = st.builds(
    Asked,
    st.sampled_from(PAYLOADS),
    st.sampled_from(sorted(CONFIGURATIONS)),
    st.sampled_from((GUARD_SECONDS, GUARD_SECONDS, GUARD_SECONDS + 1)),
    st.sampled_from(("enabled", "enabled", "disabled")),
)


def _alone(lives: Lives) -> bool:
    """Whether there is no resident."""
    return lives.life.watcher is None


def _since(lives: Lives) -> Since:
    return lives.life.since


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
            raise AssertionError(f"{error}\n{tell(life.story)}") from error

    # -- operators ----------------------------------------------------------

    @initialize(foreign=st.sets(st.sampled_from(PLACES), max_size=2), asked=_asked)
    def first(self, foreign: set[str], asked: Asked) -> None:
        for path in sorted(foreign):
            self._step(f"somebody else's {path}", partial(self.people.put, path))
        self._step(f"installs {asked}", partial(self.life.ask_and_install, asked))

    @precondition(lambda self: _alone(self) and (_since(self) != Since() or not self.life.converged))
    @rule()
    def install(self) -> None:
        self._step("install", self.life.install)

    @precondition(lambda self: _alone(self) and (_since(self) != Since() or self.life.converged))
    @rule()
    def remove(self) -> None:
        self._step("remove", self.life.remove)

    @rule(asked=_asked)
    def ask_and_install(self, asked: Asked) -> None:
        do = self.life.ask_and_install if _alone(self) else self.life.ask
        self._step(f"asks for {asked}", partial(do, asked))

    @precondition(lambda self: _alone(self))
    @rule(broken=st.sampled_from(sorted(BROKEN)))
    def failed_upgrade(self, broken: str) -> None:
        self._step(f"an upgrade that {broken}", partial(self.life.failed_upgrade, broken))

    @precondition(lambda self: _alone(self))
    @rule(mode=st.sampled_from(Mode), effect=st.integers(1, MOST_EFFECTS))
    def killed(self, mode: Mode, effect: int) -> None:
        self._step(f"kill -9 of {mode.value}", partial(self.people.kill, mode, effect))

    # -- other people -------------------------------------------------------

    @rule(path=st.sampled_from((*OURS, FORCE, EXTRA)), how=st.sampled_from(DRIFT), reload=_yes_or_no)
    def drift(self, path: str, how: str, reload: bool) -> None:
        place = self.life.node.path(path)
        if place.is_file() and not place.is_symlink() and path not in self.life.foreign:
            words = f"{how} {path}{', daemon-reload' * reload}"
            self._step(words, partial(self.people.drift, path, how, reload))

    @rule(verb=st.sampled_from(("stop", "disable", "restart")))
    def proxy_unit(self, verb: str) -> None:
        self._step(f"systemctl {verb} {PROXY}", partial(self.people.command_proxy, verb))

    @rule()
    def restart_kubelet(self) -> None:
        self._step("systemctl restart kubelet", partial(self.life.restart, UNIT))

    @rule(flags=st.sampled_from(FLAGS), finish=_yes_or_no)
    def edit_base(self, flags: str, finish: bool) -> None:
        line = f"KUBELET_EXTRA_ARGS={flags}\n"
        words = f"edits kubelet's environment: {flags}{', restarts it' * finish}"
        self._step(words, partial(self.people.edit_base, line, finish))

    @rule(line=st.sampled_from(DROP_IN_LINES), finish=_yes_or_no)
    def edit_base_unit(self, line: str, finish: bool) -> None:
        words = f"a drop-in for kubelet: {line}{', reloads and restarts' * finish}"
        self._step(words, partial(self.people.edit_base_unit, f"[Service]\n{line}\n", finish))

    @rule()
    def wipe(self) -> None:
        self._step("kubelet.service.d goes, kubelet restarts", self.people.wipe)

    @rule()
    def pause(self) -> None:
        self._step("the pause ends" if self.life.paused else "a pause", self.people.pause)

    @precondition(lambda self: _alone(self))
    @rule()
    def resident(self) -> None:
        self._step("a resident comes", self.life.start_watcher)

    @precondition(lambda self: not _alone(self))
    @rule()
    def no_resident(self) -> None:
        self._step("the resident goes", self.life.end_watcher)

    # -- accidents ----------------------------------------------------------

    @rule(cut=_yes_or_no)
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
        notes = getattr(error, "__notes__", ())
        bad.append(f"seed {number}: " + "\n".join((str(error), *notes)))
    finally:
        life.close()
    report("random lives", amount, bad)
