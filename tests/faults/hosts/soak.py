"""R8, R9: the daemon on one host for hours, while the host drifts, its proxy fails, and load comes and goes.

After each act the daemon comes to rest, and kubelet is the process that it was, unless the act was to restart
it. In the end the daemon holds no more memory, descriptors and threads than it may.
"""

from __future__ import annotations

import random
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.faults import Report
from tests.host.daemon import Daemon, within
from tests.host.node import BINARY, FALLBACK, OURS, PROXY, PROXY_UNIT, Node
from tests.lib.busy import busy
from tests.lib.throwaway.host import HostError, ThrowawayHost
from tests.lib.throwaway.kubelet import UNIT

_MOST_MEMORY = 48.0  # MB, resident
_GROWTH = 2.0  # MB in the second half
_REST_SECONDS = 600.0
_FAILURES = 3  # of the proxy, an hour: after each one kubelet waits four times as long before it returns
_PAUSES = (1.0, 12.0)  # seconds between two acts
_LOADED, _UNLOADED = 60.0, 120.0  # seconds, in turn
_BUSY = 6  # processes

Act = Callable[["_Soak"], None]


class _Soak:
    """A converged node, its daemon, and what it weighs after each act."""

    def __init__(self, node: Node, daemon: Daemon, seed: int) -> None:
        self.node, self.daemon, self.random = node, daemon, random.Random(seed)
        self.count = 0
        self.bad: list[str] = []
        self.weights: list[tuple[float, int, int]] = []  # MB, descriptors, threads
        self._failed_at: list[float] = []  # in the last hour

    def play(self, minutes: float) -> None:
        began = time.monotonic()
        self._come_to_rest()
        while time.monotonic() - began < minutes * 60:
            act = self._choose()
            self.count += 1
            kubelet = self.node.invocations()[0]
            try:
                act(self)
                self._come_to_rest()
                if act is not _restart_kubelet:
                    assert self.node.invocations()[0] == kubelet, "kubelet was restarted"
            except (AssertionError, HostError, OSError, subprocess.SubprocessError) as error:
                said = "\n".join(self.daemon.said().splitlines()[-20:])
                self.bad.append(f"{self.count}, {act.__name__}: {type(error).__name__}: {error}\n{said}")
                return
            time.sleep(self.random.uniform(*_PAUSES))

    def _choose(self) -> Act:
        now = time.monotonic()
        self._failed_at = [at for at in self._failed_at if now - at < 3600]
        weights = _ACTS if len(self._failed_at) < _FAILURES else {**_ACTS, **dict.fromkeys(_FAILING, 0.0)}
        act = self.random.choices(list(weights), list(weights.values()))[0]
        if act in _FAILING:
            self._failed_at.append(now)
        return act

    def _come_to_rest(self) -> None:
        within(_REST_SECONDS, self._rests)
        process = Path(f"/proc/{self.daemon.process.pid}")
        descriptors, threads = (len(list((process / kind).iterdir())) for kind in ("fd", "task"))
        self.weights.append((self.daemon.rss() / 1024, descriptors, threads))

    def _rests(self) -> bool:
        time.sleep(0.2)
        assert self.daemon.process.poll() is None, "the daemon has ended"
        return self.daemon.is_at_rest() and not self.daemon.looks()["running"] and self.daemon.is_at_rest()

    def weigh(self) -> str:
        """Say what it weighed at first, half-way and in the end, and note what is too much."""
        first, half, last = self.weights[0], self.weights[len(self.weights) // 2], self.weights[-1]
        if last[0] > _MOST_MEMORY or last[0] - half[0] > _GROWTH:
            self.bad.append(f"{first[0]:.1f} MB at first, {half[0]:.1f} half-way, {last[0]:.1f} in the end")
        if last[1] > first[1] or last[2] > first[2]:
            self.bad.append(f"descriptors and threads: {first[1:]} at first, {last[1:]} in the end")
        return f"{first[0]:.1f}, {half[0]:.1f}, {last[0]:.1f} MB, {last[1]} descriptors"


# -- acts -----------------------------------------------------------------------------


def _any_of_ours(soak: _Soak) -> Path:
    return soak.node.path(soak.random.choice(OURS))


def _delete(soak: _Soak) -> None:
    _any_of_ours(soak).unlink(missing_ok=True)


def _edit(soak: _Soak) -> None:
    path = soak.random.choice([path for path in OURS if path != BINARY])
    soak.node.replace(path, soak.node.path(path).read_bytes() + b"\n# edited\n")


def _damage_the_program(soak: _Soak) -> None:
    """What runs is still the old one."""
    soak.node.replace(BINARY, b"no program")


def _set_mode(soak: _Soak) -> None:
    _any_of_ours(soak).chmod(0o600)


def _wipe(soak: _Soak) -> None:
    for path in soak.node.path(FALLBACK).parent.iterdir():
        path.unlink()


def _configure(soak: _Soak) -> None:
    soak.node.fallback(f"policy:\n  Active: none\n# {soak.count}\n")


def _mistype(soak: _Soak) -> None:
    """The settings are no YAML for a while, and a file is gone meanwhile."""
    settings = soak.node.command.config
    text = settings.read_text()
    settings.write_text("{")
    soak.node.path(PROXY_UNIT).unlink(missing_ok=True)
    within(_REST_SECONDS, lambda: soak.daemon.phase() != "converged")
    settings.write_text(text)


def _pause(soak: _Soak) -> None:
    pause = soak.node.path("/etc/cri-resmgr/pause")
    pause.write_text("a person is at work")
    within(_REST_SECONDS, lambda: soak.daemon.phase() == "paused")
    _delete(soak)
    time.sleep(2)
    pause.unlink()


def _reload(soak: _Soak) -> None:
    soak.node.host.systemctl("daemon-reload")


def _restart_the_proxy(soak: _Soak) -> None:
    soak.node.host.systemctl("restart", PROXY)


def _stop_the_proxy(soak: _Soak) -> None:
    soak.node.host.systemctl("stop", PROXY)


def _kill_the_proxy(soak: _Soak) -> None:
    soak.node.host.systemctl("kill", "--signal=KILL", PROXY)


def _freeze_the_proxy(soak: _Soak) -> None:
    soak.node.host.systemctl("kill", "--signal=STOP", PROXY)


def _stop_the_runtime(soak: _Soak) -> None:
    soak.node.host.systemctl("stop", "containerd")
    time.sleep(soak.random.uniform(0.1, 8.0))
    soak.node.host.systemctl("start", "containerd")


def _restart_kubelet(soak: _Soak) -> None:
    soak.node.host.systemctl("restart", UNIT)


_FAILING: tuple[Act, ...] = (_stop_the_proxy, _kill_the_proxy, _freeze_the_proxy)

# How often, in relation.
_ACTS: dict[Act, float] = {
    **dict.fromkeys((_delete, _edit, _set_mode, _configure), 6),
    **dict.fromkeys((_damage_the_program, _wipe, _mistype, _pause, _reload, _restart_kubelet), 3),
    **dict.fromkeys((_restart_the_proxy, _stop_the_proxy, _stop_the_runtime), 1),
    **dict.fromkeys((_kill_the_proxy, _freeze_the_proxy), 0.5),
}


# -- around them ----------------------------------------------------------------------


# The machine is busy for a while, and is not for a while.
_LOAD = (
    f"import time\nwhile True:\n  until = time.monotonic() + {_LOADED}\n"
    f"  while time.monotonic() < until: pass\n  time.sleep({_UNLOADED})"
)


def run(report: Report, amount: int) -> None:
    """For `amount` minutes."""
    with tempfile.TemporaryDirectory(prefix="soak-") as directory, ThrowawayHost() as host:
        node = Node(host, Path(directory))
        node.command.set(kubelet={"restartsPerHour": 1000})
        daemon = Daemon(node, node.scratch / "ready", {"CRI_RESMGR_INSTALLER_POD_UID": "one"})
        soak = _Soak(node, daemon, random.randrange(1 << 32))
        try:
            with busy(_BUSY, _LOAD):
                soak.play(amount)
            report(f"{amount} minutes: {soak.weigh()}", soak.count, soak.bad)
        finally:
            daemon.kill()
