"""Checks what the values carry for others: the settings as a node reads them, the configs as cri-resmgr
wants them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from installer.errors import InvalidInputError
from installer.inputs.configs import find_faults
from installer.inputs.settings import Settings, parse_settings
from installer.inputs.yaml_document import parse_document
from installer.manifests.sources import Fault
from installer.manifests.text import dump
from installer.manifests.values import STATIC_CONFIGS, is_config_key

_SIZE = 1 << 20  # characters of all configs; what an API server takes of one object


def check_settings(given: object) -> tuple[Settings | None, list[Fault]]:
    """The settings as a node will read them from the text that it gets, or all that it would refuse."""
    try:
        return parse_settings(dump(given).encode(), "settings"), []
    except InvalidInputError as error:
        return None, [_locate(fault) for fault in error.faults]


def _locate(fault: str) -> Fault:
    """From `proxy.agent: what (settings:3)`: the path in the values. The line is of no file, and dropped."""
    path, _, what = re.sub(r" \(settings:\d+\)$", "", fault).partition(": ")
    return ("settings", *(path.split(".") if path != "settings" else ())), what


def config_faults(configs: object) -> Iterable[Fault]:
    """What cri-resmgr would refuse in any of the texts. Values of a wrong type are reported elsewhere."""
    if isinstance(configs, Mapping) and sum(map(_size_of, configs.values())) > _SIZE:
        yield ("configs",), f"have more than {_SIZE >> 20} MiB together, their YAML aliases (`*`) included"
        return
    for key, text in configs.items() if isinstance(configs, Mapping) else ():
        if isinstance(text, str) and isinstance(key, str) and is_config_key(key):
            name = STATIC_CONFIGS["EXTRA_OPTIONS"] if key == "EXTRA_OPTIONS" else key
            for fault in find_faults(name, text.encode("utf-8", "replace")):
                # `name:3: what`: the line in the text; the one in the values file is added to it.
                what = fault.removeprefix(f"{name}:").lstrip()
                yield ("configs", key), f"line {what}" if re.match(r"\d+: ", what) else what


def _size_of(text: object) -> int:
    """Characters, with each alias as what it stands for; only what has one can be more than it is."""
    if not isinstance(text, str):
        return 0
    try:
        return max(len(text), parse_document(text.encode("utf-8", "replace"), "").size if "*" in text else 0)
    except InvalidInputError:
        return len(text)  # the fault is reported elsewhere, with its place


def split_sections(config: str) -> dict[str, Any]:
    """A dynamic config by its top-level keys, as cri-resmgr-agent wants them."""
    data = parse_document(config.encode(), "config").data
    return dict(data) if isinstance(data, dict) else {}
