"""cri-resmgr's own configuration, as mounted from a ConfigMap: read, checked, and what it asks for.

Finds what our schema knows to be wrong; field by field, the payload's binary is
the judge (`validate_with_binary`). Merges nothing: cri-resmgr takes force.cfg or
else fallback.cfg, whole. What is written to the host is the text as it came.

The schema is that of cri-resmgr v0.8 - v0.9.2.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from installer.errors import InvalidInputError
from installer.host.ports import Validator
from installer.inputs.reading import kind, nearest, read_if_present, shown, suggest
from installer.inputs.systemd_syntax import parse_environment_file, split_words
from installer.inputs.yaml_document import Document, parse_document
from installer.model.containers import format_list, parse_list
from installer.model.plan import Finding, Severity
from installer.model.proxy import nano_of

FALLBACK = "fallback.cfg"
FORCE = "force.cfg"
EXTRA_OPTIONS = "EXTRA_OPTIONS.cfg"
CONFIG_FILES = (FALLBACK, FORCE, EXTRA_OPTIONS)
DEFAULT_FALLBACK = b"policy:\n  Active: none\n"
"""Installed where no fallback.cfg is given: never a policy that nobody chose."""
POLICIES = (
    "none",
    "topology-aware",
    "memtier",  # its alias
    "balloons",
    "static-pools",
    "podpools",
    "static",
    "static-plus",
    "dynamic-pools",
)
SECTIONS = ("policy", "logger", "dump", "instrumentation", "resource-manager", "cpu", "rdt", "blockio")
_OUR_FLAGS = (
    "relay-socket",
    "runtime-socket",
    "image-socket",
    "force-config",
    "fallback-config",
    "agent-socket",
    "host-root",
    # These have a fixed place or an effect that the installer relies on, and two only print and exit.
    "force-config-signal",
    "relay-dir",
    "config-socket",
    "pid-file",
    "print-config",
    "list-policies",
)
# A start without the CPUs kept for the system is refused. Of static, only a real start says so.
_RESERVING = ("topology-aware", "memtier", "static")
_NEEDS_AGENT = "static-pools"
_POOLS, _OLD_POOLS = ("pools", "ConfDirPath", "ConfFilePath"), "/etc/cmk"
_HINT = "correct the configs (the ConfigMap's keys, or the files of --configs); nothing was touched"


@dataclass(frozen=True, slots=True)
class Configs:
    """The files as they came, None where not given. `policy` is what cri-resmgr would activate, `reserved`
    the CPU that it keeps for the system (`750m`, `cpuset:0`), `available` what it may use at all; either may
    be empty.

    `extra_options` is the text of EXTRA_OPTIONS.cfg. `warnings` name what works but has
    side effects that an operator should know.
    """

    fallback: bytes | None = None
    force: bytes | None = None
    extra_options: str | None = None
    policy: str = "none"
    reserved: str = ""
    available: str = ""
    warnings: tuple[Finding, ...] = ()


def load_configs(directory: Path | None) -> Configs:
    """The configs in `directory`. None or an empty directory: no configs.

    Symlinks are followed: a ConfigMap volume is made of them. Raises InvalidInputError with every fault in
    every file, each with `file:line` or its key. A missing directory is a fault, and so is a name that
    cri-resmgr does not know: the policy that it was meant to set would silently be none.
    """
    if directory is None:
        return Configs()
    faults = list(_misnamed(directory))
    contents = {name: _read(directory / name, faults) for name in CONFIG_FILES}
    documents: dict[str, Document] = {}
    for name in (FALLBACK, FORCE):
        content = contents[name]
        if content is not None:
            documents[name] = _check_config(content, name, faults)
    extra = contents[EXTRA_OPTIONS]
    options = None if extra is None else _check_extra_options(extra, faults)
    if faults:
        raise InvalidInputError(faults, _HINT)
    effective = documents.get(FORCE) or documents.get(FALLBACK) or Document(None)
    return Configs(
        fallback=contents[FALLBACK],
        force=contents[FORCE],
        extra_options=options,
        policy=policy_in(effective.data),
        reserved=_cpus_in(effective.data, "ReservedResources"),
        available=_cpus_in(effective.data, "AvailableResources"),
        warnings=tuple(finding for name in documents for finding in _warnings(documents[name], name)),
    )


def find_faults(name: str, content: bytes) -> list[str]:
    """What our schema finds wrong in one text, each fault with `name:line` or its key. Pure.

    The name of EXTRA_OPTIONS.cfg makes it that file, any other a YAML configuration.
    """
    faults: list[str] = []
    if name == EXTRA_OPTIONS:
        _check_extra_options(content, faults)
    else:
        _check_config(content, name, faults)
    return faults


def validate_with_binary(configs: Configs, binary: Path, validator: Validator) -> list[str]:
    """What the payload's own binary finds wrong in the configs: faults as `file: complaint`.

    Knows the fields of its version, which our schema does not. Runs processes:
    asked only when something is to be written. Touches nothing of the host.
    """
    faults = []
    for name, content in ((FALLBACK, configs.fallback), (FORCE, configs.force)):
        complaint = "" if content is None else validator.validate(binary, content)
        if complaint:
            faults.append(f"{name}: cri-resmgr refuses it: {complaint}")
    return faults


def _misnamed(directory: Path) -> Iterable[str]:
    """Hidden names are left alone: a ConfigMap volume has `..data`, an editor its swap files."""
    try:
        names = sorted(entry.name for entry in directory.iterdir())
    except OSError as error:
        missing = isinstance(error, FileNotFoundError) and not directory.is_symlink()
        reason = f"does not exist; {nearest(directory)}" if missing else error.strerror
        if isinstance(error, NotADirectoryError):
            reason = f"is not a directory; it must name the one that has {', '.join(CONFIG_FILES)}"
        yield f"--configs {directory}: {reason}"
        return
    for name in names:
        if name not in CONFIG_FILES and not name.startswith("."):
            yield f"{directory / name}: unknown name; {suggest(name, CONFIG_FILES)}"


def _read(path: Path, faults: list[str]) -> bytes | None:
    try:
        return read_if_present(path)
    except InvalidInputError as error:
        faults += error.faults
        return None


def _check_config(content: bytes, name: str, faults: list[str]) -> Document:
    """One YAML configuration; faults are added to `faults`. An empty one is valid: policy none."""
    try:
        if b"\0" in content:
            line = content[: content.index(b"\0")].count(b"\n") + 1
            raise InvalidInputError([f"{name}:{line}: contains a NUL byte"])
        document = parse_document(content, name)
    except InvalidInputError as error:
        faults += error.faults
        return Document(None)
    faults += document.faults
    data = document.data
    if data is None:
        return document
    if not isinstance(data, dict):
        faults.append(f"{name}:1: must be a mapping of {', '.join(SECTIONS)}, not {kind(data)}")
        return document
    if data.get("kind") == "ConfigMap" or ("apiVersion" in data and "data" in data):
        faults.append(f"{name}:1: is a whole ConfigMap; give only the text that its data has under {name}")
        return document
    faults += _check_sections(data, document, name)
    faults += _check_policy(data, document, name)
    return document


def _check_sections(data: dict[object, object], document: Document, name: str) -> Iterable[str]:
    for key, value in data.items():
        line = document.lines.get((str(key),), 1)
        section = str(key).partition(".")[0]
        if section not in SECTIONS:
            yield f"{name}:{line}: {key}: unknown key; {suggest(section, SECTIONS)}"
        elif value is not None and not isinstance(value, dict) and "." not in str(key):
            yield f"{name}:{line}: {key}: must be a mapping, not {shown(value)}"


def _check_policy(data: dict[object, object], document: Document, name: str) -> Iterable[str]:
    policy = _unfold(data).get("policy")
    if not isinstance(policy, dict):
        return
    active = policy.get("Active")
    line = _line(document, ("policy", "Active"))
    if active is not None and not isinstance(active, str):
        yield f"{name}:{line}: policy.Active: must be a string, not {shown(active)}"
    elif active is not None and active not in POLICIES:
        yield f"{name}:{line}: policy.Active: unknown policy {shown(active)}; {suggest(active, POLICIES)}"
    for field in ("ReservedResources", "AvailableResources"):
        if not isinstance(policy.get(field), (dict, type(None))):
            where = _line(document, ("policy", field))
            yield f"{name}:{where}: policy.{field}: must be a mapping, not {shown(policy[field])}"
    if active in _RESERVING and _cpu_in(policy.get("ReservedResources")) is None:
        yield (
            f"{name}:{line}: policy.Active: {active} needs policy.ReservedResources.CPU, "
            "the CPUs kept for the system, such as 750m"
        )
    pools = _unfold(policy).get(_NEEDS_AGENT)
    if active == _NEEDS_AGENT and not (isinstance(pools, dict) and any(pools.get(key) for key in _POOLS)):
        yield (
            f"{name}:{line}: policy.Active: {active} has no pools and would end at its start; name them in "
            f"policy.{active}.pools, or in ConfDirPath where the nodes have them in {_OLD_POOLS}"
        )
    for key in policy:
        if key not in POLICIES and (close := _case_slip(str(key))):
            where = _line(document, ("policy", str(key)))
            yield f"{name}:{where}: policy.{key}: unknown key; did you mean {close}?"


def _cpu_in(reserved: object) -> str | None:
    """Of all keys, cri-resmgr takes those of ReservedResources in any case."""
    found = reserved.items() if isinstance(reserved, dict) else ()
    return next((str(value) for key, value in found if str(key).lower() == "cpu" and value is not None), None)


def find_agent_faults(configs: Configs) -> list[str]:
    """What a proxy without cri-resmgr-agent refuses when it really starts."""
    if configs.policy != _NEEDS_AGENT:
        return []
    name = FALLBACK if configs.force is None else FORCE
    return [
        f"{name}: policy.Active: {_NEEDS_AGENT} needs cri-resmgr-agent, but the settings have "
        "proxy.agent: disabled"
    ]


def find_cpu_faults(configs: Configs, has: str) -> list[str]:
    """What only a real start says of the CPUs that a policy is given on a node that `has` these: with some
    of them podpools and static end in a panic. What others say, the payload's binary tells by itself."""
    name = FALLBACK if configs.force is None else FORCE
    node, available, reserved = (
        _named(each) for each in (f"cpuset:{has}", configs.available, configs.reserved)
    )
    here = f"this node has the CPUs {has}"
    if not node or configs.policy not in ("podpools", "static"):
        return []
    if configs.policy == "podpools":
        away = format_list((available or node) - node)
        return [f"{name}: policy.AvailableResources.CPU: podpools panics on CPUs {away}: {here}"] * bool(away)
    usable = node & (available or node)
    nano, reserved = nano_of(configs.reserved) or 0, _named(configs.reserved) or frozenset()
    if reserved <= usable and -(-nano // 10**9) <= len(usable):
        return []
    return [
        f"{name}: policy.ReservedResources.CPU: static cannot reserve {configs.reserved} of the CPUs "
        f"{format_list(usable) or 'that are left, none'}: {here}"
    ]


def _named(cpus: str) -> frozenset[int] | None:
    """The CPUs of a `cpuset:0-3`; None for a quantity. What is not a list, the binary refuses."""
    prefix, colon, listed = cpus.partition(":")
    try:
        return parse_list(listed) if colon and prefix == "cpuset" else None
    except ValueError:
        return None


def _case_slip(key: str) -> str:
    """The field that `key` is a misspelling of by case alone, or an empty string."""
    fields = {name.lower(): name for name in ("Active", "AvailableResources", "ReservedResources")}
    match = fields.get(key.lower(), "")
    return "" if match == key else match


def _line(document: Document, path: tuple[str, ...]) -> int:
    """The line of a key, also where its section is written dotted (`policy.Active: ...`)."""
    for written in (path, (".".join(path),), path[:1]):
        if written in document.lines:
            return document.lines[written]
    return 1


def _unfold(data: object) -> dict[str, object]:
    """`policy.Active: x` as `policy: {Active: x}`, as cri-resmgr reads it."""
    unfolded: dict[str, object] = {}
    if not isinstance(data, dict):
        return unfolded
    for key, value in data.items():
        head, dot, rest = str(key).partition(".")
        new = {rest: value} if dot else value
        old = unfolded.get(head)
        unfolded[head] = {**old, **new} if isinstance(old, dict) and isinstance(new, dict) else new
    return unfolded


def policy_in(data: object) -> str:
    """The policy that a parsed configuration asks for, dotted keys or not."""
    policy = _unfold(data).get("policy")
    active = policy.get("Active") if isinstance(policy, dict) else None
    return active if isinstance(active, str) else "none"


def _cpus_in(data: object, field: str) -> str:
    """The CPUs that a parsed configuration has in this field of its policy; empty if there are none."""
    policy = _unfold(data).get("policy")
    return (_cpu_in(policy.get(field)) if isinstance(policy, dict) else None) or ""


def pins_in(data: object) -> bool:
    """Whether the policy of a parsed configuration may pin CPUs: its PinCPU is not false."""
    policy, active = _unfold(data).get("policy"), policy_in(data)
    section = policy.get(active) if isinstance(policy, dict) else None
    return not (isinstance(section, dict) and section.get("PinCPU") is False)


def _warnings(document: Document, name: str) -> Iterable[Finding]:
    data = _unfold(document.data)
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
            "the environment variables of containers (secrets among them) included",
            'use short: instead of full:, or turn it off: "off:.*"',
        )


def _dumps_whole_requests(config: str) -> bool:
    """Whether any rule asks for full detail. A rule without a level has that of the rule before it, and the
    first one is full (pkg/dump/flags.go of cri-resmgr)."""
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


def _check_extra_options(content: bytes, faults: list[str]) -> str | None:
    """The text of EXTRA_OPTIONS.cfg; faults are added to `faults`."""
    name = EXTRA_OPTIONS
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        faults.append(f"{name}:{line}: not UTF-8 text; systemd would ignore the whole file")
        return None
    if "\0" in text:
        faults.append(f"{name}: contains a NUL byte")
        return None
    try:
        options = parse_extra_options(text)
    except ValueError as error:
        faults.append(f"{name}:{error}")
        return None
    faults += [
        f"{name}: {word.partition('=')[0]}: the installer sets this flag itself; leave it out"
        for word in options
        if _is_ours(word)
    ]
    return text


def _is_ours(word: str) -> bool:
    """Go's flag package takes one dash or two, and `=value` or the value as the next word."""
    flag = re.match(r"--?([^=\s-][^=\s]*)", word)
    return flag is not None and (flag[1] in _OUR_FLAGS or flag[1].startswith("reset-"))


def parse_extra_options(text: str) -> tuple[str, ...]:
    """The words that an EXTRA_OPTIONS.cfg adds to cri-resmgr's command line.

    Raises ValueError with `line: reason` where it is not exactly one EXTRA_OPTIONS=
    line (comments and blank lines aside) or its value cannot be a list of flags.
    """
    number, line = _only_line(text)
    # An unclosed quote would swallow the line behind it.
    assignments = parse_environment_file(f"{line}\n_NEXT=1\n")
    if "_NEXT" not in assignments:
        raise ValueError(f"{number}: an unclosed quote")
    try:
        words = split_words(assignments["EXTRA_OPTIONS"])
    except ValueError as error:
        raise ValueError(f"{number}: in the value, {error}") from None
    if words and not words[0].startswith("-"):
        raise ValueError(f"{number}: {shown(words[0])} is not a flag; cri-resmgr takes flags only")
    if "--" in words or "-" in words:
        raise ValueError(f"{number}: a lone dash ends the flags; cri-resmgr takes flags only")
    return words


def _only_line(text: str) -> tuple[int, str]:
    """The number and text of the one line that is neither a comment nor blank."""
    found: tuple[int, str] | None = None
    for number, line in enumerate(re.split(r"\r\n|\n|\r", text), 1):
        stripped = line.strip(" \t")
        if stripped.startswith(("#", ";")):
            if stripped.endswith("\\"):
                # Up to systemd 253 the next line then is a comment as well, later it is not.
                raise ValueError(f"{number}: a comment that ends with a backslash may swallow the next line")
        elif stripped:
            if not re.match(r"EXTRA_OPTIONS[ \t]*=", stripped):
                raise ValueError(f"{number}: only one line EXTRA_OPTIONS=... is allowed in this file")
            if re.search(r"(?<!\\)(\\\\)*\\$", line):
                raise ValueError(f"{number}: a backslash at its end continues the line; write it as one line")
            if found:
                raise ValueError(f"{number}: a second EXTRA_OPTIONS= line; there must be exactly one")
            found = (number, stripped)
    if found is None:
        raise ValueError("1: no EXTRA_OPTIONS= line; there must be exactly one")
    return found
