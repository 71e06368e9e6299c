"""The table of what the daemon does under a hold, row by row: a case for each row, and each row has one."""

from __future__ import annotations

from itertools import product

import pytest

from installer.daemon.decision import Action
from installer.daemon.held import HELD, Held, Holder, decide
from installer.model.hold import BY_DAEMON, BY_ROLLBACK, BY_RUN

ROWS = (
    Held(Holder.PERSON, strays=True, is_due=True, is_good=True, is_first=True, is_new=True),
    Held(Holder.PERSON, is_due=True, is_good=True, is_first=True, is_new=True, owes=True),
    Held(Holder.RUN, is_due=True),
    Held(Holder.RUN, is_good=True, is_new=True, owes=True),
    Held(Holder.DAEMON, is_good=True, waits=True, owes=True, is_due=True),
    Held(Holder.DAEMON, is_due=True, owes=True, is_good=True),
    Held(Holder.DAEMON, is_due=True, in_files=True, is_first=True, is_new=True, answers=False),
    Held(Holder.ROLLBACK, is_first=True, is_due=True),
    Held(Holder.DAEMON, is_due=True, is_new=True),
    Held(Holder.DAEMON, is_good=True, is_due=True),
    Held(Holder.ROLLBACK, is_due=True, is_good=True, owes=True),
)


@pytest.mark.parametrize("number", range(len(HELD)))
def test_each_row_is_what_follows_from_its_case(number: int) -> None:
    assert HELD.index(decide(ROWS[number])) == number


@pytest.mark.parametrize(
    ("reason", "by"),
    [
        ("broken CPU map", Holder.PERSON),
        ("no reason given", Holder.PERSON),
        (f"{BY_RUN}the proxy starts", Holder.RUN),
        (f"{BY_DAEMON}silent for 5 s", Holder.DAEMON),
        (f"{BY_ROLLBACK}it did not come back", Holder.ROLLBACK),
    ],
)
def test_who_holds_stands_in_the_reason(reason: str, by: Holder) -> None:
    assert Holder.of(reason) is by


def test_only_the_hold_of_a_person_is_moved_under_and_no_run_ever_begins_there() -> None:
    names = [name for name in Held.__slots__ if name != "by"]
    for by in Holder:
        for values in product((False, True), repeat=len(names)):
            action = decide(Held(by, **dict(zip(names, values, strict=True)))).action
            assert (action is Action.HOLD) <= (by is Holder.PERSON)
            assert (action is Action.INSTALL) <= (by is not Holder.PERSON)


def test_a_daemon_that_comes_does_not_end_its_own_hold_before_the_relay_has_proven_itself() -> None:
    names = [name for name in Held.__slots__ if name not in ("by", "is_good", "owes", "is_new")]
    for values in product((False, True), repeat=len(names)):
        now = Held(Holder.DAEMON, **dict(zip(names, values, strict=True)))
        assert decide(now).action is Action.NOTHING or not now.answers
