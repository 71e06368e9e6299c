"""Puts the desired state together. Pure; what it needs to know about the host is in the facts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from installer.desired.kubelet import kubelet_resources
from installer.desired.proxy import proxy_resources
from installer.errors import UnservableHostError
from installer.kubelet import Refusal, base_endpoint, choose_strategy
from installer.model.facts import Facts
from installer.model.paths import RELAY_ENDPOINT, same_endpoint
from installer.model.state import Desired

if TYPE_CHECKING:
    from installer.inputs.configs import Configs
    from installer.inputs.payload import Payload
    from installer.inputs.settings import Settings


def build_desired(settings: Settings, facts: Facts, configs: Configs, payload: Payload) -> Desired:
    """Everything that should be there for `install`.

    Files are in the order of writing: what a unit starts before the unit that
    starts it. Raises UnservableHostError for a kubelet that cannot be served
    (preflight has said so before, with everything else it found).
    """
    endpoint = runtime_endpoint(settings, facts)
    choice = choose_strategy(facts.kubelet, settings)
    for refusal in (endpoint, choice):
        if isinstance(refusal, Refusal):
            raise UnservableHostError(refusal.message, refusal.hint)
    assert not isinstance(endpoint, Refusal)
    assert not isinstance(choice, Refusal)
    proxy_files, proxy = proxy_resources(settings, configs, payload, endpoint)
    kubelet_files, kubelet = kubelet_resources(settings, facts.kubelet.detail, choice)
    return Desired((*proxy_files, *kubelet_files), proxy, kubelet)


def runtime_endpoint(settings: Settings, facts: Facts) -> str | Refusal:
    """Where the proxy finds the runtime: what settings say, or what kubelet uses without us."""
    wanted = settings.proxy.runtime_endpoint
    if wanted == "auto":
        return base_endpoint(facts.kubelet)
    if same_endpoint(wanted, RELAY_ENDPOINT):
        return Refusal(
            "runtime-is-relay",
            "proxy.runtimeEndpoint is the relay itself",
            "give it the endpoint of the container runtime, or `auto`",
        )
    return wanted
