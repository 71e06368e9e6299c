"""What a person sees on a terminal of some width."""

from __future__ import annotations

import os
import pty
import struct
import sys
from fcntl import ioctl
from pathlib import Path
from subprocess import PIPE, Popen
from termios import TIOCSWINSZ

ROOT = Path(__file__).parents[2]


def seen_on(columns: int, *words: str) -> str:
    """What a person sees on a terminal of this width."""
    leader, follower = pty.openpty()
    ioctl(follower, TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    program = (sys.executable, "-m", "installer.cli", *words)
    with Popen(program, cwd=ROOT, stdout=follower, stderr=follower, stdin=PIPE) as ended:
        os.close(follower)
        said = b""
        while True:
            try:
                said += (read := os.read(leader, 65536))
            except OSError:  # nobody has the other end any more
                break
            if not read:
                break
        ended.wait()
    os.close(leader)
    return said.decode().replace("\r\n", "\n")


def test_on_a_terminal_an_entry_is_folded_but_not_its_commands() -> None:
    lines = seen_on(60, "explain", "held").splitlines()
    assert max(len(line) for line in lines if not line.startswith("    ") and "`" not in line) <= 60
    assert "    rm -f /var/lib/cri-resmgr-installer/hold /run/cri-resmgr-installer/hold" in lines


def test_yaml_is_never_folded() -> None:
    said = seen_on(40, "manifests", "--image", "example.org/image:1")
    assert said == seen_on(500, "manifests", "--image", "example.org/image:1")
