"""Files below the host root by a pattern or a directory, as kubelet and systemd choose them."""

from __future__ import annotations

import fnmatch
import os
import posixpath
import re
import stat
from collections.abc import Iterator

from installer.host.chase import components
from installer.host.ports import Files

# Which files an EnvironmentFile= pattern means, below the host root.
#
# fnmatch by bytes, for each component: a backslash takes the next character as it is, and a hidden name has
# to be named with its dot, as for glob(3). Not supported, because units of known nodes do not have them:
# character classes (`[[:digit:]]`), and a backslash between brackets.

_MAGIC = re.compile(r"[*?]|\[.*\]", re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


def matching(files: Files, pattern: str) -> tuple[str, ...]:
    """The paths that the absolute `pattern` means, in the order in which systemd reads them; a plain path, if
    it exists. Dangling symlinks are among them."""
    found = [""]
    for part in components(pattern):
        if _MAGIC.search(part):
            found = [
                f"{directory}/{name}"
                for directory in found
                for name in files.list(directory or "/")
                if _matches(name, part)
            ]
        else:
            plain = _ESCAPED.sub(r"\1", part)
            found = [f"{directory}/{plain}" for directory in found]
    existing = (path for path in found if files.status(path) is not None)
    return tuple(sorted(existing, key=os.fsencode))


def _matches(name: str, part: str) -> bool:
    if name.startswith(".") and not part.startswith((".", "\\.")):
        return False
    expression = _ESCAPED.sub(r"[\1]", part).replace("[^", "[!")
    return fnmatch.fnmatchcase(_bytewise(name), _bytewise(expression))


def _bytewise(text: str) -> str:
    return os.fsencode(text).decode("latin-1")


# Which files kubelet reads in its --config-dir.
#
# As kubelet does it since 1.30, with Go's filepath.WalkDir (`mergeKubeletConfigurations` in Kubernetes'
# cmd/kubelet/app/server.go): *.conf, also in subdirectories, in the order of names.


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
