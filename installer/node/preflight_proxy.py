"""Whether cri-resmgr can serve this node: its configuration, the CPUs it asks for, its version and
kubelet's."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from installer.inputs.configs import find_cpu_faults
from installer.inputs.policy import asked_by_agent, policy_in_force
from installer.model import paths
from installer.model.containers import parse_list
from installer.model.event import name_some
from installer.model.host import HostSnapshot, RunningContainer
from installer.model.plan import FileChange, Finding, refusal, warning
from installer.model.proxy import DEFAULT_FALLBACK, POLICIES, Repinning, nano_of
from installer.node.header import without_header
from installer.node.pinning import LOWEST, due_shares

if TYPE_CHECKING:
    from installer.inputs.load import Inputs
    from installer.node.facts import Facts


# Whether the versions of kubelet and the proxy, and their CRI, go together.
#
# The table is in docs/policies.md ("Versions that go together"). cri-resmgr speaks the CRI of Kubernetes
# 1.29; nothing newer passes through it, in either direction.

_MINOR = re.compile(r"v?1\.([0-9]+)\.")
_RELEASE = re.compile(r"v?([0-9]+)\.([0-9]+)")
_CRI_OF_THE_PROXY = 29  # Kubernetes 1.29
_RESIZE = 33  # in-place pod resize is on by default from Kubernetes 1.33 on
_NEEDS_RUNTIME_CONFIG = 38  # kubelet's fallback without the CRI call RuntimeConfig ends in 1.38
_RELAYS_RUNTIME_CONFIG = (0, 9)  # cri-resmgr 0.9


def check_versions(
    kubelet: str,
    proxy: str,
    newer_status: Sequence[str] = (),
    autoscaled: Sequence[str] = (),
    *,
    restarts: bool,
    moves: bool,
) -> Iterable[Finding]:
    """`kubelet` and `proxy` are versions as the programs report them; empty means unknown, and then there is
    no finding. `newer_status`: parts of the runtime's Status that the proxy drops; `autoscaled`: pods whose
    requests a VerticalPodAutoscaler sets. `restarts`: kubelet restarts. `moves`: it moves from its base
    endpoint to the relay, so the operator can still decide."""
    found, release = _MINOR.match(kubelet), _RELEASE.match(proxy)
    if not found:
        return
    minor = int(found[1])
    old = release is not None and (int(release[1]), int(release[2])) < _RELAYS_RUNTIME_CONFIG
    if restarts and minor >= _NEEDS_RUNTIME_CONFIG and old:
        yield refusal(
            "kubelet-too-new",
            f"kubelet {kubelet} does not start without the CRI call RuntimeConfig, which cri-resmgr {proxy} "
            "does not relay",
            "use cri-resmgr 0.9 or later",
        )
    if moves and minor >= _RESIZE:
        of_whom = (
            f"; a VerticalPodAutoscaler sets the requests of {name_some(autoscaled)}" if autoscaled else ""
        )
        yield warning(
            "in-place-resize",
            f"kubelet {kubelet} resizes pods in place, which silently has no effect behind the proxy: "
            f"cri-resmgr accepts kubelet's updates and drops them{of_whom}",
            "recreate pods instead of resizing them on these nodes; a VerticalPodAutoscaler needs the mode "
            "Recreate there, not InPlaceOrRecreate",
        )
    if moves and minor > _CRI_OF_THE_PROXY:
        dropped = f", here the runtime's {' and '.join(newer_status)}" if newer_status else ""
        yield warning(
            "newer-cri",
            f"kubelet {kubelet} is newer than the CRI of cri-resmgr (Kubernetes 1.{_CRI_OF_THE_PROXY}): "
            f"newer fields and calls do not pass through it{dropped}",
            "docs/policies.md has the table; first try pods that use newer features on one node",
        )


# Whether the policy has CPUs for what kubelet has put on the node. Pure.
#
# A policy's capacity is not kubelet's: topology-aware reserves whole CPUs, so with 2 CPUs and 100m reserved
# it has 1,000m where kubelet allocates nearly 2,000m (seen with the real v0.9.2). Containers that it cannot
# place at its start keep all CPUs; those created later fail.

_NAMED, _LONGEST = 5, 120  # containers, and letters of each name
_DOCS = 'docs/policies.md, "A policy\'s capacity"'


def check_placed(snapshot: HostSnapshot) -> Iterable[Finding]:
    """Running containers to which the active policy has given no CPUs, according to the proxy's cache."""
    policy, cached = policy_in_force(snapshot), snapshot.cache.containers
    places = policy is not None and policy.repins is not Repinning.NOTHING
    if policy is None or not places or not any(one.cpus for one in cached.values()):
        return
    left = sorted(one.title or identity for identity, one in cached.items() if not one.cpus)
    if left:
        named = name_some(
            [one if len(one) <= _LONGEST else one[: _LONGEST - 3] + "..." for one in left], _NAMED
        )
        count = f"{len(left)} container{'s' * (len(left) > 1)}"
        yield warning(
            "unplaced",
            f"the policy {policy.name} had no CPUs for {count} ({named}), which use all CPUs now and "
            "fail with CreateContainerError when they are recreated",
            f"give the policy more CPUs, or the node fewer pods ({_DOCS})",
        )


def check_capacity(inputs: Inputs, snapshot: HostSnapshot) -> Iterable[Finding]:
    """Whether the running containers request more than the policy that starts now will have. Their requests
    are derived from the weights that kubelet has set."""
    containers, asked = snapshot.probe.containers if snapshot.probe else (), inputs.configs.asked
    reserved, cpus = nano_of(asked.reserved), _cpus(containers)
    if not POLICIES[asked.policy].whole_cpus or reserved is None or not cpus:
        return
    capacity = 1000 * (cpus - math.ceil(reserved / 10**9))
    shares = (container.asked or due_shares(container) for container in containers if container.pod_uid)
    requested = sum(share * 1000 // 1024 for share in shares if share > LOWEST)
    if requested > capacity:
        yield warning(
            "policy-capacity",
            f"the running containers request {requested}m CPU, but {asked.policy} will have {capacity}m for "
            f"them: {cpus} CPUs minus the whole ones that it takes for {asked.reserved} reserved",
            f"reserve less, run fewer pods, or keep kubelet's allocatable below that ({_DOCS})",
        )


def _cpus(containers: Iterable[RunningContainer]) -> int:
    """How many CPUs the node has, by what its containers may use."""
    free = (container.cgroup.free_cpus for container in containers if container.cgroup is not None)
    try:
        return max((len(parse_list(cpus)) for cpus in free), default=0)
    except ValueError:
        return 0


_CONTAINERS_NAMED = 10


def check_start(facts: Facts) -> Iterable[Finding]:
    """What a start of the proxy would do to the running containers."""
    if facts.starts_proxy and (faults := facts.agent_faults):
        message = f"the proxy would not start with the configuration from its agent: {faults[0]}"
        hint = "correct the agent's ConfigMap, or use a force.cfg, which takes precedence"
        yield refusal("agent-configuration", message, hint)
    if facts.starts_proxy:
        yield from _check_repinning(facts)
        yield from check_capacity(facts.inputs, facts.snapshot)
        for fault in find_cpu_faults(facts.inputs.configs, facts.snapshot.machine.cpus):
            yield refusal(
                "cpus", fault, "name CPUs that each node with these configs has, or exclude the node"
            )
        yield from _check_cgroups(facts)


def check_empty(facts: Facts) -> Iterable[Finding]:
    """A configs directory that exists and is empty."""
    request, configs, changes = facts.inputs.request, facts.inputs.configs, facts.changes
    given = (configs.fallback, configs.force, configs.extra_options)
    if request.configs is None or any(content is not None for content in given):
        return
    message = f"--configs {request.configs} is empty, which means no configs: the policy none"
    configs_changed = (change for change in changes.files if change.path in paths.CONFIG_FILES)
    lost = [change.path for change in configs_changed if _loses_configuration(change)]
    if lost:
        hint = (
            "if that is not intended, put the configs there (in a pod: check the ConfigMap and its keys); "
            "if it is, use --default-configs"
        )
        yield warning("configs-empty", f"{message}. This node had others: {', '.join(lost)}", hint)


def _loses_configuration(change: FileChange) -> bool:
    """Whether it removes a configuration that is not the default."""
    before = change.before.content or b""
    return without_header(before) not in (before, DEFAULT_FALLBACK)


def check_cache(facts: Facts) -> Iterable[Finding]:
    cache = facts.snapshot.cache
    if cache.torn:
        yield warning(
            "torn-cache",
            f"cri-resmgr's cache ({paths.PROXY_CACHE}) is torn, probably by a power loss: no start of the "
            f"proxy can read it. It is moved to {paths.TORN_CACHE} when the proxy is restarted",
            "the proxy then knows no running container, as after a first install",
        )
    if facts.inputs.configs.force is not None or cache.agent is None or facts.forgets_agent:
        return
    policy = asked_by_agent(cache).policy
    yield warning(
        "cached-configuration",
        f"cri-resmgr's cache ({paths.PROXY_CACHE}) holds a configuration from its agent (policy {policy}), "
        "which takes precedence: fallback.cfg has no effect on this node",
        "use force.cfg, which takes precedence over it",
    )


def _check_cgroups(facts: Facts) -> Iterable[Finding]:
    """cri-resmgr reads a pod's QoS class from its cgroup's name. It gives containers of a pod without one the
    lowest weight, whatever kubelet asks for (seen with the real v0.9.2)."""
    policy = facts.asked
    if not facts.kubelet.cgroups_per_qos and policy.repins is Repinning.CPUS_AND_WEIGHT:
        yield refusal(
            "cgroups-per-qos",
            "kubelet has cgroupsPerQOS: false, so its pods have no cgroup of their QoS class: the policy "
            f"{policy.name} would cut the CPU weight of every container to the minimum",
            "set cgroupsPerQOS: true in kubelet's configuration (and drain the node), or use a policy that "
            "leaves weights alone: none, balloons, podpools",
        )


def _check_repinning(facts: Facts) -> Iterable[Finding]:
    """Containers that a start of the proxy would re-pin."""
    policy, (adoptable, others) = facts.asked, facts.unknown
    adopts = facts.settings.proxy.existing_containers == "adopt"
    repinned = [one for one, _why in others] + ([] if adopts else adoptable)
    if policy.repins is Repinning.NOTHING or not repinned:
        return
    cut = policy.repins is Repinning.CPUS_AND_WEIGHT
    some = f"{len(repinned)} running container{'s' * (len(repinned) > 1)}"
    named = name_some(sorted(one.title for one in repinned), _CONTAINERS_NAMED)
    message = (
        f"the policy {policy.name} (from {policy.source}) would immediately re-pin {some} "
        "created outside the proxy or missing from its cache"
        + (", and cut the CPU weight to the minimum" if cut else "")
        + f" until they are recreated: {named}"
    )
    if adopts:
        reasons = "; ".join(sorted({why for _one, why in others}))
        hint = (
            f"they cannot be adopted: {reasons}. Install with the policy none and recreate their pods: the "
            "proxy knows what is created through it"
        )
    else:
        hint = (
            "set proxy.existingContainers: adopt, which lets them keep their weight; or install with the "
            "policy none and recreate their pods"
        )
    yield refusal("repinning", message, hint)
