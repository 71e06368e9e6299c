"""The endpoint that kubelet's own flags and configuration give it, and whether our part is passed on to
kubelet."""

from __future__ import annotations

import posixpath
import re

from installer.errors import InvalidInputError
from installer.inputs.reading import kind
from installer.inputs.systemd_syntax import ExecCommand, expand
from installer.inputs.yaml_document import parse_document
from installer.model.host import KubeletBase, ProcessState, UnitText, last_flag
from installer.model.paths import GUARD_VARIABLE, RELAY_ENDPOINT, link_of, normalise_endpoint, same_endpoint
from installer.model.plan import Finding, refusal
from installer.node.kubelet_command import (
    ARGS_VARIABLE,
    BaseUnit,
    Launch,
    Passing,
    came_through,
    find_launch,
    judge_inline,
    launch_of,
    next_command_line,
    without_argv0,
)

# What kubelet uses without our part: its base endpoint and its resource managers' policies.
#
# Kubelet's own precedence: flag (the last one) > --config-dir (the lexically last file that sets it) >
# --config > built-in default.

_BUILT_IN_ENDPOINT = "unix:///run/containerd/containerd.sock"  # kubelet 1.27 and later
_OUR_FLAG = "CRI_RESMGR_GUARD_FLAG"  # in the environment of a kubelet that our drop-in started
_SOCKET_PATH = re.compile(r"/[A-Za-z0-9._/@:+-]{1,106}")  # a unix socket path holds 107 bytes


def base_endpoint(
    base: KubeletBase, process: ProcessState | None, next_start: tuple[str, ...]
) -> str | Finding:
    """The endpoint of the running kubelet without our flag; if none runs, of its next start."""
    endpoint = _endpoint(base, base_argv(process) or next_start)
    if base.repaired and isinstance(endpoint, str) and same_endpoint(endpoint, RELAY_ENDPOINT):
        endpoint = _endpoint(base, next_start)  # kubelet was started before its files were repaired
    if isinstance(endpoint, Finding):
        return endpoint
    planned = last_flag(next_start, "--container-runtime-endpoint") or ""
    if any(same_endpoint(each, RELAY_ENDPOINT) or link_of(each) for each in (endpoint, planned)):
        return refusal(
            "kubelet-base-is-relay",
            f"{_relay_source(base)} names the relay, or our link to it, as kubelet's endpoint: "
            "without the proxy, kubelet would have no runtime",
            "`install --take-over` (settings: takeOver: true) takes over what another installer has done; or "
            "restore the container runtime's endpoint there, and restart kubelet",
        )
    if not _SOCKET_PATH.fullmatch(normalise_endpoint(endpoint)):
        return refusal(
            "kubelet-endpoint-not-unix",
            f"kubelet's endpoint is {endpoint!r}: the proxy can only use a unix socket with a plain path",
        )
    return endpoint


def next_endpoint(process: ProcessState | None, next_start: tuple[str, ...]) -> str:
    """The socket that a running kubelet will use after its next start, if its command line then names another
    one; otherwise, or if that is unknown, an empty string. A configuration that names another one does not
    matter here: every snapshot reads it again."""
    flag = "--container-runtime-endpoint"
    planned, running = last_flag(next_start, flag) or "", last_flag(base_argv(process), flag) or ""
    if process is None or same_endpoint(planned, running):
        return ""
    return planned if _SOCKET_PATH.fullmatch(normalise_endpoint(planned)) else ""


def manager_policies(base: KubeletBase, argv: tuple[str, ...]) -> tuple[str, str]:
    """The policies of the CPU and memory managers of a kubelet with this command line (`none`, `static` ...;
    `None`, `Static`).

    Kubelet's defaults if its configuration cannot be read: kubelet does not start then either.
    """
    try:
        cpu = _setting(base, argv, "--cpu-manager-policy", "cpuManagerPolicy")
        memory = _setting(base, argv, "--memory-manager-policy", "memoryManagerPolicy")
    except ValueError:
        return "none", "None"
    return cpu or "none", memory or "None"


def cgroups_per_qos(base: KubeletBase, argv: tuple[str, ...]) -> bool:
    """Whether kubelet puts each pod into a cgroup of its QoS class. That is the default, also if its
    configuration cannot be read."""
    try:
        found = _setting(base, argv, "--cgroups-per-qos", "cgroupsPerQOS")
    except ValueError:
        return True
    return found.lower() not in ("false", "f", "0")  # as Go parses a flag's boolean


def base_argv(process: ProcessState | None) -> tuple[str, ...]:
    """The running command line without the flag that our guard added: the last one, before which a script may
    have put its own flags."""
    if process is None:
        return ()
    argv = list(process.argv)
    flag = process.environ.get(_OUR_FLAG, "")
    if flag in argv:
        del argv[len(argv) - 1 - argv[::-1].index(flag)]
    return tuple(argv)


def _endpoint(base: KubeletBase, argv: tuple[str, ...]) -> str | Finding:
    flag = last_flag(argv, "--container-runtime-endpoint")
    if flag:
        return flag
    for name, read in (("--config", base.config), ("--config-dir", base.config_dir)):
        wanted = last_flag(argv, name)
        if wanted and read is None:
            return refusal(
                "kubelet-config-unreadable",
                f"kubelet's configuration {wanted} could not be read, and may contain its endpoint",
                "start kubelet, and make sure that the file exists",
            )
    try:
        return _setting(base, argv, "", "containerRuntimeEndpoint") or _BUILT_IN_ENDPOINT
    except ValueError as error:
        return refusal("kubelet-config-unreadable", str(error), "correct kubelet's configuration")


def _setting(base: KubeletBase, argv: tuple[str, ...], flag: str, field: str) -> str:
    """Raises ValueError, naming the file, if a configuration that may set it cannot be read."""
    value = last_flag(argv, flag) if flag else None
    if value is not None:
        return value
    files = (*reversed(base.config_dir or ()), *((base.config,) if base.config else ()))
    for file in files:
        found = _field(file, field)
        if found is not None:
            return found
    return ""


def _field(file: UnitText, field: str) -> str | None:
    """Empty if the file sets it to null. Kubelet then uses its default, whatever an earlier file says, since
    it merges the files as JSON (RFC 7396)."""
    # Without the field's name in it, the configuration need not be parsed, nor yaml imported.
    if field not in file.text:
        return None
    try:
        # Kubelet reads the first document, and ignores what follows (Unmarshal of sigs.k8s.io/yaml).
        content = parse_document(file.text.encode("utf-8", "replace"), file.path, alone=False).data
    except InvalidInputError as error:
        raise ValueError(error.message) from error
    if not isinstance(content, dict) or field not in content:
        return None
    value = content[field]
    if isinstance(value, (dict, list)):
        raise ValueError(f"{file.path}: {field} is {kind(value)}")
    return "" if value is None else str(value)


def _relay_source(base: KubeletBase) -> str:
    """The file that names the relay, for a message."""
    relay = normalise_endpoint(RELAY_ENDPOINT)
    found = (text.path for text in base.configured() if relay in text.text)
    return next(found, "another program's configuration")


# Whether a program between systemd and kubelet passes our part on, as far as a snapshot can tell.
#
# For a script or another program, the running kubelet shows it: its command line ends as the unit's does. If
# it does not, an operator can declare what arrives: `kubelet.variable`, or `kubelet.strategy: exec-start` for
# the arguments. After the restart the running process decides.

_DECLARE = (
    "kubelet.variable: NAME, if it passes the value of that environment variable on to kubelet after every "
    "other flag, or kubelet.strategy: exec-start, if it passes its own arguments on"
)
_HINTS = {
    "kubelet-in-container": "run kubelet as a process of the host, or exclude this node",
    "kubelet-behind-shell": "start kubelet with `exec` in it",
    "kubelet-shell-wrapper": (
        f'make it one `exec kubelet ...` that ends with "$@" or a $VARIABLE; or set {_DECLARE}'
    ),
    "kubelet-arguments-lost": (
        f"if the unit has changed since kubelet's start, restart kubelet; or set {_DECLARE}"
    ),
}
_HINT_REMOVE = (
    "`cri-resmgr-installer remove` starts kubelet by its unit's own line, which shows what happens to its "
    f"arguments; then install again; or set {_DECLARE}"
)


# No setting helps with these.
NEVER_SERVED = ("kubelet-in-container", "kubelet-behind-shell")


def refused(passing: Passing, command: ExecCommand) -> Finding:
    """Why kubelet cannot be served."""
    why = passing.why_not or f"only ${passing.variable} reaches kubelet, not its arguments"
    message = f"{passing.what} in {command.path} starts kubelet, and our flag would not reach it: {why}"
    if passing.earlier:
        message += f"; our drop-in still starts kubelet by its earlier command line ({passing.earlier})"
    if passing.variable:
        return refusal(passing.code, message, "set kubelet.strategy: auto, which uses that variable")
    return refusal(passing.code, message, _HINT_REMOVE if passing.earlier else _HINTS[passing.code])


def find_passing(
    unit: BaseUnit, command: ExecCommand, base: KubeletBase, process: ProcessState | None
) -> Passing:
    """What stands between systemd and kubelet, and what it passes on. `process` is the running kubelet, or
    the shell in front of it."""
    launch = launch_of(command)
    if launch.is_container:
        name = posixpath.basename(launch.program)
        why = f"{name} runs it in a container, where the relay is not"
        return Passing(why_not=why, what=name, code="kubelet-in-container")
    if launch.is_kubelet and not base.scripted:
        return Passing(appended=True)
    inline = launch.inline is not None
    what = "the shell command" if inline else f"the program {launch.program or command.words[0]}"
    passing = judge_inline(launch) if inline else Passing()
    proven = passing.appended or passing.variable
    if not proven and (inline or launch.shell or base.scripted) and is_behind_shell(process):
        why = "the main process of the unit is the shell, and kubelet its child"
        return Passing(why_not=why, what=what, code="kubelet-behind-shell")
    if inline:
        return passing._replace(what=what, code="kubelet-shell-wrapper")
    environment = unit.environment(base.environment_files)
    started, earlier = _started_line(unit, command, base, launch, environment)
    passing = _shown(started, process)
    if process is not None and not passing.appended:  # its environment files may have been edited since
        was = _started_line(unit, command, base, launch, {**environment, **_base_environment(process)})[0]
        passing = max(passing, _shown(was, process), key=lambda shown: shown.appended)
    return passing._replace(what=what, code="kubelet-arguments-lost", earlier=earlier)


def _base_environment(process: ProcessState) -> dict[str, str]:
    """The environment of a running process without the flag that our guard added."""
    found = dict(process.environ)
    name = found.get(GUARD_VARIABLE, "")
    if name in found:
        found[name] = found[name].removesuffix(found.get(_OUR_FLAG, ""))
    return found


def is_behind_shell(process: ProcessState | None) -> bool:
    """Whether the main process is a shell, which has not reached its `exec` yet or has none."""
    return process is not None and process.is_shell


def _shown(words: tuple[str, ...], process: ProcessState | None) -> Passing:
    """What the running process proves: that it is the program of the line it was started by, or got that
    line's arguments. `words` is that line; empty if unknown. Without a process its endpoint is unknown as
    well, which is a refusal of its own."""
    if process is None or came_through(words, base_argv(process), process.exe):
        return Passing(appended=True)
    if len(words) == 1:
        return Passing(why_not="nothing shows that it passes arguments on, since the unit has none")
    return Passing(why_not="the running kubelet has other arguments than the unit")


def _started_line(
    unit: BaseUnit, command: ExecCommand, base: KubeletBase, launch: Launch, environment: dict[str, str]
) -> tuple[tuple[str, ...], str]:
    """The program and arguments that started the running kubelet, variables expanded. What systemd has loaded
    shows specifiers expanded. The loaded line may come from our drop-in and repeat an outdated line of the
    unit. If that line starts a different program it proves nothing; return that program."""
    line, loaded = without_argv0(command, next_command_line(unit, base, environment)), base.detail.exec_start
    if len(loaded) == 1 and launch.is_located:
        words = (loaded[0].path, *loaded[0].argv[1:])
        ours = words[-1] == f"${ARGS_VARIABLE}"
        words = words[:-1] if ours else words
        if find_launch(words).program == launch.program:
            started = ExecCommand("", "", command.prefixes, words)
            line = expand(started, environment)
        elif ours:
            return (), loaded[0].path
    at = line.index(launch.program) if launch.program in line else 0
    return (launch.program, *line[at + 1 :]), ""
