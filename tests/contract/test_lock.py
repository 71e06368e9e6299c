"""The host lock: one holder, whoever holds it dies with it, and nothing at its path keeps it from root."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pytest_mock import MockerFixture

from installer.errors import BusyHostError, UnservableHostError
from installer.host.files import RootedFiles
from installer.host.lock import host_lock
from installer.model.paths import LOCK, LOCK_OF_ROOT
from tests.rules import rule


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
        assert holds(files, LOCK)
    assert files.list("/run") == ("lock",)
    assert files.list("/run/lock") == ()


def holds(files: RootedFiles, path: str) -> bool:
    """Whether the lock at `path` is a file that says that it is ours."""
    return f"pid {os.getpid()} ".encode() in (files.read(path) or b"")


def make_directory_of_nobody(place: Path) -> None:
    place.mkdir()
    (place / "theirs").write_text("theirs")
    os.chown(place, 65534, 65534)


def make_file_of_nobody(place: Path) -> None:
    place.write_text("")
    os.chown(place, 65534, 65534)


def make_hard_link(place: Path) -> None:
    os.link(place.parents[2] / "victim", place)


@rule("R10")
@pytest.mark.parametrize(
    "make",
    [
        lambda place: place.symlink_to(place.parents[2] / "victim"),
        lambda place: place.symlink_to("dangling"),
        make_hard_link,
        make_file_of_nobody,
        make_directory_of_nobody,
        Path.mkdir,
        os.mkfifo,
        lambda place: os.mknod(place, stat.S_IFSOCK | 0o600),
    ],
    ids=[
        "symlink",
        "dangling",
        "hard link",
        "of nobody",
        "directory",
        "empty directory",
        "FIFO",
        "socket",
    ],
)
@pytest.mark.parametrize("path", [LOCK, LOCK_OF_ROOT])
def test_another_object_in_place_of_the_lock_does_not_block_it(
    tmp_path: Path, path: str, make: Callable[[Path], object]
) -> None:
    files = RootedFiles(tmp_path)
    files.make_directory("/run/lock")
    (tmp_path / "victim").write_text("theirs")
    place = tmp_path / f".{LOCK}"
    make(place)
    if path != LOCK:
        place.rename(tmp_path / f".{path}")
    with host_lock(files):
        assert holds(files, LOCK)
        assert holds(files, LOCK_OF_ROOT)
    assert (tmp_path / "victim").read_text() == "theirs"
    aside = [file.read_text() for file in (tmp_path / "run").rglob("*.aside-*/theirs")]
    assert aside == (["theirs"] if make is make_directory_of_nobody else [])


@rule("R10")
def test_the_holder_of_either_lock_is_the_holder(tmp_path: Path) -> None:
    files = RootedFiles(tmp_path)
    files.make_directory("/run/lock")
    for path in (LOCK, LOCK_OF_ROOT):
        with (tmp_path / f".{path}").open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            with pytest.raises(BusyHostError, match=f"{path}: holder unknown"), host_lock(files):
                pass
        with host_lock(files):
            pass


@pytest.mark.parametrize("path", [LOCK, LOCK_OF_ROOT])
def test_what_root_cannot_clear_leaves_the_other_lock(
    tmp_path: Path, mocker: MockerFixture, path: str
) -> None:
    """As an immutable directory, or a mount."""
    files = RootedFiles(tmp_path)
    files.make_directory("/run/lock")
    (tmp_path / f".{path}").mkdir()
    busy = OSError(errno.EBUSY, os.strerror(errno.EBUSY))
    mocker.patch("installer.host.lock.os.rmdir", side_effect=busy)
    mocker.patch("installer.host.lock.os.rename", side_effect=busy)
    other = LOCK if path == LOCK_OF_ROOT else LOCK_OF_ROOT
    with host_lock(files):
        assert holds(files, other)
        with pytest.raises(BusyHostError, match=other), host_lock(files):
            pass
    (tmp_path / f".{other}").mkdir()
    with (
        pytest.raises(UnservableHostError, match="cannot acquire the host lock") as caught,
        host_lock(files),
    ):
        pass
    assert "nothing was touched" in caught.value.hint


def test_an_immutable_file_is_locked_all_the_same(tmp_path: Path) -> None:
    files = RootedFiles(tmp_path)
    files.make_directory("/run/lock")
    places = [tmp_path / f".{path}" for path in (LOCK, LOCK_OF_ROOT)]
    for place in places:
        place.touch()
    if subprocess.run(["chattr", "+i", *places], capture_output=True, check=False).returncode:
        pytest.skip("the file system of the temporary directory does not know immutable files")
    try:
        with host_lock(files), pytest.raises(BusyHostError, match="holder unknown"), host_lock(files):
            pass
        with host_lock(files):
            pass
    finally:
        subprocess.run(["chattr", "-i", *places], check=True)


def test_a_file_in_place_of_the_directory_leaves_the_lock_of_root(tmp_path: Path) -> None:
    files = RootedFiles(tmp_path)
    files.make_directory("/run")
    (tmp_path / "run/lock").touch()
    with host_lock(files):
        assert holds(files, LOCK_OF_ROOT)
    assert files.list("/run") == ("lock",)
