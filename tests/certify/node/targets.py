"""What is asked of a node: installations by their inputs, and the removal. And what was installed before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha256
from math import inf
from pathlib import Path
from typing import Literal

from installer.inputs.load import Request
from installer.inputs.settings import KubeletSettings, ProxySettings, Settings
from installer.model import paths
from installer.model.names import Mode
from tests.faults.disks.crash import Tree
from tests.faults.disks.node import (
    BASE_ENVIRONMENT,
    RUNTIME,
    bare_node,
    earlier_node,
    node_after_takeover,
    packaged_node,
    program,
)

_TOPOLOGY = "policy:\n  Active: topology-aware\n  ReservedResources:\n    cpu: 750m\n"
_BALLOONS = "policy:\n  Active: balloons\n"
_NONE = "policy:\n  Active: none\n"
_FORCE = "policy:\n  Active: none\nlogger:\n  Debug: cache\n"
_EXTRA = 'EXTRA_OPTIONS="--metrics-interval 30s"\n'


@dataclass(frozen=True, slots=True)
class Target:
    """An installation by the program's version, the configs and a setting; `version` None: the removal."""

    name: str
    version: str | None = "one"
    configs: tuple[tuple[str, str], ...] = (("fallback.cfg", _TOPOLOGY),)
    works: bool = True
    guard_seconds: int = 15
    takes_over: bool = False
    adopts: bool = True
    agent: Literal["enabled", "disabled"] = "enabled"
    asks: str = ""
    restarts_left: float = inf

    @property
    def removes(self) -> bool:
        return self.version is None

    def request(self, directory: Path, *, unattended: bool = False) -> Request:
        """With its payload and configs below `directory`, where they are made once."""
        made = directory / sha256(repr((self.version, self.works, self.configs)).encode()).hexdigest()
        binary, configs = made / paths.BINARY[1:], made / "configs"
        if not made.exists():
            binary.parent.mkdir(parents=True)
            binary.write_bytes(program(self.version or "one", works=self.works))
            binary.chmod(0o755)
            configs.mkdir()
            for name, content in self.configs:
                (configs / name).write_text(content)
        kubelet = KubeletSettings(settle_seconds=1, guard_seconds=self.guard_seconds)
        mode = Mode.REMOVE if self.removes else Mode.INSTALL
        existing: Literal["adopt", "refuse"] = "adopt" if self.adopts else "refuse"
        proxy = ProxySettings(existing_containers=existing, agent=self.agent)
        settings = Settings(kubelet=kubelet, proxy=proxy)
        request = Request(mode, settings, made, configs, unattended=unattended, take_over=self.takes_over)
        return replace(request, ask_first=self.asks, restarts_left=self.restarts_left)


INSTALL = Target("install")
POLICY = Target("other policy", configs=(("fallback.cfg", _BALLOONS),))
FORCED = Target("forced", configs=(("force.cfg", _NONE), ("EXTRA_OPTIONS.cfg", _EXTRA)))
REREAD = Target("reread", configs=(("force.cfg", _FORCE), ("EXTRA_OPTIONS.cfg", _EXTRA)))
UPGRADE = Target("upgrade", "two")
SETTINGS = Target("other settings", guard_seconds=20)
BAD = Target("bad upgrade", "three", works=False)
TAKEOVER = Target("takeover", takes_over=True)
BAD_TAKEOVER = Target("bad takeover", "three", works=False, takes_over=True)
REFUSING = Target("refusing", adopts=False)
WITHOUT_AGENT = Target("without its agent", agent="disabled")
ASKING = Target("asking", "two", asks="restarts")
ASKING_FOR_ALL = Target("asking for all", "two", asks="all")
NO_RESTART_LEFT = Target("no restart left", "two", restarts_left=0)
REMOVAL = Target("removal", None)
TARGETS = (INSTALL, POLICY, FORCED, UPGRADE, BAD, REMOVAL)


@dataclass(frozen=True, slots=True)
class Former:
    """What was on the node: files of other people, and the installations that followed."""

    bare: Callable[[], Tree]
    installed: tuple[Target, ...] = ()


def clean_node() -> Tree:
    """A node that nobody has had anything at our paths on."""
    taken = (paths.FALLBACK_CONFIG, paths.PROXY_ENVIRONMENT, "/etc/cri-resmgr")
    return {path: entry for path, entry in bare_node().items() if path not in taken}


FORMERS = {
    "installed": Former(bare_node, (INSTALL,)),
    "nothing": Former(bare_node),
    "a clean node": Former(clean_node),
    "forced": Former(clean_node, (INSTALL, FORCED)),
}


def unused_node() -> Tree:
    """Upstream's release, and a kubelet that does not use it."""
    kubelet = "/etc/default/kubelet"
    return {**earlier_node(), kubelet: bare_node()[kubelet]}


#: Of which not every start is tried.
RARE = {
    "earlier": Former(earlier_node),
    "packaged": Former(packaged_node),
    "unused": Former(unused_node),
    "taken over": Former(earlier_node, (TAKEOVER,)),
}


def without_earlier(disk: Tree) -> Tree:
    """What a removal leaves of it, once an earlier installation on it was taken over; any other as it is."""
    found = disk.get(paths.BINARY)
    if found is None or found.content != program("theirs"):
        return disk
    kubelet = disk[BASE_ENVIRONMENT]
    own = {path: entry for path, entry in disk.items() if path.startswith("/usr") and entry.kind == "d"}
    repaired = kubelet.content.replace(paths.RELAY_ENDPOINT.encode(), RUNTIME.encode())
    return {**node_after_takeover(), **own, BASE_ENVIRONMENT: replace(kubelet, content=repaired)}
