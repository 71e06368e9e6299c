"""What is asked of a node: installations by their inputs, and the removal. And what was installed before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from installer.inputs.load import Request
from installer.inputs.settings import KubeletSettings, Settings
from installer.model import paths
from installer.model.names import Mode
from tests.faults.disks.crash import Tree
from tests.faults.disks.node import bare_node, program

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
        return Request(mode, Settings(kubelet=kubelet), made, configs, unattended=unattended)


INSTALL = Target("install")
POLICY = Target("other policy", configs=(("fallback.cfg", _BALLOONS),))
FORCED = Target("forced", configs=(("force.cfg", _NONE), ("EXTRA_OPTIONS.cfg", _EXTRA)))
REREAD = Target("reread", configs=(("force.cfg", _FORCE), ("EXTRA_OPTIONS.cfg", _EXTRA)))
UPGRADE = Target("upgrade", "two")
SETTINGS = Target("other settings", guard_seconds=20)
BAD = Target("bad upgrade", "three", works=False)
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
