"""Chooses how our endpoint comes to the end of kubelet's command line, or says why it cannot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from installer.kubelet.command import ARGS_VARIABLE, BaseUnit, last_variable
from installer.kubelet.passing import NEVER_SERVED, Found, find_passing
from installer.model.finding import Finding, refusal
from installer.model.paths import DROP_IN_NAME
from installer.model.resource import ProcessState
from installer.model.snapshot import KubeletBase
from installer.model.state import Strategy
from installer.systemd_syntax.unit_file import ExecCommand

if TYPE_CHECKING:
    from installer.inputs.settings import Settings

_RENAME_HINT = f"rename that file so that it sorts before {DROP_IN_NAME}, or move what it sets elsewhere"
_AUTO_HINT = "set kubelet.strategy: auto"


@dataclass(frozen=True, slots=True)
class Choice:
    """`variable` is the one that ends the command line, or that a script passes on (`passed_on`);
    `exec_start` is the base line to repeat before it, raw, and empty for the strategy `environment`. `why` is
    for people."""

    strategy: Strategy
    variable: str
    why: str
    exec_start: str = ""
    passed_on: bool = False


def choose_strategy(
    unit: BaseUnit, settings: Settings, base: KubeletBase, process: ProcessState | None = None
) -> Choice | Finding:
    """The strategy that settings ask for; for `auto`, the first that will win. `process` is the running
    kubelet: it shows what a program that is neither kubelet nor a shell does with its arguments."""
    command = _command(unit, settings.kubelet.unit)
    if isinstance(command, Finding):
        return command
    lost = _lost_lines(unit)
    if lost:
        return lost
    wanted = str(settings.kubelet.strategy)
    found = find_passing(unit, command, base, process)
    named = settings.kubelet.variable
    if named and not (found.direct and last_variable(command) == named):
        return _named(unit, command, found, named)
    if found.passing.variable and wanted != Strategy.EXEC_START:
        return _passed_on(unit, command, found.passing.variable, _handed_on(found, command))
    if not found.passing.appended and (wanted != Strategy.EXEC_START or found.known_to_lose):
        return found.refused(command)
    if ":" in command.prefixes:
        return refusal(
            "kubelet-no-expansion",
            f"ExecStart= in {command.path} has the prefix `:`: systemd expands no variable in it",
            "take the prefix away; a literal $ is written $$ then",
        )
    environment = _environment(unit, command)
    if wanted == Strategy.ENVIRONMENT or (wanted == "auto" and isinstance(environment, Choice)):
        return environment
    exec_start = _exec_start(unit, command)
    if wanted == Strategy.EXEC_START:
        return exec_start
    if isinstance(exec_start, Choice) and isinstance(environment, Finding):
        why = f"{environment.message}: the drop-in repeats the command line of {command.path}"
        return Choice(exec_start.strategy, exec_start.variable, why, exec_start.exec_start)
    return exec_start


def _command(unit: BaseUnit, name: str) -> ExecCommand | Finding:
    """The one command line, if ours can stand at its end at all."""
    try:
        commands = unit.commands()
    except ValueError as error:
        return refusal("kubelet-exec-start-unreadable", f"ExecStart= of {name} cannot be read: {error}")
    if len(commands) != 1:
        places = ", ".join(dict.fromkeys(command.path for command in commands)) or "its unit files"
        return refusal(
            "kubelet-no-exec-start",
            f"{name} has {len(commands)} ExecStart= lines ({places}), not one",
            "name the unit that runs kubelet in kubelet.unit",
        )
    command = commands[0]
    if command.several:
        return refusal("kubelet-several-commands", f"ExecStart= in {command.path} has several commands (`;`)")
    return command


def _lost_lines(unit: BaseUnit) -> Finding | None:
    """Lines that both strategies need and that a drop-in behind ours takes away."""
    for key in ("ExecStartPre", "EnvironmentFile", "Environment"):
        path = unit.resets_later(key)
        if path:
            return refusal(
                "kubelet-drop-in-resets", f"{path} comes later than ours and empties {key}=", _RENAME_HINT
            )
    return None


def _environment(unit: BaseUnit, command: ExecCommand) -> Choice | Finding:
    variable = last_variable(command)
    if not variable:
        return refusal(
            "kubelet-no-variable",
            f"the command line in {command.path} does not end with a $VARIABLE of its own word",
            _AUTO_HINT,
        )
    taken = _taken(unit, variable, f"; or {_AUTO_HINT}")
    if taken:
        return taken
    why = f"the command line in {command.path} ends with ${variable}, which comes behind every other flag"
    return Choice(Strategy.ENVIRONMENT, variable, why)


def _taken(unit: BaseUnit, variable: str, more: str = "") -> Finding | None:
    """What gives the variable another value than ours."""
    if variable in unit.unset():
        return refusal(
            "kubelet-variable-unset",
            f"UnsetEnvironment= takes ${variable} away",
            more.removeprefix("; or ") or "take it out there",
        )
    later = unit.sets_later("EnvironmentFile")
    if later:
        # What the file sets today does not matter: it may set the variable tomorrow.
        return refusal(
            "kubelet-variable-overridden",
            f"an EnvironmentFile= in {later} comes later than ours and can set ${variable}",
            _RENAME_HINT + more,
        )
    return None


def _passed_on(unit: BaseUnit, command: ExecCommand, variable: str, why: str) -> Choice | Finding:
    taken = _taken(unit, variable)
    return taken or Choice(Strategy.ENVIRONMENT, variable, why, passed_on=True)


def _handed_on(found: Found, command: ExecCommand) -> str:
    return f"{found.what} in {command.path} ends with ${found.passing.variable}, which it hands on to kubelet"


def _named(unit: BaseUnit, command: ExecCommand, found: Found, variable: str) -> Choice | Finding:
    """The variable that settings name: an operator says that it arrives, a restarted kubelet shows it."""
    if found.code in NEVER_SERVED:
        return found.refused(command)
    if found.direct:
        return refusal(
            "kubelet-variable-not-passed",
            f"kubelet.variable names ${variable}, but the command line in {command.path} "
            "does not end with it",
            "leave kubelet.variable out: the unit starts kubelet itself, and its command line is known",
        )
    why = f"kubelet.variable names ${variable}, which {found.what} in {command.path} hands on to kubelet"
    return _passed_on(unit, command, variable, why)


def _exec_start(unit: BaseUnit, command: ExecCommand) -> Choice | Finding:
    later = unit.resets_later("ExecStart") or unit.sets_later("ExecStart")
    if later:
        return refusal(
            "kubelet-drop-in-resets", f"{later} comes later than ours and replaces ExecStart=", _RENAME_HINT
        )
    if ARGS_VARIABLE in unit.unset():
        return refusal("kubelet-variable-unset", f"UnsetEnvironment= takes ${ARGS_VARIABLE} away")
    why = f"the drop-in repeats the command line of {command.path}"
    return Choice(Strategy.EXEC_START, ARGS_VARIABLE, why, command.raw_before_more)
