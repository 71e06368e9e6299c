"""The files that the probes of our container look for; the age of `alive` and `ready` counts."""

from __future__ import annotations

from collections.abc import Callable

from installer.daemon.configuration import Command


class ProbeFiles:
    """Tells `complain` which file cannot be written or deleted, and raises nothing."""

    def __init__(self, command: Command, complain: Callable[[str], None]) -> None:
        self._command, self._complain = command, complain
        self._written = ""

    def show(
        self, word: str = "", *, alive: bool = False, ready: bool = False, excused: bool = False
    ) -> None:
        """`alive`: the daemon looks, and on time; without it, neither of the others is shown. `excused`: a
        restart of the container would not bring the proxy (`DaemonState.is_excused`). `word` is for people:
        the content of the first, which a probe that fails repeats."""
        command = self._command
        wanted = {
            command.alive_file: alive,
            command.ready_file: alive and ready,
            command.excused_file: alive and excused,
        }
        for file, exists in wanted.items():
            try:
                if exists:
                    file.parent.mkdir(parents=True, exist_ok=True)
                    if file == command.alive_file and word != self._written:
                        file.write_text(f"{word}\n")
                        self._written = word
                    file.touch()
                else:
                    file.unlink(missing_ok=True)
            except OSError as error:
                self._complain(f"cannot update the files that the probes read: {error}")
