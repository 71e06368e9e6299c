"""A file that the operator gives is a regular file of a sensible size, or it is refused at once."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from pytest_mock import MockerFixture

from installer.errors import InvalidInputError
from installer.inputs.configs import EXTRA_OPTIONS, FALLBACK, FORCE, load_configs
from installer.inputs.payload import BINARY, DIGESTS, load_payload
from installer.inputs.reading import read_if_present, read_input
from installer.inputs.settings import load_settings
from tests.lib.releases import elf, unpack

KINDS: dict[str, Callable[[Path], object]] = {
    "a FIFO": os.mkfifo,
    "a character device": lambda path: path.symlink_to("/dev/zero"),
    "a directory": Path.mkdir,
    "a socket": lambda path: os.mknod(path, stat.S_IFSOCK | 0o600),
}
READERS: dict[str, Callable[[Path], object]] = {
    "settings": lambda directory: load_settings(directory / "settings"),
    FALLBACK: load_configs,
    FORCE: load_configs,
    EXTRA_OPTIONS: load_configs,
    DIGESTS: load_payload,
    "VERSION": load_payload,
    BINARY: load_payload,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", READERS)
def test_what_is_not_a_regular_file_is_refused_at_once(tmp_path: Path, name: str, kind: str) -> None:
    unpack(tmp_path, elf())
    if name == BINARY:
        (tmp_path / BINARY).unlink()
    KINDS[kind](tmp_path / name)
    with pytest.raises(InvalidInputError) as caught:
        READERS[name](tmp_path)
    assert f"{tmp_path / name}: is {kind}, not a regular file" in caught.value.faults


def test_a_fifo_with_a_writer_keeps_what_was_written(tmp_path: Path) -> None:
    pipe = tmp_path / "settings"
    os.mkfifo(pipe)
    descriptor = os.open(pipe, os.O_RDWR)
    os.write(descriptor, b"mode: remove\n")
    with pytest.raises(InvalidInputError, match="is a FIFO"):
        load_settings(pipe)
    assert os.read(descriptor, 100) == b"mode: remove\n"
    os.close(descriptor)


def test_a_file_is_read_through_links_and_up_to_its_limit(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * (1 << 20))
    (tmp_path / "link").symlink_to("file")
    assert read_input(tmp_path / "link") == b"x" * (1 << 20)
    (tmp_path / "file").write_bytes(b"x" * ((1 << 20) + 1))
    with pytest.raises(InvalidInputError, match="link: larger than 1 MiB"):
        read_input(tmp_path / "link")


def test_what_is_absent_and_what_is_a_dangling_symlink(tmp_path: Path) -> None:
    assert read_if_present(tmp_path / "none") is None
    (tmp_path / "file").touch()
    assert read_if_present(tmp_path / "file/none") is None
    (tmp_path / "link").symlink_to("none")
    for read in (read_input, read_if_present):
        with pytest.raises(InvalidInputError, match="link: dangling symlink"):
            read(tmp_path / "link")


@pytest.mark.parametrize(
    ("number", "remedy"),
    [(errno.EMFILE, "LimitNOFILE"), (errno.ENFILE, "fs.file-max"), (errno.EIO, "dmesg")],
)
def test_an_error_of_the_host_comes_with_its_remedy(
    tmp_path: Path, mocker: MockerFixture, number: int, remedy: str
) -> None:
    (tmp_path / "settings").touch()
    mocker.patch("installer.inputs.reading.open_regular", side_effect=OSError(number, os.strerror(number)))
    with pytest.raises(InvalidInputError, match=f"settings: {os.strerror(number)}") as caught:
        load_settings(tmp_path / "settings")
    assert remedy in caught.value.hint
