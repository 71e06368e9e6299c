"""What cri-resmgr's cache and the policy that counts mean for this run. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from installer.header import without_header
from installer.inputs.configs import DEFAULT_FALLBACK
from installer.inputs.policy import agent_policy, next_policy
from installer.model import paths
from installer.model.change import Changes, FileChange
from installer.model.finding import Finding, refusal, warning
from installer.model.policy import Repinning
from installer.model.proxy_cache import ProxyCache
from installer.model.snapshot import HostSnapshot, RunningContainer
from installer.pinning.adopt import divide

if TYPE_CHECKING:
    from installer.inputs.load import Inputs

_CONTAINERS_NAMED = 10
_OLD_NAME = warning(
    "accept-repinning",
    "proxy.acceptRepinning is an old setting: it lets a policy take CPUs and weight from running containers",
    "take it out of the settings: proxy.strangers decides, and adopt, its default, takes no weight",
)


def check_empty(inputs: Inputs, changes: Changes) -> Iterable[Finding]:
    """A directory of configs that is there and holds none."""
    request, configs = inputs.request, inputs.configs
    given = (configs.fallback, configs.force, configs.extra_options)
    if request.configs is None or any(content is not None for content in given):
        return
    message = f"--configs {request.configs} is empty, which means no configs: the policy none"
    lost = [change.path for change in changes.files if change.path in paths.CONFIG_FILES and _says(change)]
    if lost:
        hint = (
            "if that is not meant, put the configs there (in a pod: look at the ConfigMap and its keys); "
            "if it is, --default-configs says so"
        )
        yield warning("configs-empty", f"{message}. This node has had others: {', '.join(lost)}", hint)


def _says(change: FileChange) -> bool:
    """Whether it takes a configuration of ours away that is not the default."""
    before = change.before.content or b""
    return without_header(before) not in (before, DEFAULT_FALLBACK)


def check_cache(inputs: Inputs, cache: ProxyCache, *, clears_agent: bool) -> Iterable[Finding]:
    """`clears_agent`: the agent's configuration is cleared by this run."""
    if cache.torn:
        yield warning(
            "torn-cache",
            f"cri-resmgr's cache ({paths.PROXY_CACHE}) is torn, as a power loss may leave it: no start of "
            f"the proxy can read it. It is kept as {paths.TORN_CACHE} when the proxy is restarted",
            "the proxy then knows no container that runs, as after a first install",
        )
    if inputs.configs.force is not None or not cache.agent:
        return
    policy = agent_policy(cache)
    if not inputs.request.settings.configs.reset_cached:
        yield warning(
            "cached-configuration",
            f"cri-resmgr's cache ({paths.PROXY_CACHE}) holds a configuration from its agent (policy "
            f"{policy}), and that one takes precedence: fallback.cfg has no effect on this node",
            "set configs.resetCached: true to clear it, or use force.cfg",
        )
    elif clears_agent:
        yield warning(
            "reset-cached",
            f"configs.resetCached: the configuration from cri-resmgr-agent (policy {policy}) is cleared, and "
            "the proxy restarts; each time that the agent sends one, this happens again",
            "take the agent's ConfigMap away, or set proxy.agent: disabled",
        )
    else:
        yield warning(
            "reset-in-vain",
            f"configs.resetCached: cri-resmgr-agent has sent again what was cleared (policy {policy}); "
            "fallback.cfg has no effect on this node, and `run` does not clear the same once more",
            "take the agent's ConfigMap away, or set proxy.agent: disabled; `install` by hand clears it",
        )


def check_repinning(inputs: Inputs, snapshot: HostSnapshot, *, clears_agent: bool) -> Iterable[Finding]:
    """Containers that a start of the proxy would pin anew. `clears_agent` as in `check_cache`."""
    settings = inputs.request.settings.proxy
    policy = next_policy(inputs.configs, snapshot.cache, clears_agent=clears_agent)
    adoptable, others = divide(snapshot.probe.containers if snapshot.probe else (), snapshot.cache)
    adopts = settings.strangers == "adopt"
    strangers = [one for one, _why in others] + ([] if adopts else adoptable)
    if settings.accept_repinning:
        yield _OLD_NAME
    if policy.repins is Repinning.NOTHING or not strangers:
        return
    cut = policy.repins is Repinning.CPUS_AND_WEIGHT
    message = (
        f"the policy {policy.name} (from {policy.source}) would at once re-pin {_counted(len(strangers))} "
        "that were not created through the proxy, or that its cache does not know"
        + (", and cut their CPU weight to the minimum" if cut else "")
        + f", until they are recreated: {_named(strangers)}"
    )
    if settings.accept_repinning:
        yield warning("repinning", message, "")
        return
    reasons = "; ".join(sorted({why for _one, why in others}))
    yield refusal(
        "repinning",
        message,
        _what_helps(settings.strangers, reasons),
    )


def _what_helps(strangers: str, reasons: str) -> str:
    if strangers != "adopt":
        return (
            "proxy.strangers: adopt tells the proxy what they were created with, so that they keep their "
            "weight; or install with the policy none and recreate their pods"
        )
    return (
        f"they cannot be adopted: {reasons}. Install with the policy none and recreate their pods: what is "
        "created through the proxy is known to it"
    )


def _counted(number: int) -> str:
    return f"{number} running container" + ("s" if number != 1 else "")


def _named(containers: list[RunningContainer]) -> str:
    names = sorted(one.title for one in containers)
    more = len(names) - _CONTAINERS_NAMED
    return ", ".join(names[:_CONTAINERS_NAMED]) + (f" and {more} more" if more > 0 else "")
