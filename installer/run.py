"""What every plan of one run is carried out with."""

from __future__ import annotations

import math
from dataclasses import dataclass

from installer.host.ports import Host
from installer.inputs.settings import Settings
from installer.model.event import Emit
from installer.record.store import RecordStore

DAEMON = "the daemon"
"""Who asks for a run that nobody watches."""


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
