"""How our endpoint comes behind what kubelet's unit says, and where. Pure: works on a snapshot's texts."""

from __future__ import annotations

from dataclasses import dataclass
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
    base_launch,
    last_variable,
    next_command_line,
    parse_base,
)
from installer.node.kubelet_endpoint import (
    NEVER_SERVED,
    Found,
    base_endpoint,
    cgroups_per_qos,
    find_passing,
    is_behind_shell,
    manager_policies,
    next_endpoint,
)

if TYPE_CHECKING:
    from installer.inputs.settings import KubeletSettings, Settings


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
        variable = found.passing.variable
        why = f"{found.what} in {command.path} ends with ${variable}, which it hands on to kubelet"
        return _passed_on(unit, variable, why)
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


def _passed_on(unit: BaseUnit, variable: str, why: str) -> Choice | Finding:
    taken = _taken(unit, variable)
    return taken or Choice(Strategy.ENVIRONMENT, variable, why, passed_on=True)


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
    return _passed_on(unit, variable, why)


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


def effective(detail: UnitDetail, unit: UnitState, desired: DesiredKubelet) -> str:
    """What is wrong, in words, or an empty string. Judges by what systemd has loaded, and so sees an
    interrupted run and drop-ins of others."""
    if unit.load_state != "loaded":
        return f"{unit.name} is {unit.load_state}"
    if not desired.unit.unit_digest and not unit.loaded_digest:
        return ""  # an earlier installation comes back: nothing of it is ours
    if unit.loaded_digest != desired.unit.unit_digest:
        return f"systemd has not loaded the current {desired.unit.unit_file}: daemon-reload required"
    wrong = _guard(detail) or _environment_files(detail, desired)
    if wrong:
        return wrong
    if len(detail.exec_start) != 1:
        return f"there are {len(detail.exec_start)} ExecStart= lines, not one"
    last = detail.exec_start[0].argv[-1:]
    if last != (f"${desired.variable}",) and not desired.passed_on:
        return f"the command line ends with {' '.join(last)!r}, not with ${desired.variable}"
    return ""


def _guard(detail: UnitDetail) -> str:
    verbs = [line.argv[-1] for line in detail.exec_start_pre if line.path == paths.GUARD and line.argv]
    if verbs[-2:] != ["reset", "compose"]:
        return "the guard is not among the ExecStartPre= lines"
    return ""


def _environment_files(detail: UnitDetail, desired: DesiredKubelet) -> str:
    files = tuple(path for path, _optional in detail.environment_files)
    ours = desired.environment_files
    if tuple(path for path in files if path in ours) != ours:
        return "our EnvironmentFile= lines are not in effect"
    # The other strategy's variable is ours alone: later files do not matter.
    if desired.strategy is Strategy.ENVIRONMENT and files[-len(ours) :] != ours:
        return f"{files[-1]} comes later than ours and can set ${desired.variable}"
    return ""


# In which unit directory our drop-in of kubelet's unit lies. Pure.
#
# gardener-node-agent deletes all of /etc/systemd/system/kubelet.service.d when it changes kubelet's unit or a
# file that the unit names, and restarts kubelet at once (pkg/nodeagent/controller/operatingsystemconfig of
# gardener/gardener). It never touches /etc/systemd/system.control, which systemd reads before all others,
# keeps over a boot, and writes itself for `systemctl set-property` (systemd.unit(5)).

_NODE_AGENT = "gardener-node-agent.service"


def place_drop_in(settings: Settings, machine: Machine) -> Settings:
    """The settings with the directory that `auto` means on this machine.

    Files of the same name hide each other, the first directory wins (systemd.unit(5)): while the drop-in
    moves from one directory to another, it is in effect once.
    """
    if settings.kubelet.drop_in_directory != paths.AUTO:
        return settings
    wiped = _NODE_AGENT in machine.services
    return in_directory(settings, paths.CONTROL_UNITS if wiped else paths.USUAL_UNITS)


def in_directory(settings: Settings, directory: str) -> Settings:
    placed = settings.kubelet.model_copy(update={"drop_in_directory": directory})
    return settings.model_copy(update={"kubelet": placed})


def possible_drop_ins(kubelet: KubeletSettings) -> tuple[str, ...]:
    """Where it may lie from an earlier run of the same settings, or of the default ones."""
    usual = paths.drop_in_directories(paths.AUTO)
    directories = dict.fromkeys((*paths.drop_in_directories(kubelet.drop_in_directory), *usual))
    return tuple(paths.drop_in(directory, kubelet.unit) for directory in directories)


@dataclass(frozen=True, slots=True)
class KubeletAnalysis:
    """`endpoint` is kubelet's base endpoint, empty if it is not known. `choice` is None if kubelet cannot be
    served; `refusals` say why. `policies` are those of its CPU and its memory manager, `cgroups_per_qos` as
    in its configuration. `next_endpoint` is its base endpoint after a restart, empty if that is not known to
    be another one."""

    endpoint: str
    choice: Choice | None
    policies: tuple[str, str]
    refusals: tuple[Finding, ...] = ()
    next_endpoint: str = ""
    cgroups_per_qos: bool = True


def analyse_kubelet(snapshot: HostSnapshot, settings: Settings) -> KubeletAnalysis:
    """Parses kubelet's unit once and asks it everything. A unit that does not exist has no refusal of its
    own: preflight says the one thing."""
    base, unit, process = snapshot.base, snapshot.kubelet.unit, snapshot.kubelet.process
    if is_behind_shell(process):
        process = None  # not kubelet
    if not base.texts:
        refusals = (_unreadable(unit),) if unit.load_state == "loaded" else ()
        return KubeletAnalysis("", None, ("none", "None"), refusals)
    parsed = parse_base(base)
    next_start, launch = next_command_line(parsed, base), base_launch(parsed)
    plain = not base.scripted and launch is not None and launch.is_kubelet
    by_script = launch is not None and (base.scripted or launch.shell)
    hidden = launch if by_script and process is None else None
    endpoint = _unknown(hidden) if hidden else base_endpoint(base, process, next_start)
    choice = choose_strategy(parsed, settings, base, snapshot.kubelet.process)
    found = (endpoint, choice)
    return KubeletAnalysis(
        endpoint=endpoint if isinstance(endpoint, str) else "",
        choice=choice if isinstance(choice, Choice) else None,
        policies=manager_policies(base, process, next_start),
        cgroups_per_qos=cgroups_per_qos(base, process, next_start),
        refusals=tuple(one for one in found if isinstance(one, Finding)),
        # Another program may give kubelet other flags than its unit has.
        next_endpoint=next_endpoint(process, next_start) if plain else "",
    )


def _unknown(launch: Launch) -> Finding:
    return refusal(
        "kubelet-endpoint-unknown",
        f"kubelet does not run, and its endpoint is known by the script {launch.program} alone",
        "start kubelet, and run this again when it is up",
    )


def _unreadable(unit: UnitState) -> Finding:
    return refusal(
        "kubelet-unit-unreadable",
        f"systemd has {unit.name} loaded, but none of its unit files can be read "
        f"({unit.fragment_path or 'no fragment path'})",
        f"`systemctl cat {unit.name}` shows what is missing; put the file back, or make it readable for root",
    )
