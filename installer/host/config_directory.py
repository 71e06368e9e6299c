"""Which files kubelet reads in its --config-dir.

As kubelet does it since 1.30, with Go's filepath.WalkDir (`mergeKubeletConfigurations` in Kubernetes'
cmd/kubelet/app/server.go): *.conf, also in subdirectories, in the order of names.
"""

from __future__ import annotations

import posixpath
import stat
from collections.abc import Iterator

from installer.host.ports import Files


def configuration_files(files: Files, directory: str) -> Iterator[str]:
    """Their paths below the absolute `directory`. None of one that does not exist, nor for an empty name,
    which is not the host's root.

    Links to directories are not entered: not even `directory` itself, unless it ends with a slash. Raises
    UnservableHostError where a link leads out of the host root.
    """
    if not directory:
        return
    status = files.status(directory, follow=directory.endswith("/"))
    if status is None or not stat.S_ISDIR(status.st_mode):
        return
    for name in files.list(directory):
        path = posixpath.join(directory, name)
        found = files.status(path)
        if found is not None and stat.S_ISDIR(found.st_mode):
            yield from configuration_files(files, path)
        elif name.endswith(".conf"):
            yield path
