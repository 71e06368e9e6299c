"""Finds an installation of cri-resmgr that is not ours. Only reads.

Known are upstream's release archive, which the Gardener extension's shell installer copies, and upstream's
packages (unit and environment file elsewhere), unpacked by hand: whatever is there is told from the proxy's
unit.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from installer.errors import InstallerError
from installer.host.ports import Files
from installer.model import paths
from installer.model.resource import Kind, ProcessState, last_flag
from installer.model.snapshot import HostSnapshot, UnitText
from installer.model.takeover import Earlier
from installer.record.schema import state_below
from installer.systemd_syntax.unit_file import parse_exec, parse_unit
from installer.takeover.repair import Repaired, names_relay, repair_base, ties_of, with_texts

if TYPE_CHECKING:
    from installer.inputs.settings import Settings

_DEFAULT_RUNTIME = "/var/run/containerd/containerd.sock"  # cri-resmgr's own, without --runtime-socket
_PROGRAM = "cri-resmgr"
_OUR_MARK = "cri-resmgr-installer"
_MARK_WITHIN = 512  # characters: our header is the first or second line
_SAMPLE = "/etc/cri-resmgr/fallback.cfg.sample"
_TREES = ("/opt/intel/licenses/cri-resource-manager", "/opt/intel/share/doc/cri-resource-manager")
_PACKAGED = re.compile(r"/(?:etc/(?:default|sysconfig)/cri-res|(?:usr/)?(?:local/)?(?:bin|sbin)/cri-resmgr)")


def find_earlier(
    files: Files, snapshot: HostSnapshot, settings: Settings, claimed: Collection[str]
) -> Earlier | None:
    """The installation that is not ours, or None. `claimed` are the paths that are.

    Raises OSError.
    """
    on_relay = names_relay(snapshot.base)
    unit = _foreign_unit(files, snapshot, claimed)
    if unit is None and not on_relay:
        return None
    on_relay = on_relay or snapshot.kubelet.on_relay
    endpoint = _runtime(snapshot.proxy.process, settings)
    repaired = repair_base(snapshot.base, endpoint) if endpoint else Repaired({})
    found = list(_candidates(unit)) if unit else []
    states = {path: files.state(path) for path in (*found, *repaired.texts)}
    present = {path: state for path, state in states.items() if state.kind is not Kind.ABSENT}
    return Earlier(
        unit_file=unit.path if unit else "",
        on_relay=on_relay,
        sources=repaired.sources,
        endpoint=f"unix://{paths.normalise_endpoint(endpoint)}" if endpoint else "",
        repairs={path: text.encode("utf-8", "surrogateescape") for path, text in repaired.texts.items()},
        files=tuple(path for path in found if path in present),
        trees=tuple(tree for tree in _TREES if files.state(tree).kind is Kind.DIRECTORY) if unit else (),
        lost=repaired.lost,
        returned=repaired.returned,
        obstacles=tuple(
            f"{path} is a {state.kind.value}, not a file"
            for path, state in present.items()
            if state.kind is not Kind.FILE
        ),
        ties=(
            *(ties_of(with_texts(snapshot.base, repaired.texts)) if endpoint else ()),
            *_required_by_link(files, settings.kubelet.unit),
        ),
    )


def _required_by_link(files: Files, kubelet_unit: str) -> Iterable[str]:
    """The links that systemd makes for `RequiredBy=` in the proxy's unit."""
    for directory in paths.UNIT_DIRECTORIES:
        link = f"{directory}/{kubelet_unit}.requires/{paths.PROXY_UNIT}"
        if state_below(files, link).kind is not Kind.ABSENT:
            yield f"the link {link}"


def _foreign_unit(files: Files, snapshot: HostSnapshot, claimed: Collection[str]) -> UnitText | None:
    """The proxy's unit, if it runs cri-resmgr and is not ours."""
    for path in dict.fromkeys((snapshot.proxy.unit.fragment_path, paths.PROXY_UNIT_FILE)):
        if not path or path in claimed or path not in _unit_paths():
            continue
        try:
            raw = files.read(path)
        except InstallerError:  # a link leads out of the host root
            continue
        text = raw.decode("utf-8", "surrogateescape") if raw else ""
        if _OUR_MARK not in text[:_MARK_WITHIN] and _PROGRAM in _exec_start(UnitText(path, text)):
            return UnitText(path, text)
    return None


def _unit_paths() -> tuple[str, ...]:
    return tuple(f"{directory}/{paths.PROXY_UNIT}" for directory in paths.UNIT_DIRECTORIES)


def _exec_start(unit: UnitText) -> str:
    """The name of the program that the unit runs; empty if it runs none."""
    lines = [line for line in parse_unit(unit) if (line.section, line.key) == ("Service", "ExecStart")]
    try:
        return posixpath.basename(parse_exec(lines[-1]).words[0]) if lines else ""
    except ValueError:
        return ""


def _candidates(unit: UnitText) -> Iterable[str]:
    """Where that installation may have files: upstream's places, and what its unit names in a package's."""
    upstream = (
        paths.BINARY,
        paths.PROXY_UNIT_FILE,
        paths.PROXY_ENVIRONMENT,
        *paths.CONFIG_FILES,
        _SAMPLE,
    )
    named = []
    for line in parse_unit(unit):
        if line.section == "Service" and line.key in ("ExecStart", "EnvironmentFile"):
            words = line.value.lstrip("@-:+!").split()
            named += words[:1] if words and _PACKAGED.match(words[0]) else []
    return dict.fromkeys((*upstream, unit.path, *named))


def _runtime(process: ProcessState | None, settings: Settings) -> str:
    """Where the real runtime listens: what settings say, or the running proxy's own command line."""
    wanted = settings.proxy.runtime_endpoint
    if wanted != "auto":
        return wanted
    if process is None:
        return ""
    # Go's flags take one hyphen or two.
    argv = tuple(f"-{word}" if re.match(r"-[a-z]", word) else word for word in process.argv)
    return last_flag(argv, "--runtime-socket") or _DEFAULT_RUNTIME
