"""What only a real systemd can do to its client: reload, re-execute, or be gone."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from installer.errors import DESTRUCTIVE, TIMEOUT, StepFailedError, SystemdError, UnservableHostError
from installer.host.bus import READ_SECONDS, SystemBus, _no_bus
from installer.host.files import RootedFiles
from installer.host.systemd import BusSystemd, _not_done
from installer.model.host import UnitState
from installer.node.await_kubelet import check_steady, failure_of
from tests.lib.rules import rule
from tests.lib.throwaway.host import ThrowawayHost
from tests.lib.throwaway.proxy import until

UNIT = "contract-sleeper.service"
FILE = f"/etc/systemd/system/{UNIT}"
DROP_IN = f"{FILE}.d/test.conf"
T = TypeVar("T")


@pytest.fixture
def systemd(throwaway: ThrowawayHost) -> Iterator[BusSystemd]:
    files = RootedFiles(throwaway.root)
    files.write(
        FILE, b"[Unit]\nStartLimitIntervalSec=0\n[Service]\nType=exec\nExecStart=/bin/sleep 1000\n", 0o644
    )
    throwaway.systemctl("daemon-reload")
    yield BusSystemd(files)
    throwaway.systemctl("stop", UNIT)
    files.remove(DROP_IN)
    files.remove_empty_directory(f"{FILE}.d")
    files.remove(FILE)
    throwaway.systemctl("daemon-reload")


def drop_in(throwaway: ThrowawayHost, content: bytes) -> None:
    """The fixture takes it away."""
    files = RootedFiles(throwaway.root)
    files.make_directory(f"{FILE}.d")
    files.write(DROP_IN, b"[Service]\n" + content, 0o644)
    throwaway.systemctl("daemon-reload")


def unit_when(systemd: BusSystemd, holds: Callable[[UnitState], bool]) -> UnitState:
    """The unit as it was when that held."""
    seen = UnitState(UNIT)

    def look() -> bool:
        nonlocal seen
        seen = systemd.unit(UNIT)
        return holds(seen)

    until(look)
    return seen


def is_excused(before: UnitState, now: UnitState) -> bool:
    """Whether a run that finds the unit like this says that somebody else has done it."""
    with pytest.raises(StepFailedError) as ended:
        check_steady(before, now, failure_of)
    assert ended.value.interfered is ("keeps crashing" not in ended.value.message)
    return ended.value.interfered


@rule("R2")
def test_a_unit_that_somebody_restarts_shows_no_process_of_another_state(
    systemd: BusSystemd, throwaway: ThrowawayHost
) -> None:
    """One that is up without a process would look as if it crashed, and a good generation would be blamed."""
    over, processes = threading.Event(), dict[str, set[int]]()

    def restart() -> None:
        while not over.is_set():
            throwaway.systemctl("restart", UNIT)

    other = threading.Thread(target=restart)
    other.start()
    try:
        while len(processes) < 40 and other.is_alive():
            seen = systemd.unit(UNIT)
            if seen.active_state == "active":
                processes.setdefault(seen.invocation_id, set()).add(seen.main_pid)
    finally:
        over.set()
        other.join()
    assert len(processes) == 40
    assert 0 not in set().union(*processes.values())
    assert all(len(pids) == 1 for pids in processes.values()), processes


@rule("R8")
@pytest.mark.parametrize("by_order", [True, False])
def test_a_unit_that_somebody_stops_is_told_from_one_that_ends_while_its_last_command_runs(
    systemd: BusSystemd, throwaway: ThrowawayHost, by_order: bool
) -> None:
    """Ours have such a command, the guard's. A good generation would be blamed for somebody's restart."""
    drop_in(throwaway, b"Restart=always\nExecStopPost=/bin/sleep 2\n")
    throwaway.systemctl("start", UNIT)
    before = systemd.unit(UNIT)
    if by_order:
        throwaway.systemctl("restart", "--no-block", UNIT)
    else:
        systemd.kill(UNIT, signal.SIGTERM)
    now = unit_when(systemd, lambda unit: unit.sub_state == "stop-post")
    assert is_excused(before, now) is by_order


@rule("R8")
@pytest.mark.parametrize("known", ["activating", "active"])
@pytest.mark.parametrize("verb", ["stop", "restart"])
def test_a_unit_that_somebody_stops_has_not_crashed_if_it_takes_too_long(
    systemd: BusSystemd, throwaway: ThrowawayHost, verb: str, known: str
) -> None:
    """systemd kills it then, and says that it has failed. The proxy's limit is a second. A run that waits for
    a slow start knows it as one that starts."""
    drop_in(
        throwaway,
        b"Restart=always\nTimeoutStopSec=0.5\nKillSignal=SIGCONT\n"
        b"ExecStartPost=/bin/sleep 2\nExecStopPost=/bin/sleep 1\n",
    )
    throwaway.systemctl("start", "--no-block", UNIT)
    before = unit_when(systemd, lambda unit: unit.main_pid > 0 and unit.active_state == known)
    assert before.came_up is (known == "active")
    unit_when(systemd, lambda unit: unit.came_up)
    throwaway.systemctl(verb, "--no-block", UNIT)
    unit_when(systemd, lambda unit: unit.active_state == "deactivating")
    over = ("failed", "timeout") if verb == "stop" else ("active", "success")
    seen = set[tuple[str, str]]()

    def ends(unit: UnitState) -> bool:
        assert is_excused(before, unit)
        seen.add((unit.active_state, unit.result))
        return over in seen

    unit_when(systemd, ends)
    assert ("deactivating", "timeout") in seen


@rule("R8")
def test_a_unit_whose_start_takes_too_long_keeps_crashing(
    systemd: BusSystemd, throwaway: ThrowawayHost
) -> None:
    """Also if somebody has restarted it, so that systemd counts anew."""
    throwaway.systemctl("start", UNIT)
    before = systemd.unit(UNIT)
    drop_in(throwaway, b"TimeoutStartSec=0.5\nExecStartPost=/bin/sleep 10\nExecStopPost=/bin/sleep 0.3\n")
    throwaway.systemctl("restart", "--no-block", UNIT)
    now = unit_when(systemd, lambda unit: unit.active_state == "failed")
    assert (now.result, now.came_up, now.n_restarts) == ("timeout", False, before.n_restarts)
    assert not is_excused(before, now)


@rule("R8")
def test_so_does_one_that_has_come_up_and_takes_too_long_when_systemd_starts_it_again(
    systemd: BusSystemd, throwaway: ThrowawayHost
) -> None:
    """The start before counts no more."""
    drop_in(
        throwaway,
        b"Restart=always\nTimeoutStartSec=3\nRuntimeDirectory=sleeper\nRuntimeDirectoryPreserve=restart\n"
        b"ExecStartPost=/bin/sh -c 'test -e /run/sleeper/again && sleep 10; touch /run/sleeper/again'\n"
        b"ExecStopPost=/bin/sleep 1\n",
    )
    throwaway.systemctl("start", UNIT)
    systemd.kill(UNIT, signal.SIGKILL)
    before = unit_when(systemd, lambda unit: unit.sub_state == "start-post")
    now = unit_when(systemd, lambda unit: unit.result == "timeout")
    assert (now.active_state, now.came_up, now.n_restarts) == ("deactivating", False, before.n_restarts)
    assert not is_excused(before, now)


@rule("R8")
def test_a_unit_that_ends_while_systemd_starts_it_again_is_not_taken_for_one_that_somebody_stops(
    systemd: BusSystemd, throwaway: ThrowawayHost
) -> None:
    """That start is a job, which lasts until the unit has ended."""
    throwaway.systemctl("start", UNIT)
    before = systemd.unit(UNIT)
    drop_in(
        throwaway,
        b"Restart=always\nExecStart=\nExecStart=/bin/sleep 0.1\n"
        b"ExecStartPost=/bin/sleep 0.5\nExecStopPost=/bin/sleep 1\n",
    )
    systemd.kill(UNIT, signal.SIGTERM)
    now = unit_when(
        systemd, lambda unit: unit.sub_state == "stop-post" and unit.n_restarts > before.n_restarts
    )
    assert (now.result, now.has_job) == ("success", True)
    assert not is_excused(before, now)


@pytest.mark.parametrize("command", ["daemon-reload", "daemon-reexec"])
def test_somebody_elses_reloads_lose_nothing(
    systemd: BusSystemd, throwaway: ThrowawayHost, command: str
) -> None:
    over = threading.Event()

    def disturb() -> None:
        while not over.is_set():
            throwaway.systemctl(command, check=False)
            over.wait(0.2)

    other = threading.Thread(target=disturb)
    other.start()
    try:
        pids, restarted = set(), 0
        for _ in range(10):
            # The reply to a queued job may be lost: that is an error in words, never a hang.
            with contextlib.suppress(SystemdError):
                assert systemd.restart(UNIT, timeout=60) == "done"
                restarted += 1
            pids.add(systemd.unit(UNIT).main_pid)
            systemd.daemon_reload(timeout=60)
    finally:
        over.set()
        other.join()
    assert systemd.unit(UNIT).running
    assert restarted
    assert len(pids) > 1


@pytest.fixture
def over(systemd: BusSystemd, throwaway: ThrowawayHost) -> Iterator[Path]:
    """Until this file exists, a generator holds up every reload of systemd, and all else that systemd does.
    `contract-began` beside it says that one has begun."""
    generator = "/run/systemd/system-generators/contract-slow"
    over = throwaway.root / "run/contract-over"
    files = RootedFiles(throwaway.root)
    files.make_directory(str(Path(generator).parent))
    script = "touch /run/contract-began; until [ -e /run/contract-over ]; do sleep 0.05; done"
    files.write(generator, f"#!/bin/sh\n{script}\n".encode(), 0o755)
    yield over
    over.touch()
    systemd.daemon_reload(timeout=60)
    files.remove(generator)
    files.remove_empty_directory(str(Path(generator).parent))
    over.unlink()
    over.with_name("contract-began").unlink()


@rule("R9")
def test_a_daemon_reload_has_a_deadline_and_goes_on_after_it(systemd: BusSystemd, over: Path) -> None:
    """What is asked for next waits until systemd is done."""
    with pytest.raises(SystemdError) as caught:
        systemd.daemon_reload(timeout=0.5)
    assert (caught.value.name, caught.value.message) == (TIMEOUT, "daemon-reload: not done after 0.5 s")
    over.touch()
    systemd.daemon_reload(timeout=60)
    assert systemd.restart(UNIT, timeout=60) == "done"


def test_a_read_outlasts_a_slow_reload_that_systemd_has_announced(
    systemd: BusSystemd, throwaway: ThrowawayHost, over: Path
) -> None:
    assert systemd.restart(UNIT, timeout=60) == "done"  # which subscribes
    threads = [
        threading.Thread(target=throwaway.systemctl, args=["daemon-reload"]),
        threading.Timer(READ_SECONDS + 2, over.touch),
    ]
    for thread in threads:
        thread.start()
    try:
        while not over.with_name("contract-began").exists():
            time.sleep(0.05)
        assert systemd.unit(UNIT).running
        assert over.exists()
    finally:
        for thread in threads:
            thread.join()


@rule("R12")
def test_a_restart_at_once_waits_for_no_other_unit(systemd: BusSystemd, throwaway: ThrowawayHost) -> None:
    """As kubelet's restart would wait for a proxy whose start hangs."""
    files = RootedFiles(throwaway.root)
    other = FILE.replace("sleeper", "slow")
    files.write(
        other, f"[Unit]\nBefore={UNIT}\n[Service]\nType=oneshot\nExecStart=/bin/sleep 1000\n".encode(), 0o644
    )
    throwaway.systemctl("daemon-reload")
    try:
        throwaway.systemctl("start", "--no-block", Path(other).name)
        with pytest.raises(SystemdError):
            systemd.restart(UNIT, timeout=1)
        assert systemd.restart(UNIT, timeout=60, at_once=True) == "done"
        assert systemd.unit(UNIT).running
        assert throwaway.show(Path(other).name, "ActiveState") == "activating"
    finally:
        throwaway.systemctl("stop", Path(other).name)
        files.remove(other)


def test_a_signal_reaches_the_main_process(systemd: BusSystemd) -> None:
    systemd.restart(UNIT, timeout=60)
    systemd.kill(UNIT, signal.SIGTERM)
    deadline = time.monotonic() + 60
    while systemd.unit(UNIT).main_pid and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not systemd.unit(UNIT).running


def test_python_signal_handlers_run_while_a_job_is_awaited(
    systemd: BusSystemd, throwaway: ThrowawayHost
) -> None:
    files = RootedFiles(throwaway.root)
    wait = "until [ -e /run/handled ]; do sleep 0.05; done"  # the job ends when the handler has run
    files.write(FILE, f"[Service]\nType=oneshot\nExecStart=/bin/sh -c '{wait}'\n".encode(), 0o644)
    systemd.daemon_reload(timeout=60)
    handled = throwaway.root / "run/handled"
    before = signal.signal(signal.SIGALRM, lambda *_: handled.touch())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        assert systemd.restart(UNIT, timeout=60) == "done"
    finally:
        signal.signal(signal.SIGALRM, before)
        handled.unlink(missing_ok=True)


@rule("R9")
def test_a_deadline_cancels_the_job(systemd: BusSystemd, throwaway: ThrowawayHost) -> None:
    RootedFiles(throwaway.root).write(FILE, b"[Service]\nType=oneshot\nExecStart=/bin/sleep 1000\n", 0o644)
    systemd.daemon_reload(timeout=60)
    started = time.monotonic()
    with pytest.raises(SystemdError):
        systemd.restart(UNIT, timeout=0.5)
    assert time.monotonic() - started < 60
    assert UNIT not in throwaway.systemctl("list-jobs", "--no-legend")


def test_it_listens_to_another_unit_as_soon_as_it_is_asked_to(
    systemd: BusSystemd, throwaway: ThrowawayHost
) -> None:
    """As when new settings name another unit of kubelet's."""
    from gi.repository import GLib

    changes: list[str] = []
    for name in ("contract-other.service", UNIT):
        systemd.listen([name], lambda: changes.append(UNIT))
    while GLib.MainContext.default().iteration(False):
        changes.clear()
    throwaway.systemctl("restart", UNIT)
    deadline = time.monotonic() + 30
    while not changes:
        assert time.monotonic() < deadline
        GLib.MainContext.default().iteration(False)


def test_a_bus_daemon_that_restarts_is_found_again(systemd: BusSystemd, throwaway: ThrowawayHost) -> None:
    assert systemd.unit(UNIT).exists
    throwaway.run("systemctl", "kill", "--signal=KILL", "dbus.service", check=False)
    deadline = time.monotonic() + 60
    while True:
        try:
            assert systemd.unit(UNIT).exists
            break
        except (SystemdError, UnservableHostError):
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_each_read_finds_a_bus_daemon_that_has_just_restarted(
    systemd: BusSystemd, throwaway: ThrowawayHost
) -> None:
    class HungUp(SystemBus):
        def read(self, what: str, function: Callable[[], T], seconds: float = READ_SECONDS) -> T:
            self.close()  # as a bus daemon does when it ends
            return super().read(what, function, seconds)

    files = RootedFiles(throwaway.root)
    systemd.restart(UNIT, timeout=60)
    assert BusSystemd(files, HungUp(files)).unit(UNIT).running


def test_a_job_that_was_not_done_in_time_is_told_in_words_with_commands_to_type() -> None:
    error = _not_done("systemctl restart a.service", "a.service", 4.05868, lost=False)
    assert error.message == "systemctl restart a.service: not done after 4.1 s; the job was cancelled"
    assert "`systemctl status a.service`" in error.hint


def test_no_bus_below_the_root_is_an_unservable_host(tmp_path: Path) -> None:
    with pytest.raises(UnservableHostError) as caught:
        BusSystemd(RootedFiles(tmp_path)).unit("kubelet.service")
    assert str(tmp_path) in caught.value.message
    assert "mount" in caught.value.hint


def test_a_person_at_a_shell_without_systemd_is_told_of_no_pod() -> None:
    hint = _no_bus(RootedFiles(Path("/"))).hint
    assert "needs systemd" in hint
    assert "hostPath" not in hint


@rule("R9")
def test_a_bus_that_never_answers_has_a_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    monkeypatch.setattr("installer.host.bus.CONNECT_SECONDS", 0.2)
    (tmp_path / "run/dbus").mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "run/dbus/system_bus_socket"))
        silent.listen()
        started = time.monotonic()
        with pytest.raises(UnservableHostError):
            BusSystemd(RootedFiles(tmp_path)).unit("kubelet.service")
        assert time.monotonic() - started < 60


def test_a_bus_without_systemd_is_an_unservable_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("installer.host.bus.CONNECT_SECONDS", 3.0)
    with tempfile.TemporaryDirectory() as directory:  # pytest's own may be too long for a socket's name
        root = Path(directory)
        place = root / "run/dbus/system_bus_socket"
        place.parent.mkdir(parents=True)
        config = root / "bus.conf"
        config.write_text(
            f"<busconfig><listen>unix:path={place}</listen><auth>EXTERNAL</auth>"
            '<policy context="default"><allow send_destination="*"/><allow receive_sender="*"/></policy>'
            "</busconfig>"
        )
        argv = ["dbus-daemon", f"--config-file={config}", "--nofork", "--print-address=1"]
        daemon = subprocess.Popen(argv, stdout=subprocess.PIPE)
        try:
            assert daemon.stdout
            assert daemon.stdout.readline()  # which it says when it listens
            with pytest.raises(UnservableHostError, match="systemd does not answer"):
                BusSystemd(RootedFiles(root)).unit("kubelet.service")
        finally:
            daemon.terminate()
            daemon.communicate()


def test_a_job_that_somebody_else_has_begun_runs_out_of_its_time_and_the_start_goes_on(
    systemd: BusSystemd, throwaway: ThrowawayHost
) -> None:
    """The proxy's unit limits its jobs."""
    drop_in(throwaway, b"ExecStartPost=/bin/sleep 5\n[Unit]\nJobRunningTimeoutSec=6\n")
    throwaway.systemctl("start", UNIT)
    throwaway.systemctl("restart", "--no-block", UNIT)
    until(lambda: systemd.unit(UNIT).sub_state == "start-post")
    time.sleep(2)  # of the limit
    before = systemd.unit(UNIT).invocation_id
    assert systemd.restart(UNIT, timeout=60) == "timeout"
    assert systemd.unit(UNIT).starts
    assert systemd.unit(UNIT).invocation_id != before
    until(lambda: systemd.unit(UNIT).came_up)
    assert systemd.unit(UNIT).running


FOLLOWER = "contract-follower.service"


@pytest.fixture
def follower_stops(systemd: BusSystemd, throwaway: ThrowawayHost) -> Iterator[Callable[[], UnitState]]:
    """A function that starts the unit and one that is ordered after it, as kubelet is after the proxy, and
    begins to stop the other one, which takes three seconds. It returns the unit."""

    def stop() -> UnitState:
        unit = f"[Unit]\nAfter={UNIT}\n[Service]\nExecStart=/bin/sleep 1000\nExecStop=/bin/sleep 3\n"
        RootedFiles(throwaway.root).write(f"/run/systemd/system/{FOLLOWER}", unit.encode(), 0o644)
        throwaway.systemctl("daemon-reload")
        throwaway.systemctl("start", UNIT, FOLLOWER)
        throwaway.systemctl("stop", "--no-block", FOLLOWER)
        until(lambda: systemd.unit(FOLLOWER).active_state == "deactivating")
        return systemd.unit(UNIT)

    yield stop
    throwaway.systemctl("stop", FOLLOWER)
    RootedFiles(throwaway.root).remove(f"/run/systemd/system/{FOLLOWER}")


def expect_same_process(before: UnitState, now: UnitState) -> None:
    assert now.starts
    assert (now.invocation_id, now.main_pid) == (before.invocation_id, before.main_pid)


@pytest.mark.parametrize("verb", ["restart", "stop"])
@pytest.mark.parametrize("whose", ["the unit's", "the run's"])
def test_a_job_that_waits_for_another_units_stop_leaves_the_old_process(
    systemd: BusSystemd,
    throwaway: ThrowawayHost,
    follower_stops: Callable[[], UnitState],
    whose: str,
    verb: str,
) -> None:
    """The same invocation tells it from a start."""
    drop_in(throwaway, b"[Unit]\nJobTimeoutSec=1\n" if whose == "the unit's" else b"")
    before, job = follower_stops(), getattr(systemd, verb)
    if whose == "the unit's":
        assert job(UNIT, timeout=60) == "timeout"
    else:
        with pytest.raises(SystemdError, match="the job was cancelled") as ended:
            job(UNIT, timeout=1)
        assert ended.value.name == TIMEOUT
    expect_same_process(before, systemd.unit(UNIT))


def test_a_job_that_systemd_refuses_leaves_the_old_process(
    systemd: BusSystemd, throwaway: ThrowawayHost, follower_stops: Callable[[], UnitState]
) -> None:
    """As those of a host that shuts down."""
    before = follower_stops()
    throwaway.systemctl("stop", "--no-block", "--job-mode=replace-irreversibly", UNIT)
    with pytest.raises(SystemdError) as ended:
        systemd.restart(UNIT, timeout=60)
    assert (ended.value.name, ended.value.lost) == (DESTRUCTIVE, False)
    expect_same_process(before, systemd.unit(UNIT))


def test_a_job_outlives_a_bus_daemon_that_is_restarted(systemd: BusSystemd, throwaway: ThrowawayHost) -> None:
    """The signal of its end is lost; how the unit is tells it."""
    drop_in(throwaway, b"ExecStartPre=/bin/sleep 1\nExecStopPost=/bin/sleep 1\n")
    disturb = threading.Timer(0.5, throwaway.systemctl, ["restart", "dbus.service"])
    disturb.start()
    try:
        assert systemd.restart(UNIT, timeout=60) == "done"
        assert systemd.unit(UNIT).running
        disturb.join()
        disturb = threading.Timer(0.5, throwaway.systemctl, ["restart", "dbus.service"])
        disturb.start()
        assert systemd.stop(UNIT, timeout=60) == "done"
        assert not systemd.unit(UNIT).running
    finally:
        disturb.join()


@pytest.mark.parametrize("verb", ["restart", "stop"])
def test_a_job_that_somebody_cancels_after_the_bus_daemon_was_restarted_is_not_done(
    systemd: BusSystemd, throwaway: ThrowawayHost, follower_stops: Callable[[], UnitState], verb: str
) -> None:
    """The old process is up, which alone would look as if the job had started it, or could not stop it."""

    def disturb() -> None:
        jobs = throwaway.systemctl("list-jobs", "--no-legend").splitlines()
        (job,) = (line.split()[0] for line in jobs if UNIT in line)
        throwaway.systemctl("restart", "dbus.service")
        throwaway.systemctl("cancel", job)

    before, other = follower_stops(), threading.Timer(0.5, disturb)
    other.start()
    try:
        assert getattr(systemd, verb)(UNIT, timeout=60) == "canceled"
    finally:
        other.join()
    expect_same_process(before, systemd.unit(UNIT))


@rule("R9")
def test_a_frozen_bus_daemon_is_waited_for_once(systemd: BusSystemd, throwaway: ThrowawayHost) -> None:
    assert systemd.restart(UNIT, timeout=60) == "done"
    throwaway.systemctl("kill", "--signal=STOP", "dbus.service")
    try:
        with pytest.raises(SystemdError) as caught:
            systemd.restart(UNIT, timeout=3)
        assert caught.value.lost
        started = time.monotonic()
        for _ in range(3):
            with pytest.raises(SystemdError):
                systemd.unit(UNIT)
        assert time.monotonic() - started < 2 * READ_SECONDS
    finally:
        throwaway.systemctl("kill", "--signal=CONT", "dbus.service")
    assert systemd.restart(UNIT, timeout=60) == "done"
