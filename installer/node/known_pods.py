"""Which pods the proxy does not know.

cri-resmgr lists the pods of the runtime only when it starts; later it learns of those that are made through
its relay. In any other pod it refuses each container for as long as it lives ("can't find cached pod"). While
kubelet is on its base endpoint, it makes pods beside a proxy that runs. So after kubelet has moved, when no
pod can be made elsewhere, the runtime's pods are compared with the proxy's cache, and the proxy starts again
if it does not know one: that takes it 0.1 to 0.2 s.

Until that has been done, `containers-unknown` says that there may be such pods and containers. The guard
writes it when it starts kubelet on its base endpoint, a run before it moves kubelet to the relay. As long as
it lies there, the guard starts kubelet on its base endpoint, unless a run has announced that start.

cri-resmgr saves its cache when it starts, and exits if it cannot. Later it ignores that, as on a full disk:
then the cache lacks what it knows, and a start would be its last. So times decide: it has listed what is
older than its start, and since kubelet started on the relay, the relay has made all pods.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from math import inf

from installer.errors import InstallerError, StepFailedError, UnservableHostError
from installer.host.ports import Files, Host
from installer.host.runtime_directory import make_runtime_directory
from installer.model import paths
from installer.model.event import name_some
from installer.model.host import ProxySnapshot
from installer.model.proxy import CACHE_NEEDED, NO_CACHE
from installer.node.pinning import read_cache

_BIRTH = 3.0  # seconds from a pod that the runtime lists to its entry in the cache, if its relay makes it
_MADE = 5.0  # seconds that the runtime may need for a sandbox: until then it is not listed
_POLL = 0.2  # seconds
_SOME = 3  # pods named in a message


def find_unknown(host: Host, endpoint: str) -> tuple[str, ...]:
    """`namespace/name` of each pod that the proxy does not know, of the runtime at `endpoint`. One that is
    being made through the relay is known a moment later. Raises StepFailedError if that cannot be told,
    OSError."""
    unknown, deadline = _unknown(host, endpoint), host.clock.monotonic() + _BIRTH
    while unknown and host.clock.monotonic() < deadline:
        host.clock.sleep(_POLL)
        now = _unknown(host, endpoint)
        unknown = {pod: title for pod, title in now.items() if pod in unknown}
    return tuple(sorted(unknown.values()))


def _unknown(host: Host, endpoint: str) -> dict[str, str]:
    """The pods are listed first: then the cache has each of them that was made through the relay."""
    listed, cache = host.cri.pods(endpoint), read_cache(host.files)
    if listed and (cache == NO_CACHE or cache.torn):
        raise StepFailedError("the proxy's cache cannot be read", interfered=True)
    unknown = {pod: one for pod, one in listed.items() if pod not in cache.pods}
    since, until = _beside(host) if unknown else (0.0, inf)
    return {pod: one.title for pod, one in unknown.items() if since <= one.created <= until}


def _beside(host: Host) -> tuple[float, float]:
    """Between which times a pod may have been made beside the proxy: any, as long as the proxy saves its
    cache, or if the clock was set back. It creates the relay's socket before it lists the pods."""
    started, moved = (
        host.files.status(each, follow=True) for each in (paths.RELAY_SOCKET, paths.RELAY_START)
    )
    now = datetime.fromisoformat(host.clock.now()).timestamp()
    if can_save(host.files) or not started or started.st_mtime > now + 1:  # `now`: whole seconds
        return 0.0, inf
    return started.st_mtime - _MADE, moved.st_mtime + _MADE if moved else inf


def can_save(files: Files) -> bool:
    """Whether the proxy can save its cache. It writes it aside; what a failed write has left stays there."""
    directory = paths.PROXY_STATE[0]
    full = files.free_bytes(directory) < CACHE_NEEDED or files.unwritable(directory)
    return not full and files.status(f"{paths.PROXY_CACHE}.saving") is None


def look_for_unknown(host: Host, proxy: ProxySnapshot) -> tuple[str, ...] | None:
    """As `find_unknown`, of the runtime that a running proxy serves; None if that cannot be told."""
    endpoint = proxy.process.flag("--runtime-socket") if proxy.process else None
    if endpoint and proxy.relay_answers:
        with suppress(InstallerError, OSError):
            return find_unknown(host, endpoint)
    return None


def why_unknown(pods: tuple[str, ...]) -> str:
    """In words, of the proxy."""
    what = "a pod" if len(pods) == 1 else f"{len(pods)} pods"
    return f"it does not know {what} ({name_some(pods, _SOME)}), in which no container can be created"


def announce_kubelet(files: Files, *, moves: bool) -> None:
    """Tell the guard that the next start of kubelet is ours and may use the relay, which has answered: the
    guard's count of failures ends. If it `moves` kubelet there, what kubelet makes until then is compared
    afterwards, by the next run if this one is killed. If no file can be written, kubelet starts on its base
    endpoint."""
    with suppress(OSError, UnservableHostError):
        files.remove_tree(paths.RELAY_FAILURES)
        make_runtime_directory(files)
        if moves:
            files.write(paths.CONTAINERS_UNKNOWN, b"", 0o644)
        files.write(paths.KUBELET_START_OURS, b"", 0o644)
