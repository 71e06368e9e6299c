"""Whether what stands between systemd and kubelet hands our part on, by all that a snapshot has of it."""

from __future__ import annotations

import posixpath
from typing import NamedTuple

from installer.kubelet.command import ARGS_VARIABLE, launch_of
from installer.kubelet.endpoint import base_argv
from installer.kubelet.launch import (
    Launch,
    Passing,
    came_through,
    find_launch,
    is_shell,
    judge_inline,
    judge_script,
)
from installer.model.finding import Finding, refusal
from installer.model.resource import ProcessState
from installer.model.snapshot import KubeletBase
from installer.systemd_syntax.unit_file import ExecCommand

_HINT = (
    'end it with one plain `exec` of kubelet whose last word is "$@" or a $VARIABLE, or name in '
    "kubelet.variable the environment variable that it hands on to kubelet behind every other flag"
)
_VARIABLE_HINT = "or name in kubelet.variable the environment variable that it hands on to kubelet"
_HINT_RESTART = f"if the unit has changed since kubelet's start, restart kubelet; {_VARIABLE_HINT}"
_HINT_REMOVE = (
    "`cri-resmgr-installer remove` starts kubelet by its unit's own line, which shows what becomes of its "
    f"arguments; then install again; {_VARIABLE_HINT}"
)


class Found(NamedTuple):
    """`code` is that of the refusal where neither words nor a variable reach kubelet; `what` stands between
    systemd and kubelet, in words. `earlier` is the program that our drop-in starts kubelet by, if its unit
    has another one now."""

    launch: Launch
    passing: Passing
    what: str = ""
    code: str = ""
    earlier: str = ""

    @property
    def direct(self) -> bool:
        """Whether nothing stands between."""
        return self.passing.appended and not self.what

    def refused(self, command: ExecCommand) -> Finding:
        """Why kubelet cannot be served."""
        hints = {
            "kubelet-in-container": "run kubelet as a process of the host, or exclude this node",
            "kubelet-behind-shell": "start kubelet with `exec` in it",
            "kubelet-arguments-lost": _HINT_REMOVE if self.earlier else _HINT_RESTART,
        }
        why = self.passing.why_not or f"only ${self.passing.variable} reaches kubelet, not its arguments"
        message = f"{self.what} in {command.path} starts kubelet, and our flag would not reach it: {why}"
        if self.earlier:
            message += f"; our drop-in still starts kubelet by its earlier command line ({self.earlier})"
        return refusal(self.code, message, hints.get(self.code, _HINT))


def find_passing(
    command: ExecCommand, base: KubeletBase, process: ProcessState | None, expanded: tuple[str, ...]
) -> Found:
    """`expanded` is the command line of the next start without us."""
    launch = launch_of(command)
    name, earlier = posixpath.basename(launch.program), _repeated(base, launch)
    if launch.is_container:
        why = f"{name} runs it in a container, where the relay is not"
        return Found(launch, Passing(why_not=why), name, "kubelet-in-container", earlier)
    if launch.inline is None and base.script is None and not launch.shell:
        found = _of_program(launch, command, process, () if earlier else expanded)
        return found._replace(earlier=earlier)
    inline = launch.inline is not None
    what = "the shell command" if inline else f"the script {launch.program}"
    text = base.script.text if base.script else ""
    passing = judge_inline(launch) if inline else judge_script(launch, text)
    if not passing.appended and not passing.variable and not earlier and is_behind_shell(process):
        why = "the main process of the unit is the shell, and kubelet its child"
        return Found(launch, Passing(why_not=why), what, "kubelet-behind-shell")
    return Found(launch, passing, what, "kubelet-shell-wrapper" if inline else "kubelet-script", earlier)


def _repeated(base: KubeletBase, launch: Launch) -> str:
    """The program that our drop-in starts kubelet by, where the base has another one since."""
    lines = base.detail.exec_start
    ours = len(lines) == 1 and lines[0].argv[-1:] == (f"${ARGS_VARIABLE}",)
    if not ours or not launch.is_located:
        return ""
    loaded = find_launch((lines[0].path, *lines[0].argv[1:]))
    return "" if (loaded.program, loaded.inline) == (launch.program, launch.inline) else lines[0].path


def is_behind_shell(process: ProcessState | None) -> bool:
    """Whether the main process is a shell: it has not come to its `exec` yet, or has none."""
    return process is not None and bool(process.argv) and is_shell(process.argv[0])


def _of_program(
    launch: Launch, command: ExecCommand, process: ProcessState | None, expanded: tuple[str, ...]
) -> Found:
    """A program that is no shell's. If it goes by another name than kubelet, the running process has to show
    that it is the same, or that it was given what stands in the unit (`expanded`, empty if it was started by
    another line)."""
    if launch.is_kubelet or process is None:
        return Found(launch, Passing(appended=True))
    at = expanded.index(launch.program) if launch.program in expanded else 0
    behind = at + (2 if "@" in command.prefixes and at == 0 else 1)
    words = (launch.program, *expanded[behind:])  # without arguments, its name alone counts
    if came_through(words, base_argv(process), process.exe):
        return Found(launch, Passing(appended=True))
    why = "the running kubelet has other arguments than the unit"
    return Found(launch, Passing(why_not=why), launch.program or command.words[0], "kubelet-arguments-lost")
