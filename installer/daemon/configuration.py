"""What the daemon is configured with: its command line's options, and the few settings that it needs itself.

A child reads the settings: loading what validates them would cost the daemon 10 MB.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from installer.errors import InstallerError, InvalidInputError
from installer.host.run import OURSELVES, Finished, run
from installer.model.daemon import ALIVE_FILE, EXCUSED_FILE, READY_FILE
from installer.model.fleet import DEFAULT_RULES, FleetRules
from installer.model.jsontext import from_json
from installer.model.names import Mode
from installer.model.paths import AUTO

if TYPE_CHECKING:
    from installer.inputs.settings import Settings


SETTINGS_SECONDS = 60.0
_PERMIT_SLACK = 60.0  # seconds that a permit lasts beyond a pass and its rollback
_BINARY = "opt/intel/bin/cri-resmgr"


@dataclass(frozen=True, slots=True)
class Configuration:
    """Times in seconds. `converge_seconds` and `kubelet_seconds` bound a pass and a restart of kubelet.
    `good_seconds`: how long a relay has to be good before kubelet goes back to it. `listen`: host:port of
    the pages, or nothing. `refused_is_ready`: whether the pod of a refused node is Ready."""

    mode: Mode = Mode.INSTALL
    kubelet_unit: str = "kubelet.service"
    drop_in_directory: str = AUTO
    dead_seconds: float = 20.0
    restarts_per_hour: int = 3
    remove_on_evidence: bool = False
    listen: str = ""
    converge_seconds: float = 377.0
    kubelet_seconds: float = 115.0
    good_seconds: float = 60.0
    refused_is_ready: bool = False
    rules: FleetRules = DEFAULT_RULES


def listen_address(listen: str, node_address: str) -> str:
    """`listen` with the host that it leaves out. The pages have no authentication, so that is never every
    address: the node's own in a pod, where Prometheus is to reach them, else loopback."""
    host, _, port = listen.rpartition(":")
    own = f"[{node_address}]" if ":" in node_address else node_address
    return listen if host or not listen else f"{own or '127.0.0.1'}:{port}"


def build_configuration(settings: Settings) -> Configuration:
    """In the child, where the settings are."""
    from installer.inputs.deadlines import build_deadlines

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
        rules=FleetRules(
            concurrent_restarts=str(settings.rollout.concurrent_restarts),
            max_failures=str(settings.rollout.max_failures),
            order=settings.rollout.order,
            soak_seconds=float(settings.rollout.soak_seconds),
            hold_seconds=2.0 * deadlines.converge + _PERMIT_SLACK,
            successor=settings.removal.successor_namespace if settings.removal.successor == "nri" else "",
        ),
    )


@dataclass(frozen=True, slots=True)
class Command:
    """The global options as a child is given them. `ready_file` is in our own file system; `identity`
    names this daemon on the host, the same after a restart of its container. `program` is what a child
    runs. `node_address` is the node's, if the pod knows it."""

    host_root: Path
    payload: Path
    configs: Path | None
    config: Path | None
    ready_file: Path = Path(READY_FILE)
    identity: str = ""
    good_seconds: float = 60.0
    program: tuple[str, ...] = OURSELVES
    default_configs: bool = False
    node_address: str = ""

    def argv(self, *verb: str) -> tuple[str, ...]:
        words = [f"--host-root={absolute(self.host_root)}", f"--payload={absolute(self.payload)}"]
        words += [f"--configs={absolute(self.configs)}"] if self.configs else []
        words += ["--default-configs"] if self.default_configs else []
        words += [f"--config={absolute(self.config)}"] if self.config else []
        return (*self.program, *words, "--output=json", *verb)

    @property
    def alive_file(self) -> Path:
        """Its age tells when the last look was that succeeded and was on time."""
        return self.ready_file.with_name(Path(ALIVE_FILE).name)

    @property
    def excused_file(self) -> Path:
        """Exists while a restart of our container would not bring the proxy: see DaemonState.is_excused."""
        return self.ready_file.with_name(Path(EXCUSED_FILE).name)

    @property
    def inputs(self) -> tuple[Path, ...]:
        given = (self.configs, self.config, self.payload / _BINARY)
        return tuple(absolute(path) for path in given if path is not None)


def absolute(path: Path) -> Path:
    """As a child in another directory has to spell it."""
    return path if path.is_absolute() else Path.cwd() / path


def load_configuration(command: Command) -> Configuration:
    """Asks a child, and waits for it. Raises as `read_answer`."""
    return read_answer(command, run(command.argv("settings"), SETTINGS_SECONDS))


def read_answer(command: Command, done: Finished) -> Configuration:
    """What the child has said of the settings. Raises InvalidInputError with their faults, and InstallerError
    where it has said nothing of them."""
    last = done.lines[-1] if done.lines else ""
    try:
        if done.code == 0:
            return replace(from_json(Configuration, last), good_seconds=command.good_seconds)
        answer = json.loads(last)
        message, data = str(answer["message"]), answer["data"]
        faults, hint, code = data["faults"], str(data["hint"]), data["exitCode"]
    except (ValueError, LookupError, TypeError):
        raise InstallerError(f"the settings could not be read: {done.failure}") from None
    if code == InvalidInputError.exit_code:
        raise InvalidInputError(faults or [message], hint)
    raise InstallerError(message, hint)
