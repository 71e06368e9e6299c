"""The host lock: one holder, whoever holds it dies with it, and nothing at its path keeps it from root."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from installer.errors import BusyHostError, UnservableHostError
from installer.host.files import RootedFiles
from installer.host.lock import host_lock, lock_holder
from installer.model.paths import LOCK
from tests.lib.rules import rule


@rule("R10")
def test_the_lock_survives_a_killed_holder(tmp_path: Path) -> None:
    files = RootedFiles(tmp_path)
    code = (
        "import time; from pathlib import Path; from installer.host.files import RootedFiles\n"
        "from installer.host.lock import host_lock\n"
        f"with host_lock(RootedFiles(Path({str(tmp_path)!r}))): print('held', flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(BusyHostError, match=f"pid {holder.pid} "), host_lock(files):
            pass
        holder.kill()
        holder.wait()
    with host_lock(files):
        assert f"pid {os.getpid()} ".encode() in (files.read(LOCK) or b"")
    assert files.list("/run") == ()


@rule("R10")
def test_whoever_holds_the_lock_is_the_holder(tmp_path: Path) -> None:
    files = RootedFiles(tmp_path)
    files.make_directory("/run")
    with (tmp_path / f".{LOCK}").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(BusyHostError, match=f"{LOCK}: pid {os.getpid()}$"), host_lock(files):
            pass
    with host_lock(files):
        pass


@rule("R10")
@pytest.mark.parametrize("left", ["", "pid 1 on this-node: what an earlier holder wrote, which was killed"])
def test_a_holder_that_has_not_written_its_name_yet_is_named_all_the_same(tmp_path: Path, left: str) -> None:
    files = RootedFiles(tmp_path)
    files.make_directory("/run")
    place = tmp_path / f".{LOCK}"
    place.write_text(left)
    with subprocess.Popen(
        ["flock", place, "sh", "-c", "echo held; read _"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(BusyHostError, match=f"{LOCK}: pid {holder.pid}$"), host_lock(files):
            pass
        assert lock_holder(files) == f"pid {holder.pid}"
        holder.communicate(b"")
    assert lock_holder(files) == ""


@pytest.mark.parametrize(
    "make",
    [lambda place: place.symlink_to(place.with_name("victim")), Path.mkdir, os.mkfifo],
    ids=["symlink", "directory", "FIFO"],
)
def test_another_object_in_place_of_the_lock_is_named_and_left_alone(
    tmp_path: Path, make: Callable[[Path], object]
) -> None:
    """Only root can have put it there."""
    files = RootedFiles(tmp_path)
    files.make_directory("/run")
    place = tmp_path / f".{LOCK}"
    place.with_name("victim").write_text("theirs")
    make(place)
    cannot = pytest.raises(UnservableHostError, match=f"cannot acquire the host lock {LOCK}: ")
    with cannot as caught, host_lock(files):
        pass
    assert "clear the path; nothing was touched" in caught.value.hint
    assert place.with_name("victim").read_text() == "theirs"
    assert not place.is_file() or place.is_symlink()


def test_who_holds_the_lock_is_told_without_touching_it(tmp_path: Path) -> None:
    files = RootedFiles(tmp_path)
    assert lock_holder(files) == ""
    with host_lock(files):
        assert lock_holder(files).startswith(f"pid {os.getpid()} on ")
        (tmp_path / f".{LOCK}").write_bytes(b"")
        assert lock_holder(files) == f"pid {os.getpid()}"
    assert lock_holder(files) == ""
    (tmp_path / f".{LOCK}").write_text("pid 42, which was killed")
    assert lock_holder(files) == ""
    with host_lock(files):
        pass
