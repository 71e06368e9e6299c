"""What every plan of one run is carried out with."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from installer.errors import StepFailedError
from installer.host.ports import Host
from installer.inputs.settings import Settings
from installer.model.event import Emit, Event
from installer.model.host import Part, UnitState
from installer.model.result import Tally
from installer.node.ownership import RecordStore

DAEMON = "the daemon"
"""Requests unattended runs."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run, which holds the host's lock."""

    host: Host
    store: RecordStore
    settings: Settings
    emit: Emit
    tally: Tally = field(default_factory=Tally)


@dataclass(slots=True)
class Progress:
    """What a plan has already done, so that a rollback moves no more than that."""

    touched: set[Part] = field(default_factory=set)
    moved_kubelet: bool = False
    moved_proxy: bool = False
    left_relay: bool = False  # kubelet has, because the proxy started slowly
    cut_short: bool = False  # a start was still silent at its deadline, which was shorter than usual
    failed_unit: str = ""
    proxy: UnitState | None = None  # as it was when its relay answered
    journal_from: str = ""  # the journal's end before the last start of a unit
    held: str = ""  # by an operator, who has not asked for this plan
    restarts_left: float = math.inf  # of kubelet; leaving the relay is always allowed, returning is not
    runtime_away: bool = False  # when kubelet was to go there

    def failure(self, unit: str, why: str, hint: str = "") -> StepFailedError:
        """The error of a plan that fails because of `unit`, which is noted."""
        self.failed_unit = unit
        return StepFailedError(f"{unit}: {why}", hint, self.runtime_away)


def warn(emit: Emit, code: str, message: str) -> None:
    """Warn of what the next run tries again."""
    emit(Event("warning", message, {"code": code, "hint": "`cri-resmgr-installer install` tries again"}))
