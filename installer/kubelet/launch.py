"""What a command line runs, and whether a word behind it, or a variable, still reaches kubelet.

A shell, a script or another program may stand between systemd and kubelet. Shell cannot be judged by
reading it: so no script is read, and of a shell's `-c` only one plain `exec` of kubelet counts. What another
program does with its arguments, the running kubelet shows.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import NamedTuple

_SHELLS = frozenset({"sh", "bash", "dash", "ash", "ksh", "zsh"})
_KUBELETS = frozenset({"kubelet", "hyperkube"})
_CONTAINER_TOOLS = frozenset({"docker", "podman", "nerdctl", "ctr", "crictl", "rkt", "systemd-nspawn"})
# They replace themselves with the program that they are given, behind options of their own.
_LAUNCHERS = frozenset(
    {"env", "nice", "ionice", "chrt", "taskset", "numactl", "setsid", "stdbuf", "nohup", "prlimit"}
    | {"setpriv", "runcon", "systemd-cat", "systemd-inhibit"}
)
_COMMAND_OPTION = re.compile(r"-[A-Za-z]*c[A-Za-z]*")
_OPTIONS_WITH_VALUE = frozenset({"-o", "+o", "-O", "+O", "--rcfile", "--init-file"})
_NO_ENVIRONMENT = frozenset({"-", "-i", "--ignore-environment"})
_INTERPRETER = re.compile(r"#![ \t]*(\S+)(?:[ \t]+(\S+))?")
# One plain command that replaces the shell: no operator, substitution, comment or second line, nor a
# backslash, which could hide one. Its last word is what matters.
_EXEC = re.compile(r"[ \t]*exec[ \t]+([^;&|<>()`#\\\n]*?)[ \t]+([^ \t;&|<>()`#\\\n]+)[ \t]*;?[ \t]*")
_ARGUMENTS = frozenset({'"$@"', "$@", '"${@}"', "${@}"})
_VARIABLE = re.compile(r"\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)\})")


class Launch(NamedTuple):
    """`program` is the first word that is neither a launcher nor one of its options; it is a file for a shell
    if `shell` is set. `inline` is what a shell is given to run with -c, `placed` whether a word behind that
    becomes an argument ($1 ...), not its name ($0), and `arguments` are those. `bare`: a launcher empties the
    environment."""

    program: str = ""
    shell: bool = False
    inline: str | None = None
    placed: bool = False
    bare: bool = False
    arguments: tuple[str, ...] = ()

    @property
    def is_kubelet(self) -> bool:
        return self.inline is None and not self.shell and posixpath.basename(self.program) in _KUBELETS

    @property
    def is_located(self) -> bool:
        """Whether the program's place is known without systemd, which looks in its PATH and fills specifiers
        in."""
        return self.inline is not None or (self.program[:1] == "/" and "%" not in self.program)

    @property
    def is_container(self) -> bool:
        return self.inline is None and posixpath.basename(self.program) in _CONTAINER_TOOLS


class Passing(NamedTuple):
    """What reaches kubelet at the end of its flags: words behind the command line (`appended`), or the value
    of `variable`. `why_not` says what is in the way if neither does."""

    appended: bool = False
    variable: str = ""
    why_not: str = ""


def find_launch(words: tuple[str, ...]) -> Launch:
    """What a command line runs; argv[0] of systemd's `@` is not among the words."""
    rest, bare = list(words), False
    while rest and posixpath.basename(rest[0]) in _LAUNCHERS:
        launcher = posixpath.basename(rest.pop(0))
        before = len(rest)
        options = list(rest)
        while rest and not _is_program(rest[0]):
            rest.pop(0)
        bare = bare or (launcher == "env" and not _NO_ENVIRONMENT.isdisjoint(options[: before - len(rest)]))
    if not rest:
        return Launch(bare=bare)
    if posixpath.basename(rest[0]) == "busybox" and len(rest) > 1:
        rest.pop(0)
    if is_shell(rest[0]):
        return _of_shell(rest[1:])._replace(bare=bare)
    return Launch(rest[0], bare=bare)


def is_shell(word: str) -> bool:
    """Whether a shell goes by that name; a login shell's has a hyphen before it."""
    return posixpath.basename(word).removeprefix("-") in _SHELLS


def _is_program(word: str) -> bool:
    name = posixpath.basename(word)
    known = name in _KUBELETS or name in _SHELLS or name in _LAUNCHERS or name == "busybox"
    return known or (word.startswith("/") and "=" not in word)


def _of_shell(words: list[str]) -> Launch:
    at, inline = 0, False
    while at < len(words) and words[at][:1] in ("-", "+") and len(words[at]) > 1:
        inline = inline or bool(_COMMAND_OPTION.fullmatch(words[at]))
        at += 2 if words[at] in _OPTIONS_WITH_VALUE else 1
    rest = words[at:]
    if inline:
        # A name that is a variable may come to nothing: then the next word would be the name.
        placed = len(rest) > 1 and not rest[1].startswith("$")
        return Launch(inline=rest[0] if rest else "", placed=placed, arguments=tuple(rest[2:]))
    return Launch(rest[0] if rest else "", shell=True)


def is_shell_script(beginning: str) -> bool:
    """Whether a shell reads the program that begins so, by its first line."""
    found = _INTERPRETER.match(beginning)
    return found is not None and any(is_shell(word) for word in found.groups() if word)


def judge_inline(launch: Launch) -> Passing:
    """What `sh -c` passes on, if that is one plain `exec` of kubelet."""
    command = _EXEC.fullmatch(launch.inline or "")
    if not command or not _runs_kubelet(command[1]):
        return Passing(why_not="it is not one plain `exec` of kubelet")
    if command[2] in _ARGUMENTS:
        if launch.placed:
            return Passing(appended=True)
        return Passing(why_not='"$@" is there, but no name ($0) stands before what would be appended')
    variable = _VARIABLE.fullmatch(command[2])
    if not variable:
        return Passing(why_not='its `exec` ends neither with "$@" nor with one unquoted $VARIABLE')
    name = variable[1] or variable[2]
    if launch.bare:
        return Passing(why_not=f"`env -i` keeps ${name} from it")
    return Passing(variable=name)


def _runs_kubelet(command: str) -> bool:
    """Whether all before the last word is a kubelet with arguments; false where a quote is left open."""
    try:
        found = find_launch(tuple(shlex.split(command)))
    except ValueError:
        return False
    return found.is_kubelet and not found.bare


def shell_words(launch: Launch, environment: Mapping[str, str]) -> Iterator[str]:
    """The words of `sh -c` as far as systemd has filled variables in, with those of the shell filled in and
    not yet split: kubelet's command line, if that is all."""
    text = (launch.inline or "").strip().removeprefix("exec ")
    for word in text.split():
        if word in _ARGUMENTS:
            yield from launch.arguments
        else:
            yield _VARIABLE.sub(lambda found: environment.get(found[1] or found[2], ""), word)


def kubelet_program(words: tuple[str, ...], executable: str) -> str:
    """The path of kubelet itself, by the running process or the command line; empty if neither names one."""
    running = executable.removesuffix(" (deleted)")
    found = (path for path in (running, find_launch(words).program) if path.startswith("/"))
    return next((path for path in found if posixpath.basename(path) == "kubelet"), "")


def came_through(words: tuple[str, ...], started: tuple[str, ...], executable: str) -> bool:
    """Whether a running process has the arguments of the command line (`words`, its program first) at the end
    of its own, or is that program. `started` is its command line without our part. A script may start a
    program of its own name, so the whole path counts where the command line has one."""
    if not words or not started:
        return False
    arguments, running = words[1:], (*started[:4], executable)
    if "/" not in words[0]:
        running = tuple(posixpath.basename(word) for word in running)
    return words[0] in running or (bool(arguments) and started[-len(arguments) :] == arguments)
