"""What is asked of a node: installations by their inputs, and the removal. And what was installed before."""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from hashlib import sha256
from math import inf
from pathlib import Path
from typing import Any, Literal

from installer.inputs.load import Consent, Mandate, Request
from installer.inputs.settings import KubeletSettings, ProxySettings, RemovalSettings, Settings
from installer.model import paths
from installer.model.fleet import AskFirst
from installer.model.names import Mode
from tests.certify.node.earlier import EARLIER, kubelets_own, repairs
from tests.certify.node.facts import HOSTS
from tests.certify.node.kubelets import CONFIG, KUBELETS
from tests.faults.disks.crash import Tree
from tests.faults.disks.node import (
    RUNTIME,
    bare_node,
    earlier_node,
    node_after_takeover,
    packaged_node,
    program,
)

_TOPOLOGY = "policy:\n  Active: topology-aware\n  ReservedResources:\n    cpu: 750m\n"
_BALLOONS = "policy:\n  Active: balloons\n"
_PODPOOLS = "policy:\n  Active: podpools\n  AvailableResources:\n    cpu: cpuset:5\n"
_NONE = "policy:\n  Active: none\n"
_FORCE = "policy:\n  Active: none\nlogger:\n  Debug: cache\n"
_CONTROLS = (
    "policy:\n  Active: none\nrdt: {partitions: {all: {classes: {gold: {l3Allocation: '60%'}}}}}\n"
    "cpu: {classes: {turbo: {minFreq: 800000}}}\nblockio: {Classes: {slow: [{Weight: 80}]}}\n"
)
_STAYS = 'EXTRA_OPTIONS="--disable-policy-switch"\n'
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
    release: str = ""  # of the proxy
    given: tuple[tuple[str, object], ...] = ()  # of the request
    consent: Consent = field(default_factory=Consent)  # but to a takeover
    kubelet: tuple[tuple[str, object], ...] = ()  # of the settings' sections
    proxy: tuple[tuple[str, object], ...] = ()
    removal: tuple[tuple[str, object], ...] = ()

    @property
    def removes(self) -> bool:
        return self.version is None

    def request(self, directory: Path, *, unattended: bool = False) -> Request:
        """With its payload and configs below `directory`, where they are made once."""
        inputs = repr((self.version, self.works, self.configs, self.release))
        made = directory / sha256(inputs.encode()).hexdigest()
        binary, configs = made / paths.BINARY[1:], made / "configs"
        if not made.exists():
            binary.parent.mkdir(parents=True)
            content = program(self.version or "one", works=self.works)
            binary.write_bytes(ELF if self.version == "elf" else content)
            if self.release:
                (made / "VERSION").write_text(f"{self.release}\n")
            binary.chmod(0o755)
            configs.mkdir()
            for name, text in self.configs:
                (configs / name).write_text(text)
        kubelet = KubeletSettings(settle_seconds=1, guard_seconds=self.guard_seconds)
        kubelet = kubelet.model_copy(update=dict(self.kubelet))
        mode = Mode.REMOVE if self.removes else Mode.INSTALL
        existing: Literal["adopt", "refuse"] = "adopt" if self.adopts else "refuse"
        proxy = ProxySettings(existing_containers=existing, agent=self.agent)
        proxy = proxy.model_copy(update=dict(self.proxy))
        removal = RemovalSettings().model_copy(update=dict(self.removal))
        settings = Settings(kubelet=kubelet, proxy=proxy, removal=removal)
        asks = AskFirst(self.asks)
        mandate = Mandate(unattended=unattended, ask_first=asks, restarts_left=self.restarts_left)
        consent = replace(self.consent, take_over=self.takes_over)
        request = Request(mode, settings, made, configs, consent=consent, mandate=mandate)
        given: dict[str, Any] = dict(self.given)
        return replace(request, **given)


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
REPAIR = Target("repair", given=(("payload", None), ("configs", None)))
REPAIR_WITH_CONFIGS = Target("repair with configs", given=(("payload", None),))
FORGETFUL = Target("without its configs", given=(("configs", None),))
DEFAULTS = Target("default configs", configs=(), given=(("default_configs", True),))
EMPTY = Target("an empty directory of configs", configs=())
AGAIN = Target("again", "three", works=False, consent=Consent(retry=True))
SLOWER = Target("other deadlines", "three", works=False, proxy=(("start_timeout_seconds", 30),))
REMOVAL_OF_ALL = Target("removal without a record", None, consent=Consent(without_record=True))
REMOVAL_FOR_NRI = Target("removal for NRI", None, removal=(("successor", "nri"),))
REMOVAL_AS_IT_IS = Target("removal that resets nothing", None, removal=(("reset_pinning", False),))
EXEC_START = Target("by its line", kubelet=(("strategy", "exec-start"),))
BY_VARIABLE = Target("by a variable", kubelet=(("strategy", "environment"),))
NAMED = Target("by a named variable", kubelet=(("variable", "KUBELET_EXTRA_ARGS"),))
NAMED_ANOTHER = Target("by another variable", kubelet=(("variable", "KUBELET_MORE_ARGS"),))
OWN_SOCKETS = Target("with its own sockets", proxy=(("agent_sockets", "own"),))
AT_AN_ENDPOINT = Target("at an endpoint", proxy=(("runtime_endpoint", RUNTIME),))
ACCEPTING = Target(
    "accepting", consent=Consent(accept_pending=True), kubelet=(("accept_static_managers", True),)
)
DESPITE = Target("despite a pause", consent=Consent(despite_pause=True))
ELSEWHERE_DROP_IN = Target("in another directory", kubelet=(("drop_in_directory", paths.CONTROL_UNITS),))
USUAL_DROP_IN = Target("in the usual directory", kubelet=(("drop_in_directory", paths.USUAL_UNITS),))
ON_CPUS = Target("on some CPUs", configs=(("fallback.cfg", _PODPOOLS),))
OTHER_UNIT = Target("of another unit", None, kubelet=(("unit", "other.service"),))
CONTROLLED = Target("with controls", configs=(("fallback.cfg", _CONTROLS),))
ELF = b"\x7fELF\x02\x01\x01" + bytes(11) + b"\xb7\x00" + bytes(44)  # of a program for aarch64
OTHER_MACHINE = Target("for another machine", "elf")
ONE_POLICY = Target("one policy", configs=(("fallback.cfg", _TOPOLOGY), ("EXTRA_OPTIONS.cfg", _STAYS)))
OLD_PROXY = Target("an old release", "two", release="0.8.3")
TAKEOVER_WITHOUT = replace(TAKEOVER, name="takeover without configs", given=(("configs", None),))
TAKEOVER_AT = replace(TAKEOVER, name="takeover at an endpoint", proxy=(("runtime_endpoint", RUNTIME),))
TARGETS = (INSTALL, POLICY, FORCED, UPGRADE, BAD, REMOVAL)


@dataclass(frozen=True, slots=True)
class Former:
    """What was on the node: files of other people, and the installations that followed."""

    bare: Callable[[], Tree]
    installed: tuple[Target, ...] = ()
    boots: bool = False  # afterwards


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
    **{name: Former(bare) for name, bare in {**KUBELETS, **HOSTS, **EARLIER}.items()},
    "managers, and NRI, accepted": Former(KUBELETS["managers, and NRI"], (ACCEPTING,)),
    "a script, by its line": Former(KUBELETS["a script"], (EXEC_START,)),
    "earlier, failed": Former(earlier_node, (BAD_TAKEOVER,)),
    "earlier": Former(earlier_node),
    "packaged": Former(packaged_node),
    "unused": Former(unused_node),
    "failed": Former(bare_node, (INSTALL, BAD)),
    "throttled": Former(HOSTS["host: containers with throttles"], (CONTROLLED,)),
    "controlled": Former(HOSTS["host: resctrl"], (CONTROLLED,)),
    "without its agent": Former(bare_node, (WITHOUT_AGENT,)),
    "one policy": Former(bare_node, (ONE_POLICY,)),
    "balloons, host: a runtime that ignores too little": Former(
        HOSTS["host: a runtime that ignores too little"], (POLICY,)
    ),
    "rounded weights": Former(HOSTS["host: rounded weights"], (INSTALL,), boots=True),
    "taken over": Former(earlier_node, (TAKEOVER,)),
}

LIVED = (
    "host: a kubelet that has been well",
    "host: a container without a cgroup",
    "host: a runtime that refuses",
    "host: a runtime that ignores",
    "host: leftovers",
    "host: a container with too little",
    "host: containers through the proxy",
    "host: containers with throttles",
    "host: resctrl",
    "host: gardener",
    "host: assigned CPUs",
    "host: NRI",
    "host: containers with CPUs",
    "no variable",
    "a script",
    "a shell's variable",
    "a shell's arguments",
    "variables in its unit",
)
"""Of these, also nodes with an installation are tried."""
INSTALLED = ", installed"
CONTROLS = ("a kernel that refuses", "containers with weights", "a CPU that is offline")
RARE |= {f"host: {name}, controlled": Former(RARE[f"host: {name}"].bare, (CONTROLLED,)) for name in CONTROLS}
RARE |= {f"{name}{INSTALLED}": Former(RARE[name].bare, (INSTALL,)) for name in LIVED}


def without_earlier(disk: Tree) -> Tree:
    """What a removal leaves of it, once an earlier installation on it was taken over; any other as it is."""
    found = disk.get(paths.BINARY)
    if found is None or found.content != program("theirs"):
        return disk
    own = {path: entry for path, entry in disk.items() if path.startswith("/usr") and entry.kind == "d"}
    own |= {path: disk[path] for path in (posixpath.dirname(CONFIG),) if path in disk}
    return {**node_after_takeover(), **own, **kubelets_own(disk), **repairs(disk)}
