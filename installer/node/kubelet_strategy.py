"""How and where our endpoint gets behind what kubelet's unit says. Pure: works on a snapshot's texts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from installer.inputs.systemd_syntax import ExecCommand
from installer.model import paths
from installer.model.host import HostSnapshot, KubeletBase, Machine, ProcessState, UnitDetail, UnitState
from installer.model.paths import DROP_IN_NAME
from installer.model.plan import DesiredKubelet, Finding, Strategy, refusal
from installer.node.kubelet_command import (
    ARGS_VARIABLE,
    BaseUnit,
    Launch,
    Passing,
    base_launch,
    last_variable,
    next_command_line,
    parse_base,
)
from installer.node.kubelet_endpoint import (
    NEVER_SERVED,
    base_argv,
    base_endpoint,
    cgroups_per_qos,
    find_passing,
    is_behind_shell,
    manager_policies,
    next_endpoint,
    refused,
)

if TYPE_CHECKING:
    from installer.inputs.settings import KubeletSettings, Settings


_RENAME_HINT = f"rename that file so that it sorts before {DROP_IN_NAME}, or move its settings elsewhere"
_AUTO_HINT = "set kubelet.strategy: auto"


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen strategy."""

    strategy: Strategy
    variable: str  # ends the command line, or is passed on by a script (`passed_on`)
    why: str  # for people
    # The base's line to repeat, raw, with the variable after it; empty for the strategy `environment`.
    exec_start: str = ""
    passed_on: bool = False


def choose_strategy(
    unit: BaseUnit, settings: Settings, base: KubeletBase, process: ProcessState | None = None
) -> Choice | Finding:
    """The strategy that the settings ask for; for `auto`, the first that works. `process` is the running
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
    if found.variable and wanted != Strategy.EXEC_START:
        why = f"{found.what} in {command.path} ends with ${found.variable}, which it passes on to kubelet"
        return _passed_on(unit, found.variable, why)
    # Even if an operator declares that the arguments arrive, by asking for exec-start.
    known_to_lose = found.code in NEVER_SERVED or found.variable
    if not found.appended and (wanted != Strategy.EXEC_START or known_to_lose):
        return refused(found, command)
    if ":" in command.prefixes:
        return refusal(
            "kubelet-no-expansion",
            f"ExecStart= in {command.path} has the prefix `:`: systemd expands no variable in it",
            "remove the prefix; a literal $ has to be written $$ then",
        )
    environment = _environment(unit, command)
    if wanted == Strategy.ENVIRONMENT or (wanted == "auto" and isinstance(environment, Choice)):
        return environment
    exec_start = _exec_start(unit, command)
    if wanted == Strategy.EXEC_START:
        return exec_start
    if isinstance(exec_start, Choice) and isinstance(environment, Finding):
        why = f"{environment.message}: the drop-in repeats the command line of {command.path}"
        return replace(exec_start, why=why)
    return exec_start


def _command(unit: BaseUnit, name: str) -> ExecCommand | Finding:
    """The only command line, if ours can be appended to it at all."""
    try:
        commands = unit.commands()
    except ValueError as error:
        return refusal("kubelet-exec-start-unreadable", f"ExecStart= of {name} cannot be parsed: {error}")
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
    """Lines that both strategies need and that a later drop-in removes."""
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
            f"the command line in {command.path} does not end with a $VARIABLE as a separate word",
            _AUTO_HINT,
        )
    if any(word == f"${variable}" or f"${{{variable}}}" in word for word in command.words[:-1]):
        return refusal(
            "kubelet-no-variable",
            f"the command line in {command.path} names ${variable} more than once",
            _AUTO_HINT,
        )
    taken = _taken(unit, variable, f"; or {_AUTO_HINT}")
    if taken:
        return taken
    why = f"the command line in {command.path} ends with ${variable}, which comes after every other flag"
    return Choice(Strategy.ENVIRONMENT, variable, why)


def _taken(unit: BaseUnit, variable: str, more: str = "") -> Finding | None:
    """What gives the variable another value than ours."""
    if variable in unit.unset():
        return refusal(
            "kubelet-variable-unset",
            f"UnsetEnvironment= removes ${variable}",
            more.removeprefix("; or ") or "delete it there",
        )
    later = unit.sets_later("EnvironmentFile")
    if later:
        # What the file sets today is irrelevant: it may set the variable tomorrow.
        return refusal(
            "kubelet-variable-overridden",
            f"an EnvironmentFile= in {later} comes later than ours and can set ${variable}",
            _RENAME_HINT + more,
        )
    return None


def _passed_on(unit: BaseUnit, variable: str, why: str) -> Choice | Finding:
    taken = _taken(unit, variable)
    return taken or Choice(Strategy.ENVIRONMENT, variable, why, passed_on=True)


def _named(unit: BaseUnit, command: ExecCommand, found: Passing, variable: str) -> Choice | Finding:
    """The variable that the settings name: an operator declares that it arrives, and a restarted kubelet
    shows it."""
    if found.code in NEVER_SERVED:
        return refused(found, command)
    if found.direct:
        return refusal(
            "kubelet-variable-not-passed",
            f"kubelet.variable names ${variable}, but the command line in {command.path} "
            "does not end with it",
            "leave kubelet.variable out: the unit starts kubelet itself, and its command line is known",
        )
    why = f"kubelet.variable names ${variable}, which {found.what} in {command.path} passes on to kubelet"
    return _passed_on(unit, variable, why)


def _exec_start(unit: BaseUnit, command: ExecCommand) -> Choice | Finding:
    later = unit.resets_later("ExecStart") or unit.sets_later("ExecStart")
    if later:
        return refusal(
            "kubelet-drop-in-resets", f"{later} comes later than ours and replaces ExecStart=", _RENAME_HINT
        )
    if ARGS_VARIABLE in unit.unset():
        return refusal("kubelet-variable-unset", f"UnsetEnvironment= removes ${ARGS_VARIABLE}")
    why = f"the drop-in repeats the command line of {command.path}"
    return Choice(Strategy.EXEC_START, ARGS_VARIABLE, why, command.raw_before_more)


def effective(detail: UnitDetail, unit: UnitState, desired: DesiredKubelet) -> str:
    """What is wrong, in words; else an empty string. Judges what systemd has loaded, so it sees interrupted
    runs and other people's drop-ins."""
    if unit.load_state != "loaded":
        return f"{unit.name} is {unit.load_state}"
    if not desired.unit.unit_digest and not unit.loaded_digest:
        return ""  # an earlier installation is back: nothing of it is ours
    if unit.loaded_digest != desired.unit.unit_digest:
        return f"systemd has not loaded the current {desired.unit.unit_file}: daemon-reload required"
    verbs = [line.argv[-1] for line in detail.exec_start_pre if line.path == paths.GUARD and line.argv]
    if verbs[-2:] != ["reset", "compose"]:
        return "the guard is not among the ExecStartPre= lines"
    if wrong := _environment_files(detail, desired):
        return wrong
    if len(detail.exec_start) != 1:
        return f"there are {len(detail.exec_start)} ExecStart= lines, not one"
    last = detail.exec_start[0].argv[-1:]
    if last != (f"${desired.variable}",) and not desired.passed_on:
        return f"the command line ends with {' '.join(last)!r}, not with ${desired.variable}"
    return ""


def _environment_files(detail: UnitDetail, desired: DesiredKubelet) -> str:
    files = tuple(path for path, _optional in detail.environment_files)
    ours = desired.environment_files
    if tuple(path for path in files if path in ours) != ours:
        return "our EnvironmentFile= lines are not in effect"
    # Only we set the other strategy's variable, so later files do not matter for it.
    if desired.strategy is Strategy.ENVIRONMENT and files[-len(ours) :] != ours:
        return f"{files[-1]} comes later than ours and can set ${desired.variable}"
    return ""


# The unit directory of our drop-in for kubelet's unit. Pure.
#
# When gardener-node-agent changes kubelet's unit or a file that the unit names, it deletes all of
# /etc/systemd/system/kubelet.service.d and restarts kubelet (pkg/nodeagent/controller/operatingsystemconfig
# of gardener/gardener). It never touches /etc/systemd/system.control, which systemd reads before all others,
# keeps across reboots, and writes itself for `systemctl set-property` (systemd.unit(5)).

_NODE_AGENT = "gardener-node-agent.service"


def with_drop_in_directory(settings: Settings, machine: Machine) -> Settings:
    """The settings with the directory that `auto` means on this machine.

    Of files with the same name only the one in the first directory counts (systemd.unit(5)), so while the
    drop-in moves between directories, exactly one is in effect.
    """
    if settings.kubelet.drop_in_directory != paths.AUTO:
        return settings
    wiped = _NODE_AGENT in machine.services
    return in_directory(settings, paths.CONTROL_UNITS if wiped else paths.USUAL_UNITS)


def in_directory(settings: Settings, directory: str) -> Settings:
    placed = settings.kubelet.model_copy(update={"drop_in_directory": directory})
    return settings.model_copy(update={"kubelet": placed})


def possible_drop_ins(kubelet: KubeletSettings) -> tuple[str, ...]:
    """Where an earlier run with the same settings, or with the default ones, may have put it."""
    usual = paths.drop_in_directories(paths.AUTO)
    directories = dict.fromkeys((*paths.drop_in_directories(kubelet.drop_in_directory), *usual))
    return tuple(paths.drop_in(directory, kubelet.unit) for directory in directories)


@dataclass(frozen=True, slots=True)
class KubeletAnalysis:
    """How kubelet can be served."""

    endpoint: str  # kubelet's base endpoint; empty: unknown
    choice: Choice | None  # None: kubelet cannot be served
    policies: tuple[str, str]  # of its CPU and its memory manager
    refusals: tuple[Finding, ...] = ()  # why kubelet cannot be served
    next_endpoint: str = ""  # its base endpoint after a restart; empty unless known to be another one
    cgroups_per_qos: bool = True  # as in its configuration


def analyse_kubelet(snapshot: HostSnapshot, settings: Settings) -> KubeletAnalysis:
    """Parse kubelet's unit once and derive everything from it. A unit that does not exist is no refusal here:
    preflight reports it."""
    base, unit, process = snapshot.base, snapshot.kubelet.unit, snapshot.kubelet.process
    behind_shell = is_behind_shell(process)
    if behind_shell:
        process = None  # not kubelet
    if not base.texts:
        refusals = (_unreadable(unit),) if unit.load_state == "loaded" else ()
        return KubeletAnalysis("", None, ("none", "None"), refusals)
    parsed = parse_base(base)
    next_start, launch = next_command_line(parsed, base), base_launch(parsed)
    argv = base_argv(process) or next_start
    plain = not base.scripted and launch is not None and launch.is_kubelet
    by_script = launch is not None and (base.scripted or launch.shell)
    hidden = launch if by_script and process is None else None
    endpoint = _unknown(hidden) if hidden else base_endpoint(base, process, next_start)
    choice = choose_strategy(parsed, settings, base, snapshot.kubelet.process)
    # Behind a shell, the refused choice is also why the endpoint is unknown.
    outcomes = (choice,) if behind_shell and isinstance(choice, Finding) else (endpoint, choice)
    return KubeletAnalysis(
        endpoint=endpoint if isinstance(endpoint, str) else "",
        choice=choice if isinstance(choice, Choice) else None,
        policies=manager_policies(base, argv),
        cgroups_per_qos=cgroups_per_qos(base, argv),
        refusals=tuple(outcome for outcome in outcomes if isinstance(outcome, Finding)),
        # Another program may give kubelet other flags than the unit's.
        next_endpoint=next_endpoint(process, next_start) if plain else "",
    )


def _unknown(launch: Launch) -> Finding:
    return refusal(
        "kubelet-endpoint-unknown",
        f"kubelet is not running, and only the script {launch.program} knows its endpoint",
        "start kubelet, and run the same command again when it is up",
    )


def _unreadable(unit: UnitState) -> Finding:
    return refusal(
        "kubelet-unit-unreadable",
        f"systemd has {unit.name} loaded, but none of its unit files can be read "
        f"({unit.fragment_path or 'no fragment path'})",
        f"`systemctl cat {unit.name}` shows what is missing; put the file back, or make it readable for root",
    )
