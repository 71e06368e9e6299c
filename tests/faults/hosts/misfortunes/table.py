"""The table: every way in which a system misbehaves, in the groups that may share a host."""

from __future__ import annotations

from collections.abc import Mapping

from tests.faults.hosts.misfortunes.bus import BUS, LEFTOVERS
from tests.faults.hosts.misfortunes.case import Case
from tests.faults.hosts.misfortunes.disk import DISK, FULL
from tests.faults.hosts.misfortunes.sick import KUBELETS, PROXIES, SICK
from tests.faults.hosts.misfortunes.units import DROP_INS, UNITS

GROUPS: Mapping[str, tuple[Case, ...]] = {
    "full": FULL,
    "disk": DISK,
    "bus": BUS,
    "units": UNITS,
    "drop-ins": DROP_INS,
    "sick": SICK,
    "proxies": PROXIES,
    "kubelets": KUBELETS,
    "leftovers": LEFTOVERS,
}
