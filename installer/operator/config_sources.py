"""Reads cri-resmgr's configuration for `translate`: from a directory, from what Gardener users have, from a
cluster. Each source gives texts by their keys in the values: fallback, force, EXTRA_OPTIONS, default, group.G
... An empty source is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from installer.errors import InvalidInputError
from installer.inputs.configs import list_configs
from installer.inputs.reading import read_input, suggest
from installer.inputs.yaml_document import parse_document
from installer.manifests.provider import load_provider_configs
from installer.manifests.text import dump
from installer.manifests.values import STATIC_CONFIGS, is_config_key
from installer.operator.api import CONFIG_MAPS, KubeApi
from installer.operator.kube_objects import mapping_at, text_at

_AGENTS = "cri-resmgr-config."


def read_directory(directory: Path) -> dict[str, str]:
    """Read the installer's files, and beside them the agent's: default, group.G, node.N, each with or without
    `.cfg`. Raises InvalidInputError."""
    faults, texts = [], dict[str, str]()
    for path in list_configs(directory):
        key = path.name.removesuffix(".cfg")
        if not is_config_key(key):
            known = (*STATIC_CONFIGS.values(), "default.cfg", "group.NAME.cfg", "node.NAME.cfg")
            faults.append(f"{path}: unknown name; {suggest(path.name, known)}")
        elif key in texts:
            faults.append(f"{path}: {key} exists twice, with and without .cfg")
        else:
            texts[key] = read_input(path).decode("utf-8", "surrogateescape")
    return _checked(texts, faults, f"--configs {directory}: is empty: there is nothing to translate")


def read_provider(path: Path) -> dict[str, str]:
    """Read the `configs` of a Shoot, an Extension, a ControllerDeployment or a providerConfig. Raises
    InvalidInputError."""
    texts: dict[str, str] = {}
    for source in load_provider_configs([path], None, removal=True).sources:
        texts |= mapping_at(source.data, "configs")
    faults = [
        f"{path}: configs.{key}: must be a text with a known name"
        for key, text in texts.items()
        if not (is_config_key(str(key)) and isinstance(text, str))
    ]
    return _checked(texts, faults, f"{path}: has no configs: there is nothing to translate")


def read_cluster(api: KubeApi) -> dict[str, str]:
    """Read the agent's ConfigMaps, and those with the installer's files. Raises InvalidInputError and
    ApiError."""
    texts: dict[str, str] = {}
    places: dict[str, str] = {}
    faults = []
    for each in api.list_objects(CONFIG_MAPS):
        namespace, name = (text_at(each, "metadata", key) for key in ("namespace", "name"))
        place = f"{namespace}/{name}"
        for key, text in _texts_of(name, mapping_at(each, "data")).items():
            if texts.setdefault(key, text) != text:
                faults.append(f"{key}: {places[key]} and {place} differ: translate each with --configs")
            places.setdefault(key, place)
    return _checked(texts, faults, "no ConfigMap of this cluster has cri-resmgr's configuration")


def _texts_of(name: str, data: Mapping[str, Any]) -> dict[str, str]:
    key = name.removeprefix(_AGENTS)
    if name.startswith(_AGENTS) and is_config_key(key) and key not in STATIC_CONFIGS:
        # The agent's ConfigMap has one key for each section.
        sections = {each: parse_document(str(text).encode(), name).data for each, text in data.items()}
        return {key: dump(sections)}
    return {key: str(data[file]) for key, file in STATIC_CONFIGS.items() if file in data}


def _checked(texts: dict[str, str], faults: list[str], empty: str) -> dict[str, str]:
    if faults or not texts:
        raise InvalidInputError(faults or [empty])
    return texts
