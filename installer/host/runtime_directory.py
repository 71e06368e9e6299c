"""Our directory in /run, whatever somebody has put in its place."""

from __future__ import annotations

from installer.host.ports import Files
from installer.model.host import Kind
from installer.model.paths import OUR_RUNTIME


def make_runtime_directory(files: Files, path: str = OUR_RUNTIME) -> tuple[str, ...]:
    """Make it, or the one below it that `path` names; return what was made. A link or a file on the way is
    deleted: no start of the proxy could be announced there, and kubelet's endpoint leads through it.

    Raises OSError, UnservableHostError.
    """
    names = path.removeprefix(OUR_RUNTIME).split("/")
    for count in range(1, len(names) + 1):
        directory = OUR_RUNTIME + "/".join(names[:count])
        if files.state(directory).kind not in (Kind.DIRECTORY, Kind.ABSENT):
            files.remove(directory)
    return files.make_directory(path)
