"""Other kubelets: how their units start them, and what their configurations say; and a systemd and a shell
that start them."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from installer.inputs.systemd_syntax import (
    Assignment,
    expand,
    merged,
    parse_exec,
    parse_unit,
    split_assignments,
)
from installer.model import paths
from installer.model.host import ExecLine, UnitDetail, UnitText
from tests.faults.disks.crash import Entry, Tree
from tests.faults.disks.node import COMMAND, KUBELET, RUNTIME, bare_node

_DIRECTORY = "/etc/systemd/system"
DROP_INS = f"{_DIRECTORY}/{KUBELET}.d"
_OWN_DROP_INS = f"{_DIRECTORY}/{paths.PROXY_UNIT}.d"
BASE = f"{DROP_INS}/10-kubeadm.conf"
CONFIG = "/var/lib/kubelet/config.yaml"
SCRIPT = "/opt/start-kubelet"
PROGRAM = "/usr/bin/kubelet"
_FLAG = f"--container-runtime-endpoint={RUNTIME}"
WORD = "$KUBELET_EXTRA_ARGS"
_NAMES = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
_LAUNCHERS = ("env", "nice", "busybox")


@dataclass(frozen=True, slots=True)
class LoadedUnit:
    """A unit as systemd has it, from its texts."""

    lines: tuple[Assignment, ...]
    detail: UnitDetail
    environment: tuple[str, ...]

    def variables(self) -> dict[str, str]:
        return dict(one.partition("=")[::2] for one in self.environment)


def load_unit(texts: Iterable[tuple[str, bytes]]) -> LoadedUnit:
    """What systemd makes of a unit's file and its drop-ins, in that order."""
    lines = tuple(
        line for path, raw in texts for line in parse_unit(UnitText(path, raw.decode("utf-8", "replace")))
    )

    def commands(key: str) -> tuple[ExecLine, ...]:
        found = []
        for line in merged(lines, "Service", key):
            try:
                words = parse_exec(line).words
            except ValueError:
                continue
            found.append(ExecLine(words[0], words))
        return tuple(found)

    files = tuple(
        (line.value.removeprefix("-"), line.value.startswith("-"))
        for line in merged(lines, "Service", "EnvironmentFile")
    )
    environment = tuple(
        f"{name}={value}"
        for line in merged(lines, "Service", "Environment")
        for name, value in split_assignments(line.value)
    )
    seconds = sum(int(line.value) for line in merged(lines, "Service", "TimeoutStartSec"))
    detail = UnitDetail(commands("ExecStart"), commands("ExecStartPre"), files, seconds * 1_000_000)
    return LoadedUnit(lines, detail, environment)


def command_line(
    unit: LoadedUnit, variables: Mapping[str, str], read: Callable[[str], bytes | None]
) -> tuple[str, ...]:
    """The words of the process that is left when launchers, shells and scripts have passed it on."""
    line = merged(unit.lines, "Service", "ExecStart")[0]
    command = parse_exec(line)
    unset = {word for one in merged(unit.lines, "Service", "UnsetEnvironment") for word in one.value.split()}
    variables = {name: value for name, value in variables.items() if name not in unset}
    words = list(expand(command, variables))
    if "@" in command.prefixes:
        del words[1]
    while posixpath.basename(words[0]) in _LAUNCHERS:
        at = next(number for number, word in enumerate(words) if number and re.search("kubelet|sh$", word))
        words = words[at:]
    if posixpath.basename(words[0]) == "sh" and words[1] == "-c":
        return _of_shell(words[2], words[4:], variables) or tuple(words)
    script = (read(words[0]) or b"").decode()
    if script.startswith("#!/bin/sh"):
        return _of_shell(script.splitlines()[-1], words[1:], variables) or ("/bin/sh", *words)
    return tuple(words)


def _of_shell(text: str, arguments: list[str], variables: Mapping[str, str]) -> tuple[str, ...]:
    """What a shell becomes by an `exec`; nothing if it has none."""
    _, executes, rest = text.partition("exec ")
    if not executes:
        return ()
    found: list[str] = []
    for word in shlex.split(rest):
        if word == "$@":
            found += arguments
        else:
            found += _NAMES.sub(lambda name: variables.get(name[1] or name[2], ""), word).split()
    return tuple(found)


# -- the nodes ------------------------------------------------------------------------


def _file(text: str, mode: int = 0o644) -> Entry:
    return Entry("f", mode, text.encode("utf-8", "surrogateescape"))


def _node(command: str, *more: str, **files: str) -> Callable[[], Tree]:
    """A node whose kubelet has that command line, with more lines in its unit and more files; `later` is a
    drop-in behind ours, `config` kubelet's configuration, `script` what starts it, `proxys` a drop-in of the
    proxy's unit."""
    places = {
        "later": f"{DROP_INS}/95-later.conf",
        "config": CONFIG,
        "script": SCRIPT,
        "proxys": f"{_OWN_DROP_INS}/10-theirs.conf",
        "part": "/var/lib/kubelet/config.d/10-part.conf",
        "needs": f"{_DIRECTORY}/other.service",
        "default": f"{_DIRECTORY}/default.target",
        "nri": "/proc/1/net/unix",
    }

    def tree() -> Tree:
        lines = "\n".join((*more, "ExecStart=", *(f"ExecStart={one}" for one in command.split("\n"))))
        found = dict(bare_node())
        found[BASE] = _file(f"[Service]\nEnvironmentFile=-/etc/default/kubelet\n{lines}\n")
        for name, text in files.items():
            place = places[name]
            above = place.rpartition("/")[0]
            while above and above not in found:
                found[above] = Entry("d", 0o755)
                above = above.rpartition("/")[0]
            found[place] = _file(text, 0o755 if name == "script" else 0o644)
        return found

    return tree


_USUAL = f"{' '.join(COMMAND)} {WORD}"
_WITH_CONFIG = f"{PROGRAM} --config={CONFIG} {WORD}"
_SH = "/bin/sh -c"
_PASSES = f'#!/bin/sh\nexec {PROGRAM} {_FLAG} "$@"\n'

#: Each is tried once.
KUBELETS: dict[str, Callable[[], Tree]] = {
    "no variable": _node(f"{PROGRAM} {_FLAG} --v=2"),
    "a variable twice": _node(f"{PROGRAM} {_FLAG} --x={'${KUBELET_EXTRA_ARGS}'} {WORD}"),
    "a file behind ours": _node(_USUAL, later="[Service]\nEnvironmentFile=-/etc/default/later\n"),
    "a file behind ours, no repeat": _node(
        _USUAL, later="[Service]\nEnvironmentFile=-/etc/default/later\nExecStart=\nExecStart=" + _USUAL + "\n"
    ),
    "a line behind ours": _node(_USUAL, later=f"[Service]\nExecStart=\nExecStart={_USUAL}\n"),
    "a reset behind ours": _node(_USUAL, later="[Service]\nEnvironment=\nEnvironment=A=b\n"),
    "an unset variable": _node(_USUAL, "UnsetEnvironment=KUBELET_EXTRA_ARGS"),
    "both unset": _node(_USUAL, "UnsetEnvironment=KUBELET_EXTRA_ARGS CRI_RESMGR_KUBELET_ARGS"),
    "two lines": _node(f"{_USUAL}\n{_USUAL}"),
    "two commands": _node(f"{_USUAL} ; /bin/true"),
    "an open quote": _node(f'{PROGRAM} "{_FLAG} {WORD}'),
    "no expansion": _node(f":{_USUAL}"),
    "a name of its own": _node(f"@{PROGRAM} kubelet {_FLAG} {WORD}"),
    "variables in its unit": _node(f"{PROGRAM} $ENDPOINT {WORD}", f"Environment=ENDPOINT={_FLAG}"),
    "nice": _node(f"/usr/bin/nice -n 5 {_USUAL}"),
    "nice, unknown": _node(f"/usr/bin/nice --what {_USUAL}"),
    "env": _node(f"/usr/bin/env A=b {_USUAL}"),
    "a shell's variable": _node(f"{_SH} 'exec {PROGRAM} {_FLAG} {WORD}'"),
    "a shell's variable, unset": _node(
        f"{_SH} 'exec {PROGRAM} {_FLAG} {WORD}'", "UnsetEnvironment=KUBELET_EXTRA_ARGS"
    ),
    "a shell's arguments": _node(f"{_SH} 'exec {PROGRAM} {_FLAG} \"$@\"' kubelet {WORD}"),
    "a shell's named arguments": _node(f"{_SH} 'exec {PROGRAM} {_FLAG} \"$@\"' kubelet --v=2"),
    "a shell's arguments, nameless": _node(f"{_SH} 'exec {PROGRAM} {_FLAG} \"$@\"' {WORD}"),
    "a shell that passes nothing": _node(f"{_SH} 'exec {PROGRAM} {_FLAG} --v=2'"),
    "a shell with an open quote": _node(f"{_SH} 'exec {PROGRAM} \"{_FLAG} {WORD}'"),
    "a shell with two commands": _node(f"{_SH} 'true; exec {PROGRAM} {_FLAG} {WORD}'"),
    "a shell's child": _node(f"{_SH} '{PROGRAM} {_FLAG} {WORD}; true'"),
    "a shell behind env": _node(f"/usr/bin/env A=b /bin/sh -c 'exec {PROGRAM} {_FLAG} {WORD}'"),
    "a shell with options": _node(f"/bin/sh -e -o pipefail {SCRIPT} {WORD}", script=_PASSES),
    "busybox": _node(f"/bin/busybox sh -c 'exec {PROGRAM} {_FLAG} {WORD}'"),
    "a script": _node(f"{SCRIPT} --v=2 {WORD}", script=_PASSES),
    "a script without arguments": _node(SCRIPT, script=_PASSES.replace('"$@"', "--v=2")),
    "a script that loses them": _node(f"{SCRIPT} --v=3 {WORD}", script=_PASSES.replace('"$@"', "--v=2")),
    "a container": _node(f"/usr/bin/docker run {_USUAL}"),
    "an endpoint in its configuration": _node(
        _WITH_CONFIG, config=f"containerRuntimeEndpoint: {RUNTIME}\ncpuManagerPolicy: static\n"
    ),
    "managers in flags": _node(
        f"{PROGRAM} {_FLAG} --cpu-manager-policy=static --memory-manager-policy=Static {WORD}"
    ),
    "managers, and NRI": _node(
        f"{PROGRAM} {_FLAG} --cpu-manager-policy=static {WORD}",
        nri="0000: 00000002 00000000 00010000 0001 01 123 /run/nri/nri.sock\n",
    ),
    "an endpoint in a comment": _node(_WITH_CONFIG, config="# containerRuntimeEndpoint: x\na: b\n"),
    "a program without a path": _node(f"start-kubelet {_FLAG} --v=2 {WORD}"),
    "no configuration": _node(_WITH_CONFIG),
    "a broken configuration": _node(_WITH_CONFIG, config="containerRuntimeEndpoint: [\n"),
    "a broken policy": _node(
        f"{PROGRAM} {_FLAG} --config={CONFIG} {WORD}",
        config="cpuManagerPolicy: [\ncgroupsPerQOS: [\n",
    ),
    "a list for an endpoint": _node(_WITH_CONFIG, config="containerRuntimeEndpoint: []\n"),
    "an endpoint of null": _node(_WITH_CONFIG, config="containerRuntimeEndpoint:\n"),
    "a configuration in parts": _node(
        f"{PROGRAM} --config={CONFIG} --config-dir=/var/lib/kubelet/config.d {WORD}",
        config="cpuManagerPolicy: none\n",
        part=f"containerRuntimeEndpoint: {RUNTIME}\n",
    ),
    "no cgroups of classes": _node(
        f"{PROGRAM} {_FLAG} --config={CONFIG} {WORD}", config="cgroupsPerQOS: false\n"
    ),
    "an endpoint elsewhere": _node(f"{PROGRAM} --container-runtime-endpoint=tcp://127.0.0.1:1 {WORD}"),
    "the built-in endpoint": _node(f"{PROGRAM} {WORD}"),
    "another root": _node(f"{_USUAL.removesuffix(WORD)} --root-dir=/srv/kubelet {WORD}"),
    "in one process": _node("/usr/local/bin/k3s agent"),
    "in a hurry": _node(_USUAL, "TimeoutStartSec=12"),
    "not root": _node(_USUAL, "User=kubelet"),
    "in a sandbox": _node(
        _USUAL,
        "ProtectSystem=strict",
        "ReadWritePaths=/var/lib/kubelet",
        "BindPaths=/srv:/run",
        "BindReadOnlyPaths=-/srv",
        "TemporaryFileSystem=/etc:ro",
        "ReadOnlyPaths=+/run -/srv /nowhere",
        "InaccessiblePaths=/run/cri-resmgr",
        "PrivateNetwork=yes",
    ),
    "in a root of its own": _node(_USUAL, "RootDirectory=/srv"),
    "bound to itself": _node(_USUAL, "BindPaths=/run:/run", "ReadWritePaths=/etc"),
    "waits for the proxy": _node(_USUAL, "[Unit]", "After=cri-resource-manager.service", "[Service]"),
    "a proxy behind kubelet": _node(_USUAL, proxys="[Unit]\nAfter=kubelet.service\n"),
    "a proxy behind another": _node(
        _USUAL,
        proxys="[Unit]\nAfter=other.service\nWants=other.service\n",
        needs="[Unit]\nAfter=kubelet.service\n[Service]\nExecStart=/bin/true\n",
        default="[Unit]\nWants=other.service missing.service\n",
    ),
    "a proxy behind one that nobody starts": _node(
        _USUAL,
        proxys="[Unit]\nAfter=other.service\n",
        needs="[Unit]\nAfter=third.service kubelet.service\n[Service]\nExecStart=/bin/true\n",
        default="[Unit]\nWants=third.service\n",
    ),
    "a proxy behind one that is missing": _node(
        _USUAL,
        "[Unit]",
        "Before=never.service",
        "[Service]",
        proxys="[Unit]\nAfter=never.service\n",
        default="[Unit]\nWants=never.service\n",
    ),
    "a proxy in a sandbox": _node(_USUAL, proxys="[Service]\nUser=nobody\nProtectSystem=strict\n"),
    "a proxy with another line": _node(_USUAL, proxys="[Service]\nExecStart=\nExecStart=/bin/true\n"),
    "a proxy with a file": _node(
        _USUAL, proxys="[Service]\nEnvironmentFile=/nowhere\nEnvironment=CONFIG_OPTIONS=x\n"
    ),
}
