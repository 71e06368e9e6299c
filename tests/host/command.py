"""Runs the real command line on a throwaway host, from outside, as a person would."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.lib.throwaway.host import ThrowawayHost
from tests.lib.throwaway.payload import build_payload
from tests.lib.throwaway.snapshot import difference, files

PROGRAM = Path(sys.executable).with_name("cri-resmgr-installer")
RELAY_FLAG = "--container-runtime-endpoint=unix:///run/cri-resmgr-installer/endpoint/containerd.sock"

#: Those that an installer could do something to. One of the runtimes is not there: while looking for it
#: systemd sees new drop-in directories, of which NeedDaemonReload of the others would not know.
UNITS = ("crio.service", "containerd.service", "cri-resource-manager.service", "kubelet.service")

#: Anything but a policy of none re-pins what runs.
REAL_POLICY = "policy:\n  Active: topology-aware\n  ReservedResources:\n    CPU: 750m\n"


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended, and what it said: `out` to standard output, `err` to standard error."""

    code: int
    out: str
    err: str

    @property
    def said(self) -> str:
        return self.out + self.err

    @property
    def document(self) -> dict[str, Any]:
        """Standard output as one JSON document."""
        found: dict[str, Any] = json.loads(self.out)
        return found

    @property
    def events(self) -> list[dict[str, Any]]:
        """Standard output as JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]


class Command:
    """The program with a payload, a directory of configs and settings of its own."""

    def __init__(self, host: ThrowawayHost, scratch: Path) -> None:
        self.host = host
        self.payload = scratch / "payload"
        self.configs = scratch / "configs"
        self.config = scratch / "settings.yaml"
        self.configs.mkdir()
        build_payload(self.payload)
        self.set()

    def set(self, *, take_over: bool = False, **sections: Mapping[str, object]) -> None:
        """Writes the settings; kubelet has to stay up for a second only, unless the test says otherwise."""
        kubelet = {"settleSeconds": 1, **sections.pop("kubelet", {})}
        self.config.write_text(json.dumps({**sections, "takeOver": take_over, "kubelet": kubelet}))

    def globals(self) -> list[str]:
        """The global options that name the host and the inputs."""
        return [
            *("--host-root", str(self.host.root)),
            *("--payload", str(self.payload)),
            *("--configs", str(self.configs)),
            *("--config", str(self.config)),
        ]

    def __call__(self, *argv: str) -> Ended:
        """Runs it with its global options before `argv`."""
        return execute(*self.globals(), *argv)


def execute(
    *argv: str,
    prefix: tuple[str, ...] = (),
    environment: Mapping[str, str] | None = None,
    timeout: float = 180,
) -> Ended:
    """Runs the program with exactly these words. Raises TimeoutExpired when it takes too long."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("CRI_RESMGR_")}
    done = subprocess.run(
        [*prefix, str(PROGRAM), *argv],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env=ours | dict(environment or {}),
    )
    return Ended(done.returncode, done.stdout, done.stderr)


@contextlib.contextmanager
def untouched(host: ThrowawayHost) -> Iterator[None]:
    """Whatever happens in the block leaves every file as it is, and every unit that could be ours alone."""
    before, keys = files(host), _of_a_unit(host)
    units = _units(host, keys)
    yield
    changed = difference(before, files(host))
    assert not changed, "\n".join(changed)
    after = _units(host, keys)
    assert after == units, f"before:\n{units}\nafter:\n{after}"


def _of_a_unit(host: ThrowawayHost) -> str:
    """What any operation on a unit would change; a kubelet that crash-loops changes the rest by itself."""
    keys = "Id,LoadState,UnitFileState,NeedDaemonReload,DropInPaths"
    loops = host.show("kubelet.service", "SubState").startswith("auto-restart")
    loops = loops or host.show("kubelet.service", "NRestarts") != "0"
    return keys if loops else f"{keys},InvocationID,ActiveState,SubState,MainPID"


def _units(host: ThrowawayHost, keys: str) -> str:
    return host.systemctl("show", f"--property={keys}", *UNITS)
