"""Gives running containers their CPUs and CPU weight back, straight at the runtime.

Only while the proxy is stopped: it would overwrite all of it. Nothing is remembered: each call looks anew at
what differs, so that after a crash in the middle the next one does the rest, and then nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from installer.errors import InstallerError, UnservableHostError
from installer.host.ports import Files, Host
from installer.model import paths
from installer.model.event import Emit, Event
from installer.model.kubelet_managers import KubeletManagers, parse_managers
from installer.model.proxy_cache import NO_CACHE, ProxyCache, parse_cache
from installer.pinning.reset import Reset, find_resets

CACHE_LIMIT = (
    64 << 20
)  # bytes of the proxy's cache, some 10 KiB for each container: a longer one says nothing


def restore_and_tell(host: Host, endpoint: str, emit: Emit, *, everyone: bool) -> None:
    """As `restore`, told by events. A container that cannot get back what the proxy took is named, and is no
    failure: nor is it if nobody can be asked."""
    try:
        resets = restore(host, endpoint, everyone=everyone)
    except (InstallerError, OSError) as error:
        message = f"no container could get its CPUs and weight back: {error}"
        hint = "they keep what they have until they are recreated"
        emit(Event("warning", message, {"code": "pinned", "hint": hint}))
        return
    for reset in resets:
        data = {"id": reset.container.id, "code": "pinned"}
        if reset.problem:
            hint = "it keeps what it has until it is recreated"
            emit(Event("warning", reset.done, {**data, "hint": hint}))
        else:
            emit(Event("pinning.reset", reset.done, data))


def restore(host: Host, endpoint: str, *, everyone: bool) -> tuple[Reset, ...]:
    """What was done for each container that had not all that it should; `problem` of those that still have
    not. `everyone` as in find_resets. Raises StepFailedError if the runtime cannot be asked."""
    cache, managers = read_cache(host.files), read_managers(host.files)
    resets = find_resets(host.cri.containers(endpoint), cache, managers, everyone=everyone)
    writes = {reset.container.id: reset.write for reset in resets if not reset.problem}
    complaints = host.cri.update(endpoint, writes) if writes else {}
    return tuple(_checked(resets, complaints, host))


def _checked(resets: tuple[Reset, ...], complaints: dict[str, str], host: Host) -> Iterator[Reset]:
    """What the kernel says counts, and not that nobody complained."""
    for reset in resets:
        problem = reset.problem or complaints.get(reset.container.id, "")
        if not problem and (now := host.cri.cgroup(reset.container)) is not None:
            problem = reset.missing(now)
        yield reset.with_problem(problem)


def read_managers(files: Files) -> KubeletManagers:
    """What kubelet's own CPU and memory managers have assigned."""
    try:
        return parse_managers(files.read(paths.CPU_MANAGER_STATE), files.read(paths.MEMORY_MANAGER_STATE))
    except UnservableHostError:  # a link leads out of the host root: nothing that kubelet could read
        return parse_managers(None, None)


def read_cache(files: Files) -> ProxyCache:
    """The proxy's cache; none if it is larger than any that we know."""
    try:
        raw = files.read(paths.PROXY_CACHE, CACHE_LIMIT)
    except UnservableHostError:  # a link leads out of the host root: nothing that our proxy could read
        return NO_CACHE
    return NO_CACHE if raw is not None and len(raw) >= CACHE_LIMIT else parse_cache(raw)
