"""What a run would do, and what that rests on: the last pure value before anything is changed."""

from __future__ import annotations

from dataclasses import dataclass

from installer.model.plan import Plan
from installer.model.policy import PolicyInForce
from installer.model.snapshot import HostSnapshot


@dataclass(frozen=True, slots=True)
class Assessment:
    """`base_endpoint` is where the runtime is asked, empty if it is not known. `payload_version` is what the
    payload calls itself. `remembered_failure` is why this generation is not tried again on this host, empty
    if it may be tried. `policy` is the one in force, None while no proxy runs.
    `as_installed`: the host was compared with what was installed, as payload or configs were not given.
    `unchecked`: nobody has looked at the containers since the proxy's start, which was not ours."""

    plan: Plan
    snapshot: HostSnapshot
    base_endpoint: str = ""
    payload_version: str = ""
    remembered_failure: str = ""
    policy: PolicyInForce | None = None
    as_installed: bool = False
    unchecked: bool = False
