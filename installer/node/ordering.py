"""Whether our units close an ordering cycle at boot. Read-only.

kubelet waits for the proxy, and the proxy for the runtime. If something makes the runtime wait for kubelet,
no start satisfies all of it, and systemd leaves out one of the units, which may be the runtime or kubelet. So
systemd is asked for the order of what it has loaded. Two units have one only if both are to start.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from installer.host.ports import Systemd
from installer.inputs.systemd_syntax import parse_unit
from installer.model import paths
from installer.model.host import UnitText
from installer.rendering import template_text

_EVERY_SERVICE = ("sysinit.target", "basic.target")  # come before every service (systemd.service(5))
_STARTS = ("Requires", "Requisite", "BindsTo", "Wants", "Upholds")
_MOST = 5_000  # units


def find_cycle(
    systemd: Systemd, kubelet: str, drop_ins: Iterable[UnitText], links: Collection[str]
) -> tuple[str, ...]:
    """The units between the proxy and kubelet in a cycle that our units close or would close: each starts
    after the next one, the last one after kubelet. Empty if there is no cycle. `drop_ins`: other people's, of
    the proxy's unit; `links`: those that go (node/links.py)."""
    unit = UnitText(paths.PROXY_UNIT_FILE, template_text("cri-resource-manager.service.in"))
    lines = [line for text in (unit, *drop_ins) for line in parse_unit(text) if line.section == "Unit"]
    first = [*_EVERY_SERVICE, *(name for line in lines if line.key == "After" for name in line.value.split())]
    later = {name for line in lines if line.key == "Before" for name in line.value.split()}
    ends = {kubelet, paths.PROXY_UNIT, *systemd.related(kubelet, "Names"), *later}

    def after(name: str) -> Iterable[str]:
        """Except where a target waits for the proxy only because a link that goes makes it want that."""
        linked = {f"{paths.LINKS}/{name}.{kind}/{paths.PROXY_UNIT}" for kind in ("wants", "requires")}
        names = systemd.related(name, "After")
        return (other for other in names if other != paths.PROXY_UNIT or not linked & set(links))

    if not _path(first, ends, after):
        return ()
    starting = _reachable(("default.target", kubelet), lambda name: _started_by(systemd, name))

    def after_started(name: str) -> Iterable[str]:
        return (other for other in after(name) if other in starting or other in ends)

    while found := _path((name for name in first if name in starting), ends, after_started):
        # Where the unit file is missing or masked, there is no job, and so no order.
        if not (never := {name for name in found if systemd.unit(name).load_state != "loaded"}):
            break
        starting -= never
    return found


def _started_by(systemd: Systemd, name: str) -> Iterable[str]:
    """Its own name, which `name` may be an alias of, and what starts with it."""
    yield from systemd.related(name, "Names")
    for kind in _STARTS:
        yield from systemd.related(name, kind)


def _path(
    first: Iterable[str], ends: Collection[str], following: Callable[[str], Iterable[str]]
) -> tuple[str, ...]:
    """The shortest way from one of `first` to one of `ends`, without that end; empty if there is none."""
    ways: dict[str, tuple[str, ...]] = {name: (name,) for name in first}
    queue = list(ways)
    for name in queue:
        for other in following(name):
            if other in ends:
                return ways[name]
            if other not in ways and len(ways) < _MOST:
                ways[other] = (*ways[name], other)
                queue.append(other)
    return ()


def _reachable(first: Iterable[str], following: Callable[[str], Iterable[str]]) -> set[str]:
    found = dict.fromkeys(first)
    queue = list(found)
    for name in queue:
        for other in following(name):
            if other not in found and len(found) < _MOST:
                found[other] = None
                queue.append(other)
    return set(found)
