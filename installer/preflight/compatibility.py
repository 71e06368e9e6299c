"""What kubelet's version, the proxy's and their CRI mean for each other: said before it hurts.

The table is in docs/operations.md ("Versions that go together"). cri-resmgr speaks the CRI of Kubernetes
1.29; what is newer does not pass through it, in either direction.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from installer.host.ports import RuntimeStatus
from installer.model.finding import Finding, refusal, warning

_MINOR = re.compile(r"v?1\.([0-9]+)\.")
_RELEASE = re.compile(r"v?([0-9]+)\.([0-9]+)")
_CRI_OF_THE_PROXY = 29  # Kubernetes 1.29
_RESIZE = 35  # in-place pod resize is general from Kubernetes 1.35 on
_NEEDS_RUNTIME_CONFIG = 38  # kubelet's fallback without the CRI call RuntimeConfig ends in 1.38
_RELAYS_RUNTIME_CONFIG = (0, 9)  # cri-resmgr 0.9


def check_versions(
    kubelet: str, proxy: str, newer_status: Sequence[str] = (), *, restarts: bool, moves: bool
) -> Iterable[Finding]:
    """`kubelet` and `proxy` are versions as the programs say them, empty if unknown: nothing is said then.
    `newer_status` are the parts of the runtime's Status that the proxy drops. `restarts`: kubelet starts
    anew; `moves`: from its base endpoint to the relay, which is when an operator can still decide."""
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
        yield warning(
            "in-place-resize",
            f"kubelet {kubelet} resizes pods in place, and behind the proxy that has no effect, without an "
            "error: cri-resmgr accepts kubelet's updates and drops them",
            "recreate pods instead of resizing them on these nodes",
        )
    if moves and minor > _CRI_OF_THE_PROXY:
        dropped = f", here the runtime's {' and '.join(newer_status)}" if newer_status else ""
        yield warning(
            "newer-cri",
            f"kubelet {kubelet} is newer than the CRI of cri-resmgr (Kubernetes 1.{_CRI_OF_THE_PROXY}): "
            f"fields and calls that came later do not pass through it{dropped}",
            "docs/operations.md has the table; try pods that use newer features on one node first",
        )


def differences(direct: RuntimeStatus, relayed: RuntimeStatus) -> Iterable[Finding]:
    """What the runtime says of itself, and what kubelet hears of it through the relay."""
    own, heard = (f"{one.name} {one.version} (CRI {one.api_version})" for one in (direct, relayed))
    if own != heard:
        yield warning(
            "relay-differs",
            f"the runtime says that it is {own}, and through the relay it is {heard}",
            "see which runtime the proxy is connected to: proxy.runtimeEndpoint",
        )
    lost = [part for part in direct.extras if part not in relayed.extras]
    if lost:
        yield warning(
            "relay-drops-status",
            f"the runtime's {' and '.join(lost)} do not come through the relay, so kubelet takes it for one "
            "without them (user namespaces and the like)",
            "pods that need them do not start on this node",
        )
