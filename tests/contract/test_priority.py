"""The share of the CPUs that a process gives itself."""

from __future__ import annotations

import errno
import subprocess
import sys

import pytest

from tests.lib.rules import rule

# A filter of seccomp(2) that answers setpriority(2) with an error.
PROGRAM = """
import ctypes, platform, struct, sys
from installer.host.priority import raise_priority

libc = ctypes.CDLL(None, use_errno=True)
number = {"x86_64": 141, "aarch64": 140}[platform.machine()]
refused, allowed = 0x50000 | int(sys.argv[1]), 0x7FFF0000
steps = ((0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, refused), (0x06, 0, 0, allowed))
code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
filter = ctypes.create_string_buffer(struct.pack("@HP", len(steps), ctypes.addressof(code)))
if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, filter, 0, 0):
    sys.exit("no seccomp")
raise_priority()
print("works on")
"""


@rule("R15")
@pytest.mark.parametrize("error", [errno.EPERM, errno.ENOSYS])
def test_where_a_filter_forbids_it_the_daemon_works_on_with_the_priority_that_it_has(error: int) -> None:
    """containerd's filter answers EPERM, and many others ENOSYS."""
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(error)], capture_output=True, text=True, check=False
    )
    if "no seccomp" in ended.stderr:
        pytest.skip("this kernel has no filters of system calls")
    assert ended.stdout == "works on\n", ended.stderr
