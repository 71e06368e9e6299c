"""The steps of a plan that write and restore files and links. `apply` handles their failures."""

from __future__ import annotations

import posixpath
from contextlib import suppress

from installer.errors import InstallerError, failed_on_disk
from installer.host.ports import Files
from installer.host.runtime_directory import make_runtime_directory
from installer.model import paths
from installer.model.event import Emit, Event
from installer.model.host import DesiredFile, FileState, HostPath, Kind
from installer.model.plan import Plan, Step
from installer.node.kept import object_path


def write(files: Files, step: Step) -> None:
    file = step.file
    assert isinstance(file, DesiredFile)
    files.write(file.path, file.content, file.mode, digest=file.digest)


def restore(files: Files, step: Step) -> None:
    original = step.file
    assert isinstance(original, FileState)
    # systemd deletes the directory of a link once it is empty, and somebody may have deleted any other.
    files.make_directory(posixpath.dirname(step.target))
    if original.kind is Kind.SYMLINK:
        files.link(step.target, original.target, original.uid, original.gid)
    else:
        kept = HostPath(object_path(original.digest))
        owner = (original.uid, original.gid)
        files.write(step.target, kept, original.mode, *owner, original.digest, original.attributes)


def clear_hold(files: Files) -> None:
    for path in paths.HOLDS:
        files.remove_tree(path)  # whatever somebody has put there


def write_hold(plan: Plan, files: Files, emit: Emit, step: Step) -> None:
    """A disk that takes no hold must not keep kubelet on a dead relay: /run takes it, or else the guard finds
    out by itself."""
    file = step.file
    assert isinstance(file, DesiredFile)
    assert isinstance(file.content, bytes)
    reason = file.content.decode("utf-8", "replace").strip()
    done = Event("hold.set", f"kubelet is held on its base endpoint: {reason}", {"reason": reason})
    try:
        files.make_directory(paths.OUR_STATE, 0o700)
        files.write(step.target, file.content, file.mode)
    except (InstallerError, OSError) as error:
        if not (plan.rescues and len(plan.steps) > 1):  # it leaves the relay as well
            raise
        what = "the hold could not be written"
        failure = failed_on_disk(what, error) if isinstance(error, OSError) else error
        emit(Event("warning", failure.message, {"code": "hold-unwritten", "hint": failure.hint}))
        with suppress(InstallerError, OSError):
            make_runtime_directory(files)
            files.write(paths.HOLDS[1], file.content, file.mode)
            emit(done)
    else:
        emit(done)
