"""Files below the host root by pattern or directory, selected as kubelet and systemd do."""

from __future__ import annotations

import fnmatch
import os
import posixpath
import re
import stat
from collections.abc import Iterator

from installer.host.chase import components
from installer.host.ports import Files

# The files that an EnvironmentFile= pattern matches below the host root.
#
# fnmatch by bytes, per component. As in glob(3), a backslash escapes the next character, and only a pattern
# with a leading dot matches hidden names. Not supported, because known nodes' units do not use them:
# character classes (`[[:digit:]]`), and a backslash between brackets.

_MAGIC = re.compile(r"[*?]|\[.*\]", re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


def matching(files: Files, pattern: str) -> tuple[str, ...]:
    """The paths that the absolute `pattern` matches, in systemd's reading order. A plain path matches if it
    exists. Dangling symlinks are included."""
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


# The files that kubelet reads in its --config-dir.
#
# Since 1.30 kubelet walks it with Go's filepath.WalkDir (`mergeKubeletConfigurations` in Kubernetes'
# cmd/kubelet/app/server.go): *.conf, also in subdirectories, ordered by name.


def configuration_files(files: Files, directory: str) -> Iterator[str]:
    """Their paths below the absolute `directory`. None if it does not exist. An empty name gives none either;
    it does not mean the host's root.

    Links to directories are not entered, not even `directory` itself unless it ends with a slash. Raises
    UnservableHostError if a link leads out of the host root.
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
