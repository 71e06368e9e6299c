"""Where `translate` finds cri-resmgr's configuration: a directory, what Gardener users have, a cluster. Each
gives texts by their keys in the manifests' values: fallback, force, EXTRA_OPTIONS, default, group.G ..."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from installer.errors import InvalidInputError
from installer.inputs.reading import nearest, read_input, suggest
from installer.inputs.yaml_document import parse_document
from installer.manifests.provider import load_provider_configs
from installer.manifests.text import dump
from installer.manifests.values import STATIC_CONFIGS, is_config_key
from installer.operator.api import CONFIG_MAPS, PAGE, KubeApi
from installer.operator.kube_objects import mapping_at, text_at

_AGENTS = "cri-resmgr-config."
_KEYS = {name: key for key, name in STATIC_CONFIGS.items()}


def read_directory(directory: Path) -> dict[str, str]:
    """Its files, and beside them those of the agent: default, group.G, node.N, each with or without `.cfg`.
    Raises InvalidInputError."""
    try:
        found = sorted(each for each in directory.iterdir() if not each.name.startswith("."))
    except OSError as error:
        why = (
            f"does not exist; {nearest(directory)}"
            if isinstance(error, FileNotFoundError)
            else error.strerror
        )
        raise InvalidInputError([f"--configs {directory}: {why}"]) from None
    faults, texts = [], {}
    for path in found:
        key = _KEYS.get(path.name, path.name.removesuffix(".cfg"))
        if not is_config_key(key) or (key in STATIC_CONFIGS and path.name not in _KEYS):
            known = (*_KEYS, "default.cfg", "group.NAME.cfg", "node.NAME.cfg")
            faults.append(f"{path}: unknown name; {suggest(path.name, known)}")
        elif key in texts:
            faults.append(f"{path}: {key} is there twice, with and without .cfg")
        else:
            texts[key] = read_input(path).decode("utf-8", "surrogateescape")
    if not (faults or texts):
        faults.append(f"--configs {directory}: is empty: there is nothing to translate")
    if faults:
        raise InvalidInputError(faults)
    return texts


def read_provider(path: Path) -> dict[str, str]:
    """The `configs` of a Shoot, an Extension, a ControllerDeployment or a providerConfig. Raises
    InvalidInputError."""
    texts: dict[str, str] = {}
    for source in load_provider_configs([path], None, removal=True).sources:
        given = source.data.get("configs")
        texts |= given if isinstance(given, dict) else {}
    faults = [
        f"{path}: configs.{key}: must be a text with a known name"
        for key, text in texts.items()
        if not (is_config_key(str(key)) and isinstance(text, str))
    ]
    if faults or not texts:
        raise InvalidInputError(faults or [f"{path}: has no configs: there is nothing to translate"])
    return texts


def read_cluster(api: KubeApi) -> dict[str, str]:
    """The agent's ConfigMaps, and that with the installer's files. Raises InvalidInputError and ApiError."""
    texts: dict[str, str] = {}
    places: dict[str, str] = {}
    faults = []
    for page in api.list_pages(CONFIG_MAPS, limit=PAGE):
        for each in page.items:
            place = "/".join(text_at(each, "metadata", key) for key in ("namespace", "name"))
            for key, text in _texts_of(text_at(each, "metadata", "name"), mapping_at(each, "data")).items():
                if texts.setdefault(key, text) != text:
                    faults.append(f"{key}: {places[key]} and {place} differ: translate each with --configs")
                places.setdefault(key, place)
    if faults or not texts:
        raise InvalidInputError(faults or ["no ConfigMap of this cluster has cri-resmgr's configuration"])
    return texts


def _texts_of(name: str, data: Mapping[str, Any]) -> dict[str, str]:
    key = name.removeprefix(_AGENTS)
    if name.startswith(_AGENTS) and is_config_key(key) and key not in STATIC_CONFIGS:
        # One key for each section.
        return {
            key: dump({each: parse_document(str(text).encode(), name).data for each, text in data.items()})
        }
    return {_KEYS[each]: str(text) for each, text in data.items() if each in _KEYS}
