"""What every plan of one run is carried out with."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from installer.host.ports import Host
from installer.inputs.settings import Settings
from installer.model.event import Emit
from installer.model.host import Part
from installer.node.ownership import RecordStore

DAEMON = "the daemon"
"""Who asks for an unattended run."""


@dataclass(frozen=True, slots=True)
class Run:
    """The host's lock is held. `who` asked for it, and `because` of what. `restarts_left`: see Progress."""

    host: Host
    store: RecordStore
    settings: Settings
    emit: Emit
    who: str = "root"
    because: str = ""
    restarts_left: float = math.inf


@dataclass(slots=True)
class Progress:
    """What a plan has already done, so that a rollback moves no more than that. `restarts_left`: how often it
    may restart kubelet; the way off a relay is always open, the way back to it is not."""

    touched: set[Part] = field(default_factory=set)
    moved_kubelet: bool = False
    moved_proxy: bool = False
    left_relay: bool = False  # kubelet, for a start of the proxy that turned out slow
    cut_short: bool = False  # a start that was silent when its time was over, which it had less of than usual
    failed_unit: str = ""
    journal_from: str = ""  # where the journal ended before the last start of a unit
    restarts_left: float = math.inf
