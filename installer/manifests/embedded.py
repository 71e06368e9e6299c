"""Checks what the values carry for others: settings as a node reads them, configs as cri-resmgr wants
them, affinity as far as we have to add to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from installer.errors import InvalidInputError
from installer.inputs.configs import find_faults
from installer.inputs.settings import Settings, parse_settings
from installer.inputs.yaml_document import KeyPath, parse_document
from installer.manifests.text import dump_block
from installer.manifests.values import STATIC_CONFIGS, is_config_key

_SIZE_LIMIT = 1_000_000  # bytes of one ConfigMap, which may hold 1 MiB with its metadata
_TERMS = "nodeSelectorTerms"
_NODE_AFFINITY = ("affinity", "nodeAffinity")
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def check_settings(given: object) -> tuple[Settings | None, list[tuple[KeyPath, str]]]:
    """The settings as a node will read them from the text that it gets, or all that it would refuse."""
    try:
        return parse_settings(dump_block(given).encode(), "settings"), []
    except InvalidInputError as error:
        return None, [_placed(fault) for fault in error.faults]


def _placed(fault: str) -> tuple[KeyPath, str]:
    """`proxy.agent: what (settings:3)` with its path below the values; that line is of no file."""
    path, _, what = re.sub(r" \(settings:\d+\)$", "", fault).partition(": ")
    return ("settings", *(path.split(".") if path != "settings" else ())), what


def config_faults(configs: object) -> Iterable[tuple[KeyPath, str]]:
    """What cri-resmgr would refuse in any of the texts. What is no text is left to others."""
    if not isinstance(configs, Mapping):
        return
    size = 0
    for key, text in configs.items():
        if not isinstance(text, str) or not is_config_key(str(key)):
            continue
        content = text.encode("utf-8", "replace")
        size += len(content) if key in STATIC_CONFIGS else 0
        for fault in _faults_of(str(key), content):
            yield ("configs", str(key)), fault
        if key not in STATIC_CONFIGS:
            yield from ((("configs", str(key)), fault) for fault in _section_faults(content))
        if len(content) > _SIZE_LIMIT:
            yield ("configs", str(key)), f"is larger than {_SIZE_LIMIT} bytes"
    if size > _SIZE_LIMIT:
        yield ("configs",), f"the static ones together are larger than {_SIZE_LIMIT} bytes"


def _section_faults(content: bytes) -> Iterable[str]:
    """What is no key of a ConfigMap; that the text is good is seen to elsewhere."""
    try:
        names = sections(content)
    except InvalidInputError:
        return
    for name in names:
        if not re.fullmatch(r"[-._A-Za-z0-9]{1,253}", name):
            yield f"{name}: cannot be the key of a ConfigMap"


def _faults_of(key: str, content: bytes) -> Iterable[str]:
    """With the line in the text; the one of the values file is put behind it by others."""
    for fault in find_faults(STATIC_CONFIGS["EXTRA_OPTIONS"] if key == "EXTRA_OPTIONS" else key, content):
        match = re.match(rf"{re.escape(key)}(?:\.cfg)?:(?:(\d+):)? *", fault)
        yield (f"line {match[1]}: " if match and match[1] else "") + fault[match.end() if match else 0 :]


def sections(content: bytes) -> dict[str, Any]:
    """A dynamic config by its top-level keys, as cri-resmgr-agent wants them.

    Raises InvalidInputError for what is no YAML.
    """
    data = parse_document(content, "config").data
    return {str(key): value for key, value in data.items()} if isinstance(data, dict) else {}


def affinity_faults(affinity: Mapping[str, Any]) -> Iterable[tuple[KeyPath, str]]:
    """What keeps us from adding our own conditions to each term. The rest is the API server's."""
    known = ("nodeAffinity", "podAffinity", "podAntiAffinity")
    for key in affinity:
        if key not in known:
            yield ("affinity", key), f"unknown key; known are {', '.join(known)}"
    node = affinity.get("nodeAffinity", {})
    if not isinstance(node, dict):
        yield _NODE_AFFINITY, "must be a mapping"
        return
    required = node.get(_REQUIRED)
    if required is None:
        return
    where = (*_NODE_AFFINITY, _REQUIRED)
    terms = required.get(_TERMS) if isinstance(required, dict) else None
    if not isinstance(terms, list) or not all(isinstance(term, dict) for term in terms):
        yield (*where, _TERMS), "must be a list of mappings"
        return
    for index, term in enumerate(terms):
        for key, value in term.items():
            if key not in ("matchExpressions", "matchFields") or not isinstance(value, list):
                yield (*where, _TERMS, str(index), key), "must be matchExpressions or matchFields, a list"
    if not any(any(term.values()) for term in terms):
        yield (*where, _TERMS), "matches no node: a term without conditions never does"
