"""What the daemon is configured with: the options of its command line, and the few settings that it needs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from installer.host.command import OURSELVES
from installer.inputs.deadlines import build_deadlines, build_fleet_rules
from installer.inputs.load import Consent, Mandate, Request
from installer.inputs.settings import Settings
from installer.model.daemon import ALIVE_FILE, EXCUSED_FILE, READY_FILE
from installer.model.fleet import DEFAULT_RULES, FleetRules
from installer.model.names import Mode
from installer.model.paths import AUTO
from installer.node.run import DAEMON

_BINARY = "opt/intel/bin/cri-resmgr"


@dataclass(frozen=True, slots=True)
class Configuration:
    """Times are in seconds."""

    mode: Mode = Mode.INSTALL
    kubelet_unit: str = "kubelet.service"
    drop_in_directory: str = AUTO
    dead_seconds: float = 5.0
    restarts_per_hour: int = 3
    remove_on_evidence: bool = False
    listen: str = ""  # host:port of the pages, or nothing
    converge_seconds: float = 377.0  # the longest that a pass may take
    kubelet_seconds: float = 115.0  # the longest that a restart of kubelet may take
    refused_is_ready: bool = False  # the pod of a refused node is Ready
    rules: FleetRules = DEFAULT_RULES


def listen_address(listen: str, node_address: str) -> str:
    """Return `listen` with the host that it may leave out: in a pod the node's own address, where Prometheus
    reaches the pages, else loopback. They have no authentication, so it is never every address."""
    host, _, port = listen.rpartition(":")
    own = f"[{node_address}]" if ":" in node_address else node_address
    return listen if host or not listen else f"{own or '127.0.0.1'}:{port}"


def build_configuration(settings: Settings) -> Configuration:
    deadlines = build_deadlines(settings)
    return Configuration(
        mode=Mode(settings.mode),
        kubelet_unit=settings.kubelet.unit,
        drop_in_directory=settings.kubelet.drop_in_directory,
        dead_seconds=float(settings.proxy.dead_seconds),
        restarts_per_hour=settings.kubelet.restarts_per_hour,
        remove_on_evidence=settings.removal.on_termination == "auto",
        listen=settings.status.listen,
        converge_seconds=float(deadlines.converge),
        kubelet_seconds=float(deadlines.kubelet),
        refused_is_ready=settings.rollout.refused == "ready",
        rules=build_fleet_rules(settings),
    )


@dataclass(frozen=True, slots=True)
class Command:
    """The global options, as a child gets them, and what only the daemon knows."""

    host_root: Path
    payload: Path
    configs: Path | None
    config: Path | None
    ready_file: Path = Path(READY_FILE)  # in our own file system
    identity: str = ""  # names this daemon on the host; a restart of its container keeps it
    good_seconds: float = 60.0  # that a relay has to answer before kubelet returns to it by a restart
    program: tuple[str, ...] = OURSELVES  # what a child runs
    default_configs: bool = False
    take_over: bool = False
    node_address: str = ""  # if the pod knows it
    installation: str = ""  # NAMESPACE/NAME of the pod's; empty outside of one

    def argv(self, *verb: str) -> tuple[str, ...]:
        words = [f"--host-root={absolute(self.host_root)}", f"--payload={absolute(self.payload)}"]
        words += [f"--configs={absolute(self.configs)}"] if self.configs else []
        words += ["--default-configs"] if self.default_configs else []
        words += [f"--config={absolute(self.config)}"] if self.config else []
        return (*self.program, *words, "--output=json", *verb)

    def request(self, settings: Settings, mode: Mode) -> Request:
        """What an unattended run is asked for."""
        return Request(
            mode=mode,
            settings=settings,
            payload=absolute(self.payload),
            configs=self.configs and absolute(self.configs),
            default_configs=self.default_configs,
            consent=Consent(despite_pause=True, take_over=self.take_over or settings.take_over),
            mandate=Mandate(DAEMON, unattended=True),
        )

    @property
    def alive_file(self) -> Path:
        """The age of this file tells when the last look was that succeeded and was on time."""
        return self.ready_file.with_name(Path(ALIVE_FILE).name)

    @property
    def excused_file(self) -> Path:
        """Exists while a restart of our container would not help: see DaemonState.is_excused."""
        return self.ready_file.with_name(Path(EXCUSED_FILE).name)

    @property
    def inputs(self) -> tuple[Path, ...]:
        given = (self.configs, self.config, self.payload / _BINARY)
        return tuple(absolute(path) for path in given if path is not None)


def absolute(path: Path) -> Path:
    """Return the path as a child in another directory has to spell it."""
    return path if path.is_absolute() else Path.cwd() / path
