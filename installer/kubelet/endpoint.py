"""What kubelet uses without our part: its base endpoint and its resource managers' policies.

By kubelet's own precedence: flag (the last one) > --config-dir (the lexically last
file that sets it) > --config > built-in default.
"""

from __future__ import annotations

import re

from installer.errors import InvalidInputError
from installer.inputs.wording import kind
from installer.inputs.yaml_document import parse_document
from installer.kubelet.command import base_argv
from installer.kubelet.strategy import Refusal
from installer.model.facts import KubeletFacts, UnitText
from installer.model.paths import RELAY_ENDPOINT, normalise_endpoint, same_endpoint
from installer.model.resource import last_flag

_BUILT_IN_ENDPOINT = "unix:///run/containerd/containerd.sock"  # kubelet 1.27 and later
_OUR_FLAG = f"--container-runtime-endpoint={RELAY_ENDPOINT}"
_OUR_MARK = "CRI_RESMGR_GUARD_FLAG"  # in the environment of a kubelet that was started through us
_SOCKET_PATH = re.compile(r"/[A-Za-z0-9._/@:+-]{1,106}")  # a unix socket path holds 107 bytes


def base_endpoint(kubelet: KubeletFacts) -> str | Refusal:
    """The endpoint of the running kubelet without our flag; where none runs, of its next start."""
    running = _running_argv(kubelet)
    next_start = base_argv(kubelet)
    endpoint = _endpoint(kubelet, running or next_start)
    if isinstance(endpoint, Refusal):
        return endpoint
    planned = last_flag(_normalised(next_start), "--container-runtime-endpoint")
    if same_endpoint(endpoint, RELAY_ENDPOINT) or same_endpoint(planned or "", RELAY_ENDPOINT):
        return Refusal(
            "kubelet-base-is-relay",
            f"{_place(kubelet)} names the relay as kubelet's endpoint: "
            "without the proxy, kubelet would have no runtime",
            "give it back the endpoint of the container runtime, and restart kubelet",
        )
    if not _SOCKET_PATH.fullmatch(normalise_endpoint(endpoint)):
        return Refusal(
            "kubelet-endpoint-not-unix",
            f"kubelet's endpoint is {endpoint!r}: the proxy speaks to unix sockets with a plain path only",
        )
    return endpoint


def kubelet_policies(kubelet: KubeletFacts) -> tuple[str, str]:
    """The policies of kubelet's CPU and memory manager (`none`, `static` ...; `None`, `Static`).

    Kubelet's defaults where its configuration cannot be read: it does not start then either.
    """
    argv = _running_argv(kubelet) or base_argv(kubelet)
    try:
        cpu = _setting(kubelet, argv, "--cpu-manager-policy", "cpuManagerPolicy")
        memory = _setting(kubelet, argv, "--memory-manager-policy", "memoryManagerPolicy")
    except ValueError:
        return "none", "None"
    return cpu or "none", memory or "None"


def _running_argv(kubelet: KubeletFacts) -> tuple[str, ...]:
    """The running command line without the flag that our guard has put behind it."""
    process = kubelet.process
    if process is None:
        return ()
    ours = _OUR_MARK in process.environ and process.argv[-1:] == (_OUR_FLAG,)
    return process.argv[:-1] if ours else process.argv


def _endpoint(kubelet: KubeletFacts, argv: tuple[str, ...]) -> str | Refusal:
    flag = last_flag(_normalised(argv), "--container-runtime-endpoint")
    if flag:
        return flag
    wanted = last_flag(_normalised(argv), "--config")
    if wanted and kubelet.config is None:
        return Refusal(
            "kubelet-config-unreadable",
            f"kubelet's configuration {wanted} could not be read, and its endpoint may stand there",
            "start kubelet, and see that the file is there",
        )
    try:
        return _setting(kubelet, argv, "", "containerRuntimeEndpoint") or _BUILT_IN_ENDPOINT
    except ValueError as error:
        return Refusal("kubelet-config-unreadable", str(error), "correct kubelet's configuration")


def _normalised(argv: tuple[str, ...]) -> tuple[str, ...]:
    """Flags as kubelet reads them: an underscore in a name is a hyphen."""
    words = []
    for word in argv:
        name, equals, value = word.partition("=")
        words.append(name.replace("_", "-") + equals + value if word.startswith("--") else word)
    return tuple(words)


def _setting(kubelet: KubeletFacts, argv: tuple[str, ...], flag: str, field: str) -> str:
    """Raises ValueError, naming the file, where a configuration that may set it cannot be read."""
    value = last_flag(_normalised(argv), flag) if flag else None
    if value is not None:
        return value
    files = (*reversed(kubelet.config_dir), *((kubelet.config,) if kubelet.config else ()))
    for file in files:
        found = _field(file, field)
        if found is not None:
            return found
    return ""


def _field(file: UnitText, field: str) -> str | None:
    # A configuration that does not name the field need not be parsed, nor yaml imported.
    if field not in file.text:
        return None
    try:
        content = parse_document(file.text.encode("utf-8", "replace"), file.path).data
    except InvalidInputError as error:
        raise ValueError(error.message) from error
    value = content.get(field) if isinstance(content, dict) else None
    if isinstance(value, (dict, list)):
        raise ValueError(f"{file.path}: {field} is {kind(value)}")
    return None if value is None else str(value)


def _place(kubelet: KubeletFacts) -> str:
    """The file that names the relay, for a message."""
    relay = normalise_endpoint(RELAY_ENDPOINT)
    texts = [
        *((file.path, file.text) for found in (kubelet.environment_files or {}).values() for file in found),
        *((text.path, text.text) for text in (*kubelet.texts, *kubelet.config_dir)),
        *(((kubelet.config.path, kubelet.config.text),) if kubelet.config else ()),
    ]
    return next((path for path, text in texts if relay in text), "somebody else's configuration")
