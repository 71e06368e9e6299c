"""Whether what stands between systemd and kubelet hands our part on, by all that a snapshot has of it.

Of a script or another program the running kubelet shows it: its command line ends as the unit's does. Where
it does not, an operator says what arrives: `kubelet.variable`, or `kubelet.strategy: exec-start` for the
arguments. After the restart the running process decides.
"""

from __future__ import annotations

import posixpath
from typing import NamedTuple

from installer.kubelet.command import ARGS_VARIABLE, BaseUnit, launch_of, next_command_line
from installer.kubelet.endpoint import base_argv
from installer.kubelet.launch import Launch, Passing, came_through, find_launch, is_shell, judge_inline
from installer.model.finding import Finding, refusal
from installer.model.resource import ProcessState
from installer.model.snapshot import KubeletBase
from installer.systemd_syntax.unit_file import ExecCommand, expand

_SAY_SO = (
    "kubelet.variable: NAME, if it passes the value of that environment variable on to kubelet behind every "
    "other flag, or kubelet.strategy: exec-start, if it passes its own arguments on"
)
_HINTS = {
    "kubelet-in-container": "run kubelet as a process of the host, or exclude this node",
    "kubelet-behind-shell": "start kubelet with `exec` in it",
    "kubelet-shell-wrapper": (
        f'make it one `exec kubelet ...` that ends with "$@" or a $VARIABLE; or set {_SAY_SO}'
    ),
    "kubelet-arguments-lost": (
        f"if the unit has changed since kubelet's start, restart kubelet; or set {_SAY_SO}"
    ),
}
_HINT_REMOVE = (
    "`cri-resmgr-installer remove` starts kubelet by its unit's own line, which shows what becomes of its "
    f"arguments; then install again; or set {_SAY_SO}"
)


# No setting helps there.
NEVER_SERVED = ("kubelet-in-container", "kubelet-behind-shell")


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

    @property
    def known_to_lose(self) -> bool:
        """Whether arguments do not arrive even where an operator says so by asking for exec-start."""
        return self.code in NEVER_SERVED or bool(self.passing.variable)

    def refused(self, command: ExecCommand) -> Finding:
        """Why kubelet cannot be served."""
        why = self.passing.why_not or f"only ${self.passing.variable} reaches kubelet, not its arguments"
        message = f"{self.what} in {command.path} starts kubelet, and our flag would not reach it: {why}"
        if self.earlier:
            message += f"; our drop-in still starts kubelet by its earlier command line ({self.earlier})"
        return refusal(self.code, message, _HINT_REMOVE if self.earlier else _HINTS[self.code])


def find_passing(
    unit: BaseUnit, command: ExecCommand, base: KubeletBase, process: ProcessState | None
) -> Found:
    """`process` is the running kubelet, or the shell that stands before it."""
    launch = launch_of(command)
    name = posixpath.basename(launch.program)
    if launch.is_container:
        why = f"{name} runs it in a container, where the relay is not"
        return Found(launch, Passing(why_not=why), name, "kubelet-in-container")
    if launch.is_kubelet and not base.scripted:
        return Found(launch, Passing(appended=True))
    passing = judge_inline(launch) if launch.inline is not None else Passing()
    what = (
        "the shell command"
        if launch.inline is not None
        else f"the program {launch.program or command.words[0]}"
    )
    if passing.appended or passing.variable:
        return Found(launch, passing, what, "kubelet-shell-wrapper")
    by_shell = launch.inline is not None or launch.shell or base.scripted
    if by_shell and is_behind_shell(process):
        why = "the main process of the unit is the shell, and kubelet its child"
        return Found(launch, Passing(why_not=why), what, "kubelet-behind-shell")
    if launch.inline is not None:
        return Found(launch, passing, what, "kubelet-shell-wrapper")
    started, earlier = _started_line(unit, command, base, launch)
    return Found(launch, _shown(started, process), what, "kubelet-arguments-lost", earlier)


def is_behind_shell(process: ProcessState | None) -> bool:
    """Whether the main process is a shell: it has not come to its `exec` yet, or has none."""
    return process is not None and bool(process.argv) and is_shell(process.argv[0])


def _shown(words: tuple[str, ...], process: ProcessState | None) -> Passing:
    """What the running process shows: that it is the program of the line it was started by, or was given what
    stands in there. `words` is that line, empty if it is not known. Without a process its endpoint is not
    known either, which is refused by itself."""
    if process is None or came_through(words, base_argv(process), process.exe):
        return Passing(appended=True)
    return Passing(why_not="the running kubelet has other arguments than the unit")


def _started_line(
    unit: BaseUnit, command: ExecCommand, base: KubeletBase, launch: Launch
) -> tuple[tuple[str, ...], str]:
    """The program and arguments that the running kubelet was started by, variables filled in. Our drop-in may
    repeat an older line of the unit: if that has another program, it shows nothing, and is named."""
    lines = base.detail.exec_start
    if len(lines) == 1 and lines[0].argv[-1:] == (f"${ARGS_VARIABLE}",) and launch.is_located:
        words = (lines[0].path, *lines[0].argv[1:-1])
        if find_launch(words).program != launch.program:
            return (), lines[0].path
        line = expand(ExecCommand("", "", "", words), unit.environment(base.environment_files))
    else:
        line = next_command_line(unit, base)
        line = (*line[:1], *line[2:]) if "@" in command.prefixes else line
    at = line.index(launch.program) if launch.program in line else 0
    return (launch.program, *line[at + 1 :]), ""
