"""What the daemon does under a hold: a table, the first row that matches counts. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

from installer.daemon.decision import Action
from installer.model.hold import BY_DAEMON, is_of_a_run, is_operators


class Holder(Enum):
    """Who has set the hold."""

    PERSON = auto()  # `install` by hand ends it, or deleting the file
    RUN = auto()  # of an earlier build, which was cut off
    DAEMON = auto()
    ROLLBACK = auto()

    @classmethod
    def of(cls, reason: str) -> Holder:
        if is_operators(reason):
            return cls.PERSON
        if is_of_a_run(reason):
            return cls.RUN
        return cls.DAEMON if reason.startswith(BY_DAEMON) else cls.ROLLBACK


@dataclass(frozen=True, slots=True)
class Held:
    """`strays`: kubelet can be moved off the relay, where it still is. `is_good`: the relay has answered for
    long enough. `is_due`: a run has something to do, and may begin. `may_return`: nothing that has failed
    is in the way, and the picture is not from before the last run. `waits`: only planned work without a
    permit is left. `owes`: a rescue has interrupted a repair, or nothing of ours is loaded any more.
    `in_files`: files differ. `is_first`: no run of this daemon has been yet. `is_new`: the inputs are not
    those of the last run."""

    by: Holder
    strays: bool = False
    is_good: bool = False
    is_due: bool = False
    may_return: bool = True
    waits: bool = False
    owes: bool = False
    in_files: bool = False
    is_first: bool = False
    is_new: bool = False
    answers: bool = True

    @property
    def returns(self) -> bool:
        return self.by is Holder.DAEMON and self.is_good and self.may_return


class Row(NamedTuple):
    when: Callable[[Held], bool]
    action: Action
    why: str = ""  # empty: the hold's own reason
    is_return: bool = False


_RETURNS = "the relay answers again"
HELD = (
    Row(lambda now: now.by is Holder.PERSON and now.strays, Action.HOLD),
    Row(lambda now: now.by is Holder.PERSON, Action.NOTHING),
    Row(lambda now: now.by is Holder.RUN and now.is_due, Action.INSTALL, "an interrupted run holds kubelet"),
    Row(lambda now: now.by is Holder.RUN, Action.NOTHING),
    Row(lambda now: now.returns and now.waits, Action.INSTALL, _RETURNS, is_return=True),
    Row(
        lambda now: now.by is Holder.DAEMON and now.is_due and now.owes,
        Action.INSTALL,
        "resume the repair that a rescue interrupted",
    ),
    Row(  # else it may stay silent for ever
        lambda now: now.by is Holder.DAEMON and now.is_due and now.in_files and not now.answers,
        Action.INSTALL,
        "files differ, and the relay is silent",
    ),
    Row(
        lambda now: now.is_first and now.is_due and not (now.by is Holder.DAEMON and now.answers),
        Action.INSTALL,
        "start, under a hold",
    ),
    Row(lambda now: now.is_due and now.is_new, Action.INSTALL, "the inputs have changed"),
    Row(lambda now: now.returns, Action.INSTALL, _RETURNS, is_return=True),
    Row(lambda _now: True, Action.NOTHING),
)


def decide(now: Held) -> Row:
    return next(row for row in HELD if row.when(now))
