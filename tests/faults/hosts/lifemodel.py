"""What a random life is asked, and a small model of what may follow from what was done since."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from installer.model.paths import drop_in
from tests.host.node import STATE

GUARD_SECONDS = 8  # of which the proxy has 5.5: on a busy machine its start takes more than 0.5
SLACK = 60.0  # seconds that a boot or a start of kubelet may take besides, on a busy machine
RELAY = "run/cri-resmgr/cri-resmgr.sock"
VERSION = "/runtime.v1.RuntimeService/Version"
FORCE = "/etc/cri-resmgr/force.cfg"
EXTRA = "/etc/cri-resmgr/EXTRA_OPTIONS.cfg"
EDITED = f"{STATE}/edited"
PAUSE = "/etc/cri-resmgr/pause"
DROP_INS = "/etc/systemd/system/kubelet.service.d"
UNIT_DIRECTORIES = ("/etc/systemd/system", "/usr/local/lib/systemd/system")
OUR_DROP_INS = tuple(drop_in(directory, "kubelet.service") for directory in UNIT_DIRECTORIES)
SOMEBODYS_DROP_IN = f"{DROP_INS}/20-somebody.conf"
MASK = "/run/systemd/system/cri-resource-manager.service"  # until the next boot
CACHE = "/var/lib/cri-resmgr/cache"

#: cri-resmgr's configurations that are mounted, by name: what differs between two of them restarts the
#: proxy, but for the two forced ones, which a signal makes it read.
CONFIGURATIONS: dict[str, dict[str, str]] = {
    "none": {},
    "fallback": {"fallback.cfg": "policy:\n  Active: none\nlogger:\n  Debug: cache\n"},
    "another fallback": {"fallback.cfg": "policy:\n  Active: none\nlogger:\n  Debug: policy\n"},
    "forced": {"force.cfg": "policy:\n  Active: none\n"},
    "forced with a logger": {"force.cfg": "policy:\n  Active: none\nlogger:\n  Debug: cache\n"},
    "with options": {"EXTRA_OPTIONS.cfg": 'EXTRA_OPTIONS="--metrics-interval 30s"\n'},
}
PAYLOADS = ("v0.9.2", "v0.9.3")
BROKEN: dict[str, dict[str, object]] = {
    "exits": {"startup": "exit"},
    "never answers": {"startup": "listen-only"},
    "dies soon": {"exitAfterSeconds": 0.2},
}


@dataclass(slots=True)
class Since:
    """What has happened since the host last converged: what the next pass may do about it."""

    drifted: bool = False
    base_edited: bool = False  # the command line that our drop-in may have to repeat
    proxy_edited: bool = False  # content that a start of it may have read
    proxy_started: bool = False
    agent_goes: bool = False  # a configuration of an agent that is switched off: the proxy restarts
    kubelet_started: bool = False
    pod_beside: bool = False  # made while kubelet was not on the relay: a proxy that runs does not know it
    unknown: bool = False  # a pass was killed or failed: what it has done is its own affair
    reload_pending: bool = False
    stopped: bool = False  # kubelet, by somebody who will start it again
    #: Paths of ours where somebody has put what is not to be replaced.
    in_the_way: list[str] = field(default_factory=list)
    #: What somebody has written into files of ours.
    edits: dict[str, str] = field(default_factory=dict)

    @property
    def may_refuse(self) -> bool:
        return bool(self.in_the_way) or self.reload_pending or self.stopped


@dataclass(frozen=True, slots=True)
class Asked:
    """What an operator asks for."""

    payload: str = PAYLOADS[0]
    configuration: str = "none"
    guard_seconds: int = GUARD_SECONDS
    agent: str = "enabled"
    strategy: str = "auto"
    directory: str = UNIT_DIRECTORIES[0]

    @property
    def forgets_agent(self) -> bool:
        """Whether what the agent has sent goes. Where a force.cfg takes precedence, it need not."""
        return self.agent == "disabled" and "force.cfg" not in CONFIGURATIONS[self.configuration]

    def restarts_proxy(self, other: Asked) -> bool:
        """Whether the proxy has to restart for the other."""
        forced = {self.configuration, other.configuration} <= {"forced", "forced with a logger"}
        same = forced or self.configuration == other.configuration
        # The guard's deadline matters at the next start only.
        return not same or (self.payload, self.agent) != (other.payload, other.agent)


def tell(story: Sequence[str]) -> str:
    """A life, a step a line."""
    return "\n".join(f"  {number}. {step}" for number, step in enumerate(story, 1))
