"""The few settings that the resident itself needs, as a child tells them: loading them costs 10 MB."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from installer.model.state import Mode


@dataclass(frozen=True, slots=True)
class Configuration:
    """Times in seconds. `good_seconds`: how long a relay has to be good before kubelet goes back to it.
    `listen`: host:port of the pages, or nothing."""

    mode: Mode = Mode.INSTALL
    kubelet_unit: str = "kubelet.service"
    drop_in_directory: str = "/etc/systemd/system"
    dead_seconds: float = 20.0
    restarts_per_hour: int = 3
    remove_on_evidence: bool = False
    spread_seconds: float = 0.0
    good_seconds: float = 60.0
    listen: str = ""


def build_configuration(document: Mapping[str, Any], good_seconds: float) -> Configuration:
    """From the settings as they stand in the operator's file, defaults filled in."""
    kubelet, removal = document["kubelet"], document["removal"]
    return Configuration(
        mode=Mode(document["mode"]),
        kubelet_unit=kubelet["unit"],
        drop_in_directory=kubelet["dropInDirectory"],
        dead_seconds=float(document["proxy"]["deadSeconds"]),
        restarts_per_hour=kubelet["restartsPerHour"],
        remove_on_evidence=removal["onTermination"] == "auto",
        spread_seconds=float(document["rollout"]["spreadSeconds"]),
        good_seconds=good_seconds,
        listen=document["status"]["listen"],
    )
