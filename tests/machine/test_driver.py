"""The driver: whatever ends it, nothing of the machine is left."""

import os
import subprocess
import sys
import time
from pathlib import Path

from tests.lib.tree import tree
from tests.machine.parts import kernel

#: Starts a machine of empty disks, says which process it is, and waits for its end, which nobody ends.
DRIVER = """
import sys
from pathlib import Path
from tests.machine.machine import Machine, Parts
scratch = Path(sys.argv[2])
machine = Machine(Parts(Path(sys.argv[1]), scratch / "disk", scratch / "kit"), scratch / "console")
machine.start()
print(machine.pid, flush=True)
sys.stdin.read()
"""


def test_the_machine_dies_with_its_driver(tmp_path: Path) -> None:
    for name in ("disk", "kit"):
        (tmp_path / name).touch()
        os.truncate(tmp_path / name, 1 << 20)
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(kernel(tree())), str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert driver.stdout is not None
    machine = Path(f"/proc/{int(driver.stdout.readline())}")
    while "qemu" not in (machine / "cmdline").read_text().split("\0")[0]:
        time.sleep(0.01)
    driver.kill()
    driver.communicate()
    deadline = time.monotonic() + 120
    while machine.exists():
        assert time.monotonic() < deadline, "the machine lives on"
        time.sleep(0.01)
