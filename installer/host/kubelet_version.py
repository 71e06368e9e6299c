"""Which version a kubelet is, by its own word.

The files of a node do not say it, its healthz does not, and the API server knows it only of a node that has
joined and only for those who may ask. So the program is run once with --version, by itself, and only when
something is to be changed: it prints one line and ends (k8s.io/component-base/version/verflag). A program
that anybody but root could have written is not run.
"""

from __future__ import annotations

import re
import stat

from installer.errors import InstallerError
from installer.host.files import RootedFiles
from installer.host.run import run

_SECONDS = 5.0  # it takes 0.1 s; one that takes longer is not asked again
_SAID = re.compile(r"Kubernetes v([0-9]+\.[0-9]+\.[0-9]+\S*)")
_ELF = b"\x7fELF"


def kubelet_version(files: RootedFiles, path: str) -> str:
    """`1.36.2` of the kubelet at a host path; empty if it does not say so, or is not a program of root's."""
    try:
        status = files.status(path, follow=True)
        if status is None or not stat.S_ISREG(status.st_mode) or status.st_uid != 0 or status.st_mode & 0o022:
            return ""
        if files.read(path, len(_ELF)) != _ELF:
            return ""  # a script may do more than say its version
    except (InstallerError, OSError):
        return ""
    finished = run(("chroot", str(files.root), path, "--version"), _SECONDS)
    found = next((match for line in finished.lines if (match := _SAID.match(line))), None)
    return found[1] if found and finished.code == 0 else ""
