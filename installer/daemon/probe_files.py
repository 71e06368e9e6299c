"""The files that the probes of our container look for; the age of `alive` and `ready` counts."""

from __future__ import annotations

from collections.abc import Callable

from installer.daemon.configuration import Command
from installer.model.daemon import DaemonState


class ProbeFiles:
    """Warns if a file cannot be written or deleted, and raises nothing."""

    def __init__(self, command: Command, warn: Callable[[str], None]) -> None:
        self._command, self._warn = command, warn
        self._written = ""

    def show(self, state: DaemonState, *, alive: bool) -> None:
        """`alive`: the daemon looks, and on time; otherwise none of the files exists. The first one contains
        the state for people, because a probe that fails repeats it."""
        command, summary = self._command, state.summary
        wanted = {
            command.alive_file: alive,
            command.ready_file: alive and state.ready,
            command.excused_file: alive and state.is_excused,
        }
        for file, exists in wanted.items():
            try:
                if exists:
                    file.parent.mkdir(parents=True, exist_ok=True)
                    if file == command.alive_file and summary != self._written:
                        file.write_text(f"{summary}\n")
                        self._written = summary
                    file.touch()
                else:
                    file.unlink(missing_ok=True)
            except OSError as error:
                self._warn(f"cannot update the files that the probes read: {error}")
