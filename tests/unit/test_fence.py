"""The fence of conftest.py holds, whatever a test uses to get out."""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ESCAPES: dict[str, Callable[[], object]] = {
    "process": lambda: importlib.import_module("subprocess").run(["true"], check=False),
    "shell": lambda: os.system("true"),
    "fork": os.fork,
    "bus": lambda: socket.socket(socket.AF_UNIX).connect("/run/dbus/system_bus_socket"),
    "network": lambda: socket.create_connection(("127.0.0.1", 9), timeout=0.1),
    "write": lambda: Path("/var/tmp/reached-out").write_text("x"),
    "low-level write": lambda: os.open("/var/tmp/reached-out", os.O_WRONLY | os.O_CREAT),
    "directory": lambda: Path("/var/tmp/reached-out").mkdir(),
    "rename": lambda: Path("/etc/hostname").rename("/etc/reached-out"),
    "removal": lambda: Path("/etc/reached-out").unlink(),
}


@pytest.mark.parametrize("escape", ESCAPES.values(), ids=ESCAPES.keys())
def test_reaching_out_fails(escape: Callable[[], object], fence_itself: Any) -> None:
    with pytest.raises(PermissionError, match="reached out"):
        escape()
    assert fence_itself.breaches
    fence_itself.breaches.clear()


def test_a_swallowed_breach_is_remembered(fence_itself: Any) -> None:
    with contextlib.suppress(Exception):
        os.system("true")
    assert len(fence_itself.breaches) == 1
    fence_itself.breaches.clear()


def test_tmp_path_is_free(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/file").write_text("x")
    (tmp_path / "a/file").rename(tmp_path / "b")
    (tmp_path / "link").symlink_to("/etc/hostname")
    (tmp_path / "b").unlink()


def test_a_link_out_of_tmp_path_does_not_help(tmp_path: Path, fence_itself: Any) -> None:
    (tmp_path / "out").symlink_to("/var/tmp")
    with pytest.raises(PermissionError, match="reached out"):
        (tmp_path / "out/reached-out").write_text("x")
    fence_itself.breaches.clear()
