"""cri-resmgr's own configuration, as mounted from a ConfigMap: read, and what it asks for.

The payload's own program checks it field by field (`validate_with_binary`). This module only finds what that
program does not: files that it never reads, text that is not YAML, a policy that does not exist, and what
only a start on a node refuses. Nothing is merged: cri-resmgr uses either force.cfg or fallback.cfg, whole.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent

from installer.errors import InvalidInputError
from installer.host.ports import Validator
from installer.inputs.policy import NOTHING_ASKED, Asked, asked_by_agent, unfold
from installer.inputs.reading import kind, nearest, read_if_present, shown, suggest
from installer.inputs.systemd_syntax import parse_environment_file, split_words
from installer.inputs.yaml_document import parse_document
from installer.model.containers import format_list, parse_list
from installer.model.plan import Finding, Severity
from installer.model.proxy import POLICIES, ProxyCache, nano_of

FALLBACK = "fallback.cfg"
FORCE = "force.cfg"
EXTRA_OPTIONS = "EXTRA_OPTIONS.cfg"
CONFIG_FILES = (FALLBACK, FORCE, EXTRA_OPTIONS)
_OUR_FLAGS = (
    "relay-socket",
    "runtime-socket",
    "image-socket",
    "force-config",
    "fallback-config",
    "agent-socket",
    "host-root",
    # The installer relies on their place or effect; the last two only print and exit.
    "force-config-signal",
    "relay-dir",
    "config-socket",
    "pid-file",
    "print-config",
    "list-policies",
)
_NEEDS_AGENT, _RESERVES = "static-pools", "static"
_POOLS, _OLD_POOLS = ("pools", "ConfDirPath", "ConfFilePath"), "/etc/cmk"
_HINT = "correct the configs (the ConfigMap's keys, or the files of --configs); nothing was touched"


@dataclass(frozen=True, slots=True)
class Configs:
    """The files as given."""

    fallback: bytes | None = None  # None: not given
    force: bytes | None = None
    extra_options: str | None = None  # the text of EXTRA_OPTIONS.cfg
    asked: Asked = NOTHING_ASKED  # what the effective file asks of the policy
    warnings: tuple[Finding, ...] = ()  # what works, but has side effects that an operator should know

    @property
    def effective(self) -> str:
        """The name of the file that cri-resmgr uses."""
        return FALLBACK if self.force is None else FORCE


def load_configs(directory: Path | None) -> Configs:
    """The configs in `directory`. None or an empty directory: no configs.

    Symlinks are followed, since a ConfigMap volume consists of them. Raises InvalidInputError with every
    fault in every file. A missing directory is a fault. So is a name that cri-resmgr does not know: the
    policy it was meant to set would silently be none.
    """
    if directory is None:
        return Configs()
    version = _version_of(directory)
    faults = [
        f"{path}: unknown name; {suggest(path.name, CONFIG_FILES)}"
        for path in list_configs(directory)
        if path.name not in CONFIG_FILES
    ]
    contents: dict[str, bytes] = {}
    data: dict[str, object] = {}
    for name in CONFIG_FILES:
        try:
            content = read_if_present(directory / name)
        except InvalidInputError as error:
            faults += error.faults
            continue
        if content is not None:
            contents[name], data[name] = content, _parse(name, content, faults)
    if _version_of(directory) != version:  # swapped: a mixture may have no file
        return load_configs(directory)
    if faults:
        raise InvalidInputError(faults, _HINT)
    extra = contents.get(EXTRA_OPTIONS)
    return Configs(
        contents.get(FALLBACK),
        contents.get(FORCE),
        None if extra is None else extra.decode(),
        Asked.of(data.get(FORCE, data.get(FALLBACK))),
        tuple(finding for name, found in data.items() for finding in _warnings(found, name)),
    )


def _version_of(directory: Path) -> str:
    """What a ConfigMap volume shows now; empty for any other directory."""
    try:
        return os.readlink(directory / "..data")
    except OSError:
        return ""


def find_faults(name: str, content: bytes) -> list[str]:
    """The faults in one text, each with `name:line` or its key. Pure.

    The name EXTRA_OPTIONS.cfg means that file; any other means a YAML configuration.
    """
    faults: list[str] = []
    _parse(name, content, faults)
    return faults


def validate_with_binary(configs: Configs, binary: Path, validator: Validator) -> list[str]:
    """The faults that the payload's own binary finds, as `file: complaint`.

    Runs processes, so it is called only before something is written. Touches nothing on the host.
    """
    faults = []
    for name, content in ((FALLBACK, configs.fallback), (FORCE, configs.force)):
        complaint = "" if content is None else validator.validate(binary, content)
        if complaint:
            faults.append(f"{name}: cri-resmgr refuses it: {complaint}")
    return faults


def list_configs(directory: Path) -> list[Path]:
    """The files in `directory`. Hidden names are ignored: a ConfigMap volume has `..data`, an editor its swap
    files. Raises InvalidInputError."""
    try:
        return sorted(path for path in directory.iterdir() if not path.name.startswith("."))
    except OSError as error:
        missing = isinstance(error, FileNotFoundError) and not directory.is_symlink()
        reason = f"does not exist; {nearest(directory)}" if missing else error.strerror
        if isinstance(error, NotADirectoryError):
            reason = f"is not a directory; it must name the one that has {', '.join(CONFIG_FILES)}"
        raise InvalidInputError([f"--configs {directory}: {reason}"], _HINT) from None


def _parse(name: str, content: bytes, faults: list[str]) -> object:
    """Return the parsed text, and add its faults to `faults`. An empty configuration is valid: policy
    none."""
    if name == EXTRA_OPTIONS:
        faults += _extra_options_faults(content)
        return None
    try:
        document = parse_document(content, name)
    except InvalidInputError as error:
        faults += error.faults
        return None
    data = document.data
    faults += document.faults
    if isinstance(data, dict) and (data.get("kind") == "ConfigMap" or {"apiVersion", "data"} <= data.keys()):
        faults.append(f"{name}: is a whole ConfigMap; give only the text that its data has under {name}")
    elif isinstance(data, dict):
        faults += (f"{name}: policy.{fault}" for fault in _policy_faults(Asked.of(data)))
    elif data is not None:
        faults.append(f"{name}: must be a mapping of policy, logger and the like, not {kind(data)}")
    return data


def _policy_faults(asked: Asked) -> Iterable[str]:
    """A policy that does not exist, and what only a real start refuses."""
    if asked.policy not in POLICIES:
        yield f"Active: unknown policy {shown(asked.policy)}; {suggest(asked.policy, POLICIES)}"
    if asked.policy == _RESERVES and not asked.reserved:
        reserved = "policy.ReservedResources.CPU, the CPUs kept for the system, such as 750m"
        yield f"Active: {_RESERVES} needs {reserved}"
    if asked.policy == _NEEDS_AGENT and not any(asked.section.get(key) for key in _POOLS):
        yield (
            f"Active: {_NEEDS_AGENT} has no pools and would end at its start; name them in "
            f"policy.{_NEEDS_AGENT}.pools, or in ConfDirPath where the nodes have them in {_OLD_POOLS}"
        )


def find_agent_faults(configs: Configs) -> list[str]:
    """What a proxy without cri-resmgr-agent refuses at a real start."""
    if configs.asked.policy != _NEEDS_AGENT:
        return []
    return [
        f"{configs.effective}: policy.Active: {_NEEDS_AGENT} needs cri-resmgr-agent, but the settings have "
        "proxy.agent: disabled"
    ]


def find_cpu_faults(configs: Configs, has: str) -> list[str]:
    """What only a real start finds wrong with a policy's CPUs on a node that `has` these.

    With some of them podpools and static end in a panic. The payload's binary checks the other policies by
    itself.
    """
    name, asked = configs.effective, configs.asked
    node, available, reserved = (_named(each) for each in (f"cpuset:{has}", asked.available, asked.reserved))
    here = f"this node has the CPUs {has}"
    if not node or asked.policy not in ("podpools", _RESERVES):
        return []
    if asked.policy == "podpools":
        away = format_list((available or node) - node)
        return [f"{name}: policy.AvailableResources.CPU: podpools panics on CPUs {away}: {here}"] * bool(away)
    usable = node & (available or node)
    nano, reserved = nano_of(asked.reserved) or 0, reserved or frozenset()
    if reserved <= usable and -(-nano // 10**9) <= len(usable):
        return []
    return [
        f"{name}: policy.ReservedResources.CPU: static cannot reserve {asked.reserved} of the CPUs "
        f"{format_list(usable) or 'that are left (none)'}: {here}"
    ]


def find_agent_config_faults(cache: ProxyCache, cpus: str) -> list[str]:
    """The faults in the configuration that the agent has sent, with which a start would end on a node that
    has these CPUs. Each section is a text of its own."""
    name = "the agent's configuration"
    texts = (f"{key}:\n{indent(text, '  ')}\n" for key, text in (cache.agent or {}).items() if text.strip())
    content = "".join(texts).encode("utf-8", "replace")
    faults = find_faults(name, content)
    return faults or find_cpu_faults(Configs(fallback=content, asked=asked_by_agent(cache)), cpus)


def _named(cpus: str) -> frozenset[int] | None:
    """The CPUs of `cpuset:0-3`; None for a quantity. The binary refuses malformed lists."""
    prefix, colon, listed = cpus.partition(":")
    try:
        return parse_list(listed) if colon and prefix == "cpuset" else None
    except ValueError:
        return None


def _warnings(found: object, name: str) -> Iterable[Finding]:
    data = unfold(found)
    instrumentation, dump = data.get("instrumentation"), data.get("dump")
    endpoint = instrumentation.get("HTTPEndpoint") if isinstance(instrumentation, dict) else None
    if isinstance(endpoint, str) and _everywhere(endpoint):
        yield Finding(
            Severity.WARN,
            "open-metrics",
            f"{name}: instrumentation.HTTPEndpoint {shown(endpoint)} serves metrics and a UI without "
            "authentication on all interfaces of the node",
            'bind it to the node itself: "127.0.0.1:8891", and add --disable-ui to EXTRA_OPTIONS',
        )
    config, disabled = (dump.get("Config"), dump.get("Disabled")) if isinstance(dump, dict) else (None, None)
    if isinstance(config, str) and disabled is not True and _dumps_whole_requests(config):
        yield Finding(
            Severity.WARN,
            "full-dump",
            f"{name}: dump.Config {shown(config)} writes whole requests into the journal, "
            "including the containers' environment variables, and the secrets in them",
            'use short: instead of full:, or turn it off: "off:.*"',
        )


def _dumps_whole_requests(config: str) -> bool:
    """Whether any rule asks for full detail. A rule without a level has the level of the rule before it; the
    first one defaults to full (pkg/dump/flags.go of cri-resmgr)."""
    level = "full"
    for rule in config.split(","):
        prefix, colon, _method = rule.partition(":")
        level = prefix.strip().lower() if colon else level
        if rule and level in ("full", "verbose", "long"):
            return True
    return False


def _everywhere(endpoint: str) -> bool:
    host = endpoint.rpartition(":")[0].strip("[]")
    return bool(endpoint) and host in ("", "0.0.0.0", "::", "*")


def _extra_options_faults(content: bytes) -> list[str]:
    name = EXTRA_OPTIONS
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        return [f"{name}:{line}: not UTF-8 text; systemd would ignore the whole file"]
    if "\0" in text:
        return [f"{name}: contains a NUL byte"]
    try:
        options = parse_extra_options(text)
    except ValueError as error:
        return [f"{name}:{error}"]
    return [
        f"{name}: {word.partition('=')[0]}: the installer sets this flag itself; leave it out"
        for word in options
        if _is_ours(word)
    ]


def _is_ours(word: str) -> bool:
    """Go's flag package accepts one dash or two, and the value after `=` or as the next word."""
    flag = re.match(r"--?([^=\s-][^=\s]*)", word)
    return flag is not None and (flag[1] in _OUR_FLAGS or flag[1].startswith("reset-"))


def parse_extra_options(text: str) -> tuple[str, ...]:
    """The words that an EXTRA_OPTIONS.cfg adds to cri-resmgr's command line.

    Raises ValueError with `line: reason` unless there is exactly one EXTRA_OPTIONS= line (besides comments
    and blank lines) whose value is a list of flags.
    """
    number, line = _only_line(text)
    # An unclosed quote would swallow the next line.
    assignments = parse_environment_file(f"{line}\n_NEXT=1\n")
    if "_NEXT" not in assignments:
        raise ValueError(f"{number}: an unclosed quote")
    try:
        words = split_words(assignments["EXTRA_OPTIONS"])
    except ValueError as error:
        raise ValueError(f"{number}: in the value: {error}") from None
    if words and not words[0].startswith("-"):
        raise ValueError(f"{number}: {shown(words[0])} is not a flag; cri-resmgr takes flags only")
    if "--" in words or "-" in words:
        raise ValueError(f"{number}: a lone dash ends the flags; cri-resmgr takes flags only")
    return words


def _only_line(text: str) -> tuple[int, str]:
    """The number and text of the only line that is neither a comment nor blank."""
    found: tuple[int, str] | None = None
    for number, line in enumerate(re.split(r"\r\n|\n|\r", text), 1):
        stripped = line.strip(" \t")
        if stripped.startswith(("#", ";")):
            if stripped.endswith("\\"):
                # Up to systemd 253 the next line belongs to the comment; later it does not.
                raise ValueError(
                    f"{number}: a backslash at the end of a comment may join it with the next line"
                )
        elif stripped:
            if not re.match(r"EXTRA_OPTIONS[ \t]*=", stripped):
                raise ValueError(f"{number}: only one line EXTRA_OPTIONS=... is allowed in this file")
            if re.search(r"(?<!\\)(\\\\)*\\$", line):
                raise ValueError(f"{number}: a backslash at the end continues the line; write it as one line")
            if found:
                raise ValueError(f"{number}: a second EXTRA_OPTIONS= line; there must be exactly one")
            found = (number, stripped)
    if found is None:
        raise ValueError("1: no EXTRA_OPTIONS= line; there must be exactly one")
    return found
