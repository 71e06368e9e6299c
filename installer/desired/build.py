"""Puts the desired state together. Pure: everything about the host is in the analysis and in `detail`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from installer.desired.kubelet import kubelet_resources
from installer.desired.proxy import proxy_resources
from installer.kubelet.analysis import KubeletAnalysis
from installer.model.resource import UnitDetail
from installer.model.state import Desired

if TYPE_CHECKING:
    from installer.inputs.configs import Configs
    from installer.inputs.payload import Payload
    from installer.inputs.settings import Settings


def build_desired(
    settings: Settings, configs: Configs, payload: Payload, kubelet: KubeletAnalysis, detail: UnitDetail
) -> Desired:
    """Everything that should be there for `install`; nothing if kubelet cannot be served.

    Files are in the order of writing: what a unit starts before the unit that starts it.
    """
    endpoint = runtime_endpoint(settings, kubelet)
    if kubelet.refusals or kubelet.choice is None or not endpoint:
        return Desired()
    proxy_files, proxy = proxy_resources(settings, configs, payload, endpoint)
    kubelet_files, wanted = kubelet_resources(settings, detail, kubelet.choice)
    return Desired((*proxy_files, *kubelet_files), proxy, wanted)


def runtime_endpoint(settings: Settings, kubelet: KubeletAnalysis) -> str:
    """Where the proxy finds the runtime: what settings say, or kubelet's base endpoint; empty if unknown."""
    wanted = settings.proxy.runtime_endpoint
    return kubelet.endpoint if wanted == "auto" else wanted
