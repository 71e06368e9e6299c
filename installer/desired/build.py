"""Puts the desired state together. Pure: everything about the host is in the analysis and in `detail`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from installer.desired.kubelet import kubelet_resources
from installer.desired.proxy import proxy_resources
from installer.header import digest_of
from installer.kubelet.analysis import KubeletAnalysis
from installer.kubelet.drop_in import in_directory
from installer.kubelet.strategy import Choice
from installer.model import paths
from installer.model.resource import UnitDetail
from installer.model.state import Desired, Mode, Strategy

if TYPE_CHECKING:
    from installer.inputs.configs import Configs
    from installer.inputs.load import Inputs
    from installer.inputs.payload import Payload
    from installer.inputs.settings import Settings


_NAME_LENGTH = 12  # characters, of a name that people read
# A node like any other, for what is the same on all of them.
_ANY_ENDPOINT = "unix:///run/containerd/containerd.sock"
_ANY_CHOICE = Choice(Strategy.ENVIRONMENT, "KUBELET_EXTRA_ARGS", "")


def fleet_generation(inputs: Inputs) -> str:
    """The name of what a fleet is given, the same on all nodes: a digest of every file as a node like any
    other gets it (payload, configs, guard, unit, drop-in), so that an installer that writes other files
    begins on canaries, too; and of the settings that another kind of node feels. A setting at its default
    adds nothing: a new one makes no new generation. Empty for a removal."""
    if inputs.payload is None or inputs.request.mode is Mode.REMOVE:
        return ""
    settings = in_directory(inputs.request.settings, paths.USUAL_UNITS)  # which differs from node to node
    proxy_files, _proxy = proxy_resources(settings, inputs.configs, inputs.payload, _ANY_ENDPOINT)
    kubelet_files, _kubelet = kubelet_resources(settings, UnitDetail(), _ANY_CHOICE)
    digests = (f"{file.path} {file.digest}" for file in (*proxy_files, *kubelet_files))
    given = settings.model_dump_json(
        include={"proxy": True, "configs": True, "kubelet": True},
        exclude={"kubelet": {"drop_in_directory"}},
        exclude_defaults=True,
    )
    return digest_of(*digests, given)[:_NAME_LENGTH]


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
