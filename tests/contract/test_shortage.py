"""Without descriptors or processes, each door says so: it does not call a relay dead or a binary broken."""

from __future__ import annotations

import errno
import io
import os
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psutil  # noqa: F401  loaded before the descriptors are used up
import pytest
from pytest_mock import MockerFixture

from installer.errors import InstallerError, StepFailedError, UnservableHostError, remedy_for
from installer.host.bus import SystemBus
from installer.host.cri import SocketCri
from installer.host.files import RootedFiles
from installer.host.healthz import HostHealthz
from installer.host.light_call import answers_version
from installer.host.lock import host_lock
from installer.host.machine import host_identity
from installer.host.process import ProcProcesses
from installer.host.systemd import BusSystemd
from installer.host.validator import BinaryValidator
from installer.inputs.settings import load_settings
from installer.model.containers import CpuResources
from installer.report.queued import QueuedStream


@contextmanager
def no_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def lock(root: Path) -> None:
    with host_lock(RootedFiles(root)):
        pass


@pytest.mark.parametrize(
    "door",
    [
        lambda root: RootedFiles(root).read("/etc/hostname"),
        lambda root: RootedFiles(root).state("/etc/hostname"),
        lambda root: RootedFiles(root).list("/etc"),
        lambda root: SocketCri(RootedFiles(root)).answers("unix:///run/x.sock"),
        lambda root: answers_version(root / "run/x.sock", 1),
        lambda root: HostHealthz(Path("/")).ask("http://127.0.0.1:1/healthz", os.getpid()),
        lambda root: ProcProcesses(Path("/")).get(os.getpid()),
        lambda root: host_identity(RootedFiles(root)),
        lambda root: load_settings(root / "etc/hostname"),
        lambda root: BusSystemd(RootedFiles(root)).unit("kubelet.service"),
        lambda root: BinaryValidator(RootedFiles(root)).validate(root / "x", b""),
        lock,
    ],
)
def test_a_process_without_descriptors_says_so(tmp_path: Path, door: Callable[[Path], object]) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/hostname").write_text("a: b\n")
    with no_descriptors(), pytest.raises((OSError, InstallerError)) as caught:
        door(tmp_path)
    assert os.strerror(errno.EMFILE) in str(caught.value)
    error = caught.value
    assert "LimitNOFILE" in (remedy_for(error) if isinstance(error, OSError) else getattr(error, "hint", ""))


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM])
def test_a_binary_is_not_blamed_for_processes_that_are_used_up(
    tmp_path: Path, mocker: MockerFixture, number: int
) -> None:
    mocker.patch("subprocess.Popen", side_effect=OSError(number, os.strerror(number)))
    with pytest.raises(UnservableHostError, match=os.strerror(number)) as caught:
        BinaryValidator(RootedFiles(tmp_path)).validate(tmp_path / "x", b"")
    assert "nothing was touched" in caught.value.hint
    assert "limit" in caught.value.hint


def test_a_full_file_system_is_not_the_binarys_fault(tmp_path: Path, mocker: MockerFixture) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    mocker.patch("pathlib.Path.write_bytes", side_effect=full)
    with pytest.raises(UnservableHostError, match=os.strerror(errno.ENOSPC)) as caught:
        BinaryValidator(RootedFiles(tmp_path)).validate(tmp_path / "x", b"")
    assert "the disk is full" in caught.value.hint
    assert list(tmp_path.iterdir()) in ([], [tmp_path / "run"])


def test_a_thread_that_cannot_start_is_told_before_glib_aborts(tmp_path: Path, mocker: MockerFixture) -> None:
    mocker.patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start new thread"))
    with pytest.raises(OSError, match="cannot start a thread") as caught:
        assert SystemBus(RootedFiles(tmp_path)).manager
    assert "pids.max" in remedy_for(caught.value)


def test_a_log_waits_for_a_thread_that_cannot_start(mocker: MockerFixture) -> None:
    stream = io.StringIO()
    mocker.patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start new thread"))
    log = QueuedStream(stream)
    log.write("one\n")
    mocker.stopall()
    log.write("two\n")
    log.finish()
    assert stream.getvalue() == "one\ntwo\n"


def test_a_log_that_refuses_a_text_takes_the_next_one(mocker: MockerFixture) -> None:
    """Else each event leaves a traceback on stderr, where people read the log."""
    complaint = mocker.patch("threading.excepthook")
    stream = mocker.Mock()
    stream.write.side_effect = (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), None)
    log = QueuedStream(stream)
    log.write("one\n")
    log.write("two\n")
    log.finish()
    assert stream.write.mock_calls == [mocker.call("one\n"), mocker.call("two\n")]
    complaint.assert_not_called()


def test_a_runtime_is_not_blamed_for_threads_that_cannot_start(tmp_path: Path, mocker: MockerFixture) -> None:
    mocker.patch.object(ThreadPoolExecutor, "submit", side_effect=RuntimeError("can't start new thread"))
    with socket.socket(socket.AF_UNIX) as runtime:
        runtime.bind(str(tmp_path / "r.sock"))
        with pytest.raises(StepFailedError, match="cannot start a thread") as caught:
            SocketCri(RootedFiles(tmp_path)).update("/r.sock", {"a": CpuResources(shares=2)})
    assert "pids.max" in caught.value.hint
