"""Runs inside the machine: prints all that a removal has to leave as it was, as one JSON object.

Every path of the root file system, of /run and of /tmp; the state of every unit file; kubelet's unit. As
snapshot has it, and with the same exceptions, but for two: what the distribution has below /usr is named by
its inode and the time of its last change, which nobody can set, for to read all of it takes a minute; and
some of /run is udev's, which a throwaway host has not.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.lib.throwaway.lively import changes_by_itself
from tests.lib.throwaway.snapshot import entry, units

DISTRIBUTIONS = ("usr", "boot")
#: Beside the exceptions of a throwaway host: udev's, mount's, fsck's, and systemd's for whom the tests run.
LIVELY = ("/run/udev", "/run/mount", "/run/blkid", "/run/systemd/transient")
IN_MEMORY = ("/run", "/tmp")


def walk(path: Path, device: int) -> Iterator[tuple[str, str]]:
    """A path of this system and all below it on the same file system."""
    name = str(path)
    if changes_by_itself(name) or name in LIVELY:
        return
    try:
        status = path.lstat()
    except FileNotFoundError:
        return  # it went while it was looked for
    if status.st_dev != device:
        return
    is_directory = path.is_dir() and not path.is_symlink()
    if path.parts[1:2] and path.parts[1] in DISTRIBUTIONS and not is_directory:
        yield name, f"inode {status.st_ino} of {status.st_size} bytes, changed {status.st_ctime_ns}"
    else:
        try:
            yield name, str(entry(path, status, name))
        except FileNotFoundError:
            return
    if is_directory:
        for child in sorted(os.listdir(path)):
            yield from walk(path / child, device)


def systemctl(*words: str) -> str:
    return subprocess.run(["systemctl", *words], stdout=subprocess.PIPE, text=True, check=True).stdout


def main() -> None:
    found = {name: str(value) for name, value in units(systemctl).items()}
    for top in ("/", *IN_MEMORY):
        found.update(walk(Path(top), os.stat(top).st_dev))
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
