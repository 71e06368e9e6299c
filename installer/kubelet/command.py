"""Kubelet's base: its unit without our drop-in, merged, and the command line of its next start."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import NamedTuple

from installer.kubelet.launch import Launch, find_launch, shell_words
from installer.model.paths import DROP_IN_NAME
from installer.model.snapshot import KubeletBase, UnitText
from installer.systemd_syntax.environment_file import parse_environment_file
from installer.systemd_syntax.unit_file import (
    Assignment,
    ExecCommand,
    bare_variable,
    expand,
    merged,
    parse_exec,
    parse_unit,
    split_assignments,
    split_words,
)

ARGS_VARIABLE = "CRI_RESMGR_KUBELET_ARGS"  # ends a command line that our drop-in repeats


class BaseUnit(NamedTuple):
    """The assignments of the base in the order in which systemd reads them; `later` are those of drop-ins
    whose name sorts after ours, which override our lines."""

    assignments: tuple[Assignment, ...]
    later: tuple[Assignment, ...]

    def commands(self) -> tuple[ExecCommand, ...]:
        """The effective ExecStart= lines. Raises ValueError where one cannot be read."""
        lines = merged(self.assignments, "Service", "ExecStart")
        return tuple(parse_exec(line) for line in lines)

    def resets_later(self, key: str) -> str:
        """The later drop-in that empties the list setting `key`, or an empty string."""
        return next((line.path for line in self._later(key) if not line.value), "")

    def sets_later(self, key: str) -> str:
        """The later drop-in that adds to the list setting `key`, or an empty string."""
        return next((line.path for line in self._later(key) if line.value), "")

    def _later(self, key: str) -> tuple[Assignment, ...]:
        return tuple(line for line in self.later if (line.section, line.key) == ("Service", key))

    def unset(self) -> frozenset[str]:
        """The names of the variables that UnsetEnvironment= removes."""
        lines = merged(self.assignments, "Service", "UnsetEnvironment")
        words = (word for line in lines for word in split_words(line.value, relaxed=True, c_escapes=True))
        return frozenset(word.partition("=")[0] for word in words)

    def environment(self, files: Mapping[str, tuple[UnitText, ...]]) -> dict[str, str]:
        """The variables that kubelet's command line is expanded with, without our part."""
        found: dict[str, str] = {}
        for line in merged(self.assignments, "Service", "Environment"):
            found |= dict(split_assignments(line.value))
        for path in self.environment_files():
            for file in files.get(path, ()):
                found |= parse_environment_file(file.text)
        for name in self.unset():
            found.pop(name, None)
        return found

    def environment_files(self) -> tuple[str, ...]:
        lines = merged(self.assignments, "Service", "EnvironmentFile")
        places = (line.value.replace("%%", "%").removeprefix("-") for line in lines)
        return tuple(
            _simplified(place) for place in places if place.startswith("/") and ".." not in place.split("/")
        )


def _simplified(path: str) -> str:
    """As systemd names the file: without empty and `.` components."""
    return "/" + "/".join(name for name in path.split("/") if name not in ("", "."))


def parse_base(base: KubeletBase) -> BaseUnit:
    """The unit that `base` describes (our drop-in is not among its texts)."""
    assignments: list[Assignment] = []
    later: list[Assignment] = []
    for text in base.texts:
        lines = parse_unit(text)
        assignments += lines
        # systemd sorts the drop-ins of all unit directories by file name.
        if text.path.endswith(".conf") and posixpath.basename(text.path) > DROP_IN_NAME:
            later += lines
    return BaseUnit(tuple(assignments), tuple(later))


def next_command_line(unit: BaseUnit, base: KubeletBase) -> tuple[str, ...]:
    """The command line of kubelet's next start without us, or nothing if it cannot be known. Of a script, it
    is the script's."""
    try:
        commands = unit.commands()
    except ValueError:
        return ()
    if len(commands) != 1:
        return ()
    environment = unit.environment(base.environment_files)
    words = expand(commands[0], environment)
    if launch_of(commands[0]).inline is None:
        return words
    launch = find_launch((*words[:1], *words[2:]) if "@" in commands[0].prefixes else words)
    return split_words(" ".join(shell_words(launch, environment)), relaxed=True)


def launch_of(command: ExecCommand) -> Launch:
    """What the command line runs."""
    return find_launch(without_argv0(command))


def base_launch(unit: BaseUnit) -> Launch | None:
    """What the command line of the base runs; None if there is not one, or if its program's place is known to
    systemd alone."""
    try:
        commands = unit.commands()
    except ValueError:
        return None
    launch = launch_of(commands[0]) if len(commands) == 1 else None
    return launch if launch and launch.is_located else None


def without_argv0(command: ExecCommand) -> tuple[str, ...]:
    """The words without what `@` makes argv[0]."""
    words = command.words
    return (*words[:1], *words[2:]) if "@" in command.prefixes else words


def last_variable(command: ExecCommand) -> str:
    """The variable that is the last word, if systemd splits its value into words; else an empty string."""
    return "" if ":" in command.prefixes else bare_variable(command.words[-1])
