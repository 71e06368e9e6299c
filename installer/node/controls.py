"""Restore what cri-resmgr has set in the kernel besides containers' CPUs and memory.

The record has the known originals (`Record.controls`). The differences are read again each time, so after a
crash the next run does the rest. What cannot be restored is reported and stops nothing: a CPU frequency must
not keep a node from being removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

from installer.errors import InstallerError
from installer.host.ports import Files, Host
from installer.inputs.policy import controls_of
from installer.model import paths
from installer.model.controls import THROTTLES, WEIGHTS, Control, Originals
from installer.model.event import Emit, Event
from installer.model.host import ABSENT, HostSnapshot, RunningContainer
from installer.model.plan import Desired
from installer.model.proxy import ProxyCache
from installer.node.pinning import read_cache

_CPUS = "/sys/devices/system/cpu"
_UNCORE = f"{_CPUS}/intel_uncore_frequency"
_RESCTRL, _PREFIX = "/sys/fs/resctrl", "cri-resmgr."
_LIMIT = 1 << 16  # bytes of a file in /sys


@dataclass(frozen=True, slots=True)
class Return:
    """One setting to restore."""

    path: str
    value: str | None  # is written to `path`; None: the resctrl group there is removed
    what: str  # for people
    before: str = ""  # the present value, for people

    @property
    def planned(self) -> str:
        if self.value is None:
            return f"remove {self.what}"
        return f"restore {self.what}: {self.before} -> {self.value}"


def _used_before(snapshot: HostSnapshot) -> frozenset[Control]:
    """By the configurations on the host: whatever they set may be set already."""
    contents = (snapshot.files.get(path, ABSENT).content for path in paths.CONFIG_FILES)
    return controls_of(contents, snapshot.cache)


def _used_by(desired: Desired, cache: ProxyCache) -> frozenset[Control]:
    """By the configurations that should be on the host."""
    contents = (file.content for file in desired.files if file.path in paths.CONFIG_FILES)
    return controls_of(contents, cache)


def due_controls(claimed: Originals, desired: Desired, snapshot: HostSnapshot) -> Originals:
    """What to restore once `desired` is in place. A removal also looks for traces of cri-resmgr itself: it
    may have run before originals were kept, or with an agent's configuration."""
    if desired.proxy is None:
        traced = {Control.RESCTRL, Control.CPU_FREQUENCY, *_used_before(snapshot)}
        return {control: claimed.get(control, {}) for control in sorted(traced | claimed.keys())}
    if not claimed:
        return {}
    used = _used_by(desired, snapshot.cache)
    return {control: originals for control, originals in claimed.items() if control not in used}


def claim_controls(claimed: Originals, desired: Desired, snapshot: HostSnapshot, files: Files) -> Originals:
    """`claimed`, plus the originals of what `desired` sets for the first time on this host."""
    used = _used_by(desired, snapshot.cache) - claimed.keys() - _used_before(snapshot)
    return {**claimed, **{control: _originals(control, files) for control in sorted(used)}}


def _originals(control: Control, files: Files) -> dict[str, str]:
    places: Iterable[str] = ()
    if control is Control.CPU_FREQUENCY:
        places = _frequency_limits(_list(files, _CPUS), _list(files, _UNCORE))
    elif control is Control.RESCTRL:
        places = (f"{_RESCTRL}/schemata",)
    return {place: text for place in places if (text := _read(files, place))}


def _frequency_limits(cpus: Iterable[str], dies: Iterable[str] = ()) -> list[str]:
    """The files with the limits of these CPUs, and of the uncore of these dies."""
    of_cpus = [f"{_CPUS}/{name}/cpufreq/scaling_{limit}_freq" for name in cpus for limit in ("min", "max")]
    return of_cpus + [f"{_UNCORE}/{name}/{limit}_freq_khz" for name in dies for limit in ("min", "max")]


def _read(files: Files, path: str) -> str:
    """Empty if there is no file, or if the kernel refuses, as for a CPU that is going offline."""
    try:
        return (files.read(path, _LIMIT) or b"").decode("ascii", "replace").strip()
    except (InstallerError, OSError):
        return ""


def _list(files: Files, path: str) -> tuple[str, ...]:
    try:
        return files.list(path)
    except (InstallerError, OSError):
        return ()


def find_returns(
    files: Files, due: Originals, cache: ProxyCache, containers: Iterable[RunningContainer]
) -> Iterator[Return]:
    """What differs from what was there before cri-resmgr, in the order of restoring."""
    if Control.RESCTRL in due:
        yield from _groups(files)
        yield from _changed(files, due[Control.RESCTRL])
    if Control.CPU_FREQUENCY in due:
        yield from _frequencies(files, due[Control.CPU_FREQUENCY], cache)
    for container in containers if Control.BLOCK_IO in due else ():
        if container.cgroup is not None and container.cgroup.blkio:
            yield from _block_io(files, container, container.cgroup.blkio)


def _groups(files: Files) -> Iterator[Return]:
    """cri-resmgr's groups, monitoring groups first, since removing a control group also removes those in it.
    The kernel moves the tasks of a removed group to its parent."""
    others = [f"{_RESCTRL}/{name}" for name in _list(files, _RESCTRL) if not name.startswith(_PREFIX)]
    for parent in (*(f"{group}/mon_groups" for group in (_RESCTRL, *others)), _RESCTRL):
        for name in _list(files, parent):
            if name.startswith(_PREFIX):
                yield Return(f"{parent}/{name}", None, f"the resctrl group {parent}/{name}")


def _changed(files: Files, originals: Mapping[str, str], remark: str = "") -> Iterator[Return]:
    for path, original in originals.items():
        now = _read(files, path)
        if original and now != original:
            yield Return(path, original, f"{path}{remark}", now or "nothing")


def _frequencies(files: Files, originals: Mapping[str, str], cache: ProxyCache) -> Iterator[Return]:
    """The limits that differ from the originals. Those of a CPU that has a class, but no original (it was
    offline then), are compared with the hardware's."""
    limits = _frequency_limits(f"cpu{cpu}" for cpu in cache.classed)
    unknown = [place for place in limits if place not in originals]
    hardwares = {place: _read(files, place.replace("scaling", "cpuinfo")) for place in unknown}
    yield from _changed(files, originals)
    yield from _changed(files, hardwares, " (original unknown, using the hardware's limit)")


def _block_io(files: Files, container: RunningContainer, cgroup: str) -> Iterator[Return]:
    """What the container's own creation does not have. 0 ends the rate or weight of a device."""
    created = container.created_io
    for name in (*THROTTLES, *(f"{weight}_device" for weight in WEIGHTS)):
        own, place = created.get(name, {}), f"{cgroup}/{name}"
        now = {line.split()[0]: line.split()[-1] for line in _read(files, place).splitlines() if ":" in line}
        for device in sorted(now.keys() | own.keys()):
            wanted, before = own.get(device, "0"), now.get(device, "0")
            if before != wanted:
                what = f"{name} of {device} of {container.title}"
                yield Return(place, f"{device} {wanted}", what, f"{device} {before}")
    for name, default in WEIGHTS.items():
        weight, wanted = _read(files, f"{cgroup}/{name}"), created.get(name, {}).get("", default)
        if weight and weight != wanted:
            yield Return(f"{cgroup}/{name}", wanted, f"{name} of {container.title}", weight)


def return_controls(host: Host, due: Originals, endpoint: str, emit: Emit) -> None:
    """Restore what is `due`, and report it. `endpoint`: where the runtime lists its containers; empty: do not
    ask it."""
    containers: tuple[RunningContainer, ...] = ()
    try:
        containers = host.cri.containers(endpoint) if Control.BLOCK_IO in due and endpoint else ()
    except (InstallerError, OSError) as error:
        _report(Return("", "", "block I/O of the containers"), str(error), emit)
    cache = read_cache(host.files)
    returns = tuple(find_returns(host.files, due, cache, containers))
    refusals: dict[str, str] = {}
    # The kernel refuses a lower limit above the upper one. So what the first round has left is tried again.
    for setting in chain(returns, find_returns(host.files, due, cache, containers)):
        try:
            if setting.value is None:
                host.files.remove_empty_directory(setting.path)
            else:
                host.files.set_value(setting.path, setting.value)
        except (InstallerError, OSError) as error:
            refusals[setting.what] = str(error)
    left = {setting.what: setting.before for setting in find_returns(host.files, due, cache, containers)}
    for setting in returns:
        now = f"it is {left[setting.what]} now" if left.get(setting.what) else "the kernel did not remove it"
        _report(setting, refusals.get(setting.what, now) if setting.what in left else "", emit)


def _report(each: Return, problem: str, emit: Emit) -> None:
    data = {"path": each.path, "code": "controls"}
    if problem:
        message = f"{each.what} could not be restored: {problem}"
        emit(Event("warning", message, {**data, "hint": "it stays until you set it, or until a reboot"}))
    else:
        done = f"{each.what} was removed" if each.value is None else f"{each.what} is {each.value} again"
        emit(Event("controls.returned", done, data))
