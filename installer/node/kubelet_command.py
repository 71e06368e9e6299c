"""The command that starts kubelet: what its unit says, and what a launcher or shell in front of it passes
on."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import NamedTuple

from installer.inputs.systemd_syntax import (
    Assignment,
    ExecCommand,
    bare_variable,
    expand,
    merged,
    parse_environment_file,
    parse_exec,
    parse_unit,
    split_assignments,
    split_words,
)
from installer.model.host import KubeletBase, UnitText, is_shell
from installer.model.paths import DROP_IN_NAME

# What a command line runs, and whether a word appended to it, or a variable, still reaches kubelet.
#
# A shell, a script or another program may stand between systemd and kubelet. Reading shell code proves
# nothing, so no script is read, and of a shell's `-c` only one plain `exec` of kubelet counts. The running
# kubelet shows what another program does with its arguments.

_KUBELETS = frozenset({"kubelet", "hyperkube"})
_CONTAINER_TOOLS = frozenset({"docker", "podman", "nerdctl", "ctr", "crictl", "rkt", "systemd-nspawn"})
# Launchers, which start the program that follows, and the only options with which each is known to pass its
# arguments on: words, each with a NUL behind it. With any other option, it is a program like any other.
_LAUNCHERS = {
    "chrt": r"(-[bfior]\0)?\d+\0",
    "env": r"([A-Za-z_]\w*=[^\0]*\0)*",
    "flock": r"(-[nsx]\0)*[^-\0][^\0]*\0",
    "ionice": r"(-c\0?\d\0|-n\0?\d\0)*",
    "nice": r"(-n\0?-?\d+\0|--adjustment=-?\d+\0)?",
    "nohup": "",
    "numactl": r"(-[CNim]\0[\w,+-]+\0|--[a-z]+=[\w,+-]+\0)*",
    "prlimit": r"(--[a-z]+=[\w:]+\0)*",
    "setsid": "",
    "stdbuf": r"(-[eio](L|\d+)\0)*",
    "systemd-cat": "",
    "taskset": r"(-c\0)?[\da-fx,-]+\0",
}
_COMMAND_OPTION = re.compile(r"-[A-Za-z]*c[A-Za-z]*")
_OPTIONS_WITH_VALUE = frozenset({"-o", "+o", "-O", "+O", "--rcfile", "--init-file"})
_INTERPRETER = re.compile(r"#![ \t]*(\S+)(?:[ \t]+(\S+))?")
# One plain command that replaces the shell: no operator, substitution, comment or second line, and no
# backslash, which could hide one. Its last word matters.
_EXEC = re.compile(r"[ \t]*exec[ \t]+([^;&|<>()`#\\\n]*?)[ \t]+([^ \t;&|<>()`#\\\n]+)[ \t]*;?[ \t]*")
_ARGUMENTS = frozenset({'"$@"', "$@", '"${@}"', "${@}"})
_VARIABLE = re.compile(r"\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)\})")


class Launch(NamedTuple):
    """What a command line runs."""

    program: str = ""  # the first word that is neither a known launcher nor one of its options
    shell: bool = False  # `program` is a file for a shell to run
    inline: str | None = None  # what a shell runs with -c
    placed: bool = False  # a word after `inline` becomes an argument ($1 ...), not the name ($0)
    assigns: bool = False  # a launcher changes the environment
    arguments: tuple[str, ...] = ()  # those of `inline`

    @property
    def is_kubelet(self) -> bool:
        return self.inline is None and not self.shell and posixpath.basename(self.program) in _KUBELETS

    @property
    def is_located(self) -> bool:
        """Whether the program's path is known without systemd, which searches its PATH and expands
        specifiers."""
        return self.inline is not None or (self.program[:1] == "/" and "%" not in self.program)

    @property
    def is_container(self) -> bool:
        return self.inline is None and posixpath.basename(self.program) in _CONTAINER_TOOLS


class Passing(NamedTuple):
    """What reaches kubelet after its other flags: words appended to the command line (`appended`), or the
    value of `variable`. If neither does, `why_not` says why."""

    appended: bool = False
    variable: str = ""
    why_not: str = ""
    what: str = ""  # stands between systemd and kubelet, in words; empty: nothing
    code: str = ""  # of the refusal if neither words nor a variable reach kubelet
    # The program with which our drop-in starts kubelet, if kubelet's unit has another one now.
    earlier: str = ""

    @property
    def direct(self) -> bool:
        """Whether nothing stands in between."""
        return self.appended and not self.what


def find_launch(words: tuple[str, ...]) -> Launch:
    """What a command line runs. argv[0] of systemd's `@` is not among the words."""
    rest, assigns = list(words), False
    while rest and (form := _LAUNCHERS.get(posixpath.basename(rest[0]))) is not None:
        options = re.match(form, "".join(f"{word}\0" for word in rest[1:]))
        count = 1 + (options[0].count("\0") if options else len(rest))
        if count >= len(rest) or rest[count].startswith("-"):
            return Launch(rest[0])
        assigns = assigns or (posixpath.basename(rest[0]) == "env" and count > 1)
        del rest[:count]
    if len(rest) > 1 and posixpath.basename(rest[0]) == "busybox":
        del rest[0]
    if rest and is_shell(rest[0]):
        return _of_shell(rest[1:])._replace(assigns=assigns)
    return Launch(rest[0] if rest else "", assigns=assigns)


def _of_shell(words: list[str]) -> Launch:
    at, inline = 0, False
    while at < len(words) and words[at][:1] in ("-", "+") and len(words[at]) > 1:
        inline = inline or bool(_COMMAND_OPTION.fullmatch(words[at]))
        at += 2 if words[at] in _OPTIONS_WITH_VALUE else 1
    rest = words[at:]
    if inline:
        # If the name is an empty variable, the next word becomes the name.
        placed = len(rest) > 1 and not rest[1].startswith("$")
        return Launch(inline=rest[0] if rest else "", placed=placed, arguments=tuple(rest[2:]))
    return Launch(rest[0] if rest else "", shell=True)


def is_shell_script(beginning: str) -> bool:
    """Whether a shell interprets a program that begins like this, by its first line."""
    found = _INTERPRETER.match(beginning)
    return found is not None and any(is_shell(word) for word in found.groups() if word)


def judge_inline(launch: Launch) -> Passing:
    """What `sh -c` passes on, if it is one plain `exec` of kubelet."""
    command = _EXEC.fullmatch(launch.inline or "")
    if not command or not _runs_kubelet(command[1]):
        return Passing(why_not="it is not one plain `exec` of kubelet")
    if command[2] in _ARGUMENTS:
        if launch.placed:
            return Passing(appended=True)
        return Passing(why_not='it has "$@", but no name ($0) precedes what would be appended')
    variable = _VARIABLE.fullmatch(command[2])
    if not variable:
        return Passing(why_not='its `exec` ends neither with "$@" nor with one unquoted $VARIABLE')
    name = variable[1] or variable[2]
    if launch.assigns:
        return Passing(why_not=f"`env` in front of it may give ${name} another value")
    return Passing(variable=name)


def _runs_kubelet(command: str) -> bool:
    """Whether everything before the last word is a kubelet with arguments. False for an open quote."""
    try:
        found = find_launch(tuple(shlex.split(command)))
    except ValueError:
        return False
    return found.is_kubelet


def shell_words(launch: Launch, environment: Mapping[str, str]) -> Iterator[str]:
    """The words of `sh -c` after systemd's expansion, with the shell's variables expanded, but not yet split:
    kubelet's command line, if that is all."""
    text = (launch.inline or "").strip().removeprefix("exec ")
    for word in text.split():
        if word in _ARGUMENTS:
            yield from launch.arguments
        else:
            yield _VARIABLE.sub(lambda found: environment.get(found[1] or found[2], ""), word)


def kubelet_program(words: tuple[str, ...], executable: str) -> str:
    """The path of kubelet itself, from the running process or the command line; empty if neither has it."""
    running = executable.removesuffix(" (deleted)")
    found = (path for path in (running, find_launch(words).program) if path.startswith("/"))
    return next((path for path in found if posixpath.basename(path) == "kubelet"), "")


def came_through(words: tuple[str, ...], started: tuple[str, ...], executable: str) -> bool:
    """Whether a running process has the arguments of the command line (`words`, its program first) at the end
    of its own, or is that program. `started` is its command line without our part. A script may start a
    program of the same name, so the whole path counts if the command line has one."""
    if not words or not started:
        return False
    arguments, running = words[1:], (*started[:4], executable)
    if "/" not in words[0]:
        running = tuple(posixpath.basename(word) for word in running)
    return words[0] in running or (bool(arguments) and started[-len(arguments) :] == arguments)


ARGS_VARIABLE = "CRI_RESMGR_KUBELET_ARGS"  # at the end of a command line that our drop-in repeats


class BaseUnit(NamedTuple):
    """The assignments of the base, in the order in which systemd reads them."""

    assignments: tuple[Assignment, ...]
    later: tuple[Assignment, ...]  # of drop-ins whose name sorts after ours, so that they override our lines

    def commands(self) -> tuple[ExecCommand, ...]:
        """The effective ExecStart= lines. Raises ValueError if one cannot be parsed."""
        lines = merged(self.assignments, "Service", "ExecStart")
        return tuple(parse_exec(line) for line in lines)

    def command(self) -> ExecCommand | None:
        """The only command line; None if there are several or none, or it cannot be parsed."""
        try:
            (command,) = self.commands()
        except ValueError:
            return None
        return command

    def resets_later(self, key: str) -> str:
        """The later drop-in that empties the list setting `key`; else an empty string."""
        return next((line.path for line in self._later(key) if not line.value), "")

    def sets_later(self, key: str) -> str:
        """The later drop-in that adds to the list setting `key`; else an empty string."""
        return next((line.path for line in self._later(key) if line.value), "")

    def _later(self, key: str) -> tuple[Assignment, ...]:
        return tuple(line for line in self.later if (line.section, line.key) == ("Service", key))

    def unset(self) -> frozenset[str]:
        """What UnsetEnvironment= removes: variables by name, and assignments of exactly one value."""
        lines = merged(self.assignments, "Service", "UnsetEnvironment")
        words = (split_words(line.value, relaxed=True, c_escapes=True) for line in lines)
        return frozenset(chain.from_iterable(words))

    def environment(self, files: Mapping[str, tuple[UnitText, ...]]) -> dict[str, str]:
        """The variables with which systemd expands kubelet's command line, without our part."""
        found: dict[str, str] = {}
        for line in merged(self.assignments, "Service", "Environment"):
            found |= dict(split_assignments(line.value))
        for path in self.environment_files():
            for file in files.get(path, ()):
                found |= parse_environment_file(file.text)
        unset = self.unset()
        return {name: value for name, value in found.items() if unset.isdisjoint((name, f"{name}={value}"))}

    def environment_files(self) -> tuple[str, ...]:
        lines = merged(self.assignments, "Service", "EnvironmentFile")
        places = (line.value.replace("%%", "%").removeprefix("-") for line in lines)
        return tuple(
            _simplified(place) for place in places if place.startswith("/") and ".." not in place.split("/")
        )


def _simplified(path: str) -> str:
    """As systemd writes the path: without empty and `.` components."""
    return "/" + "/".join(name for name in path.split("/") if name not in ("", "."))


def parse_base(base: KubeletBase) -> BaseUnit:
    """The unit that `base` describes. Our drop-in is not among its texts."""
    assignments: list[Assignment] = []
    later: list[Assignment] = []
    for text in base.texts:
        lines = parse_unit(text)
        assignments += lines
        # systemd sorts the drop-ins of all unit directories by file name.
        if text.path.endswith(".conf") and posixpath.basename(text.path) > DROP_IN_NAME:
            later += lines
    return BaseUnit(tuple(assignments), tuple(later))


def next_command_line(
    unit: BaseUnit, base: KubeletBase, environment: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """The command line of kubelet's next start without us, or with another `environment`; empty if it cannot
    be known. For a script: the script's."""
    command = unit.command()
    if command is None:
        return ()
    environment = unit.environment(base.environment_files) if environment is None else environment
    words = expand(command, environment)
    if launch_of(command).inline is None:
        return words
    launch = find_launch(without_argv0(command, words))
    return split_words(" ".join(shell_words(launch, environment)), relaxed=True)


def launch_of(command: ExecCommand) -> Launch:
    """What the command line runs."""
    return find_launch(without_argv0(command, command.words))


def base_launch(unit: BaseUnit) -> Launch | None:
    """What the base's command line runs; None if there is no single one, or only systemd knows its program's
    path."""
    command = unit.command()
    launch = launch_of(command) if command else None
    return launch if launch and launch.is_located else None


def without_argv0(command: ExecCommand, words: tuple[str, ...]) -> tuple[str, ...]:
    """The words without the argv[0] that `@` declares."""
    return (*words[:1], *words[2:]) if "@" in command.prefixes else words


def last_variable(command: ExecCommand) -> str:
    """The variable that is the last word, if systemd splits its value into words; else an empty string."""
    return "" if ":" in command.prefixes else bare_variable(command.words[-1])
