"""What kubelet uses without our part: its base endpoint and its resource managers' policies.

By kubelet's own precedence: flag (the last one) > --config-dir (the lexically last
file that sets it) > --config > built-in default.
"""

from __future__ import annotations

import re

from installer.errors import InvalidInputError
from installer.inputs.wording import kind
from installer.inputs.yaml_document import parse_document
from installer.model.finding import Finding, refusal
from installer.model.paths import RELAY_ENDPOINT, normalise_endpoint, same_endpoint
from installer.model.resource import ProcessState, last_flag
from installer.model.snapshot import KubeletBase, UnitText

_BUILT_IN_ENDPOINT = "unix:///run/containerd/containerd.sock"  # kubelet 1.27 and later
_OUR_FLAG = f"--container-runtime-endpoint={RELAY_ENDPOINT}"
_OUR_MARK = "CRI_RESMGR_GUARD_FLAG"  # in the environment of a kubelet that was started through us
_SOCKET_PATH = re.compile(r"/[A-Za-z0-9._/@:+-]{1,106}")  # a unix socket path holds 107 bytes


def base_endpoint(
    base: KubeletBase, process: ProcessState | None, next_start: tuple[str, ...]
) -> str | Finding:
    """The endpoint of the running kubelet without our flag; if none runs, of its next start."""
    endpoint = _endpoint(base, base_argv(process) or next_start)
    if base.repaired and isinstance(endpoint, str) and same_endpoint(endpoint, RELAY_ENDPOINT):
        endpoint = _endpoint(base, next_start)  # it was started before its files were repaired
    if isinstance(endpoint, Finding):
        return endpoint
    planned = last_flag(next_start, "--container-runtime-endpoint")
    if same_endpoint(endpoint, RELAY_ENDPOINT) or same_endpoint(planned or "", RELAY_ENDPOINT):
        return refusal(
            "kubelet-base-is-relay",
            f"{_relay_source(base)} names the relay as kubelet's endpoint: "
            "without the proxy, kubelet would have no runtime",
            "`install --adopt` (settings: adopt: true) takes over what another installer has done; or put "
            "the endpoint of the container runtime back there, and restart kubelet",
        )
    if not _SOCKET_PATH.fullmatch(normalise_endpoint(endpoint)):
        return refusal(
            "kubelet-endpoint-not-unix",
            f"kubelet's endpoint is {endpoint!r}: the proxy can only use a unix socket with a plain path",
        )
    return endpoint


def next_endpoint(process: ProcessState | None, next_start: tuple[str, ...]) -> str:
    """The socket that a running kubelet will use after its next start, if its command line names another one
    then; else, and where it cannot be told, an empty string. A configuration that names another one needs no
    restart: it is read anew for each snapshot."""
    flag = "--container-runtime-endpoint"
    planned, running = last_flag(next_start, flag) or "", last_flag(base_argv(process), flag) or ""
    if process is None or same_endpoint(planned, running):
        return ""
    return planned if _SOCKET_PATH.fullmatch(normalise_endpoint(planned)) else ""


def manager_policies(
    base: KubeletBase, process: ProcessState | None, next_start: tuple[str, ...]
) -> tuple[str, str]:
    """The policies of kubelet's CPU and memory manager (`none`, `static` ...; `None`, `Static`).

    Kubelet's defaults if its configuration cannot be read: it does not start then either.
    """
    argv = base_argv(process) or next_start
    try:
        cpu = _setting(base, argv, "--cpu-manager-policy", "cpuManagerPolicy")
        memory = _setting(base, argv, "--memory-manager-policy", "memoryManagerPolicy")
    except ValueError:
        return "none", "None"
    return cpu or "none", memory or "None"


def cgroups_per_qos(base: KubeletBase, process: ProcessState | None, next_start: tuple[str, ...]) -> bool:
    """Whether kubelet puts each pod into a cgroup of its QoS class: its default, also where its configuration
    cannot be read."""
    try:
        found = _setting(base, base_argv(process) or next_start, "--cgroups-per-qos", "cgroupsPerQOS")
    except ValueError:
        return True
    return found.lower() not in ("false", "f", "0")  # as Go reads a flag's boolean


def base_argv(process: ProcessState | None) -> tuple[str, ...]:
    """The running command line without the flag that our guard has added: the last one, which a script may
    have put before flags of its own."""
    if process is None:
        return ()
    argv = list(process.argv)
    if _OUR_MARK in process.environ and _OUR_FLAG in argv:
        del argv[len(argv) - 1 - argv[::-1].index(_OUR_FLAG)]
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
                f"kubelet's configuration {wanted} could not be read, and its endpoint may stand there",
                "start kubelet, and see that the file is there",
            )
    try:
        return _setting(base, argv, "", "containerRuntimeEndpoint") or _BUILT_IN_ENDPOINT
    except ValueError as error:
        return refusal("kubelet-config-unreadable", str(error), "correct kubelet's configuration")


def _setting(base: KubeletBase, argv: tuple[str, ...], flag: str, field: str) -> str:
    """Raises ValueError, naming the file, where a configuration that may set it cannot be read."""
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
    """Empty if the file has it with no value (null): kubelet takes its default then, whatever an earlier file
    says, for it merges the files as JSON (RFC 7396)."""
    # A configuration that does not name the field need not be parsed, nor yaml imported.
    if field not in file.text:
        return None
    try:
        content = parse_document(file.text.encode("utf-8", "replace"), file.path).data
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
