"""The links in systemd's own directory by which units start the proxy's unit, or give it another name.

Ours needs none: the drop-in of kubelet's unit wants it. A link of multi-user.target would order that target
after the proxy, and so after the runtime; on a host whose runtime starts later, this is a cycle, and systemd
breaks a cycle by leaving out one of its units, which may be the runtime.
"""

from __future__ import annotations

import posixpath

from installer.host.ports import Files, Host
from installer.model import paths
from installer.model.host import FileState, Kind, Part
from installer.model.plan import Plan, Step

_DIRECTORIES = (".wants", ".requires", ".upholds")


def find_directories(files: Files) -> tuple[str, ...]:
    """Those in which the links of units lie."""
    return tuple(f"{paths.LINKS}/{name}" for name in files.list(paths.LINKS) if name.endswith(_DIRECTORIES))


def find_links(files: Files) -> dict[str, FileState]:
    """Those that `systemctl disable` would delete, by path."""
    names = files.list(paths.LINKS)
    found = {f"{paths.LINKS}/{name}/{paths.PROXY_UNIT}" for name in names if "." in name}
    found |= {f"{paths.LINKS}/{name}" for name in names if name != paths.PROXY_UNIT}
    states = {path: files.state(path) for path in sorted(found)}
    return {
        path: state
        for path, state in states.items()
        if state.kind is Kind.SYMLINK
        and paths.PROXY_UNIT in (posixpath.basename(path), posixpath.basename(state.target))
    }


def disable(host: Host, plan: Plan, _step: Step) -> None:
    """Delete them one by one: systemd would leave those of a masked unit, disable units that `Also=` names,
    and sync nothing (252, seen with strace). The directory of a link is claimed before, and deleted with the
    record if it is empty."""
    unit = plan.changes.unit(Part.PROXY)
    for path in find_links(host.files).keys() - (unit.kept_links if unit else ()):
        host.files.remove(path)
