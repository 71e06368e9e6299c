"""Reads cri-resmgr's configuration for `translate`: from a directory, from what Gardener users have, from a
cluster. Each source gives texts by their keys in the values: fallback, force, EXTRA_OPTIONS, default, group.G
... An empty source is an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from installer.errors import InvalidInputError
from installer.inputs.configs import list_configs
from installer.inputs.reading import read_input, suggest
from installer.inputs.yaml_document import parse_document
from installer.manifests.provider import load_provider_configs
from installer.manifests.text import dump
from installer.manifests.values import STATIC_CONFIGS, is_config_key
from installer.operator.api import CONFIG_MAPS, DAEMON_SETS, KubeApi
from installer.operator.homes import AGENT, SYSTEM, find_homes
from installer.operator.inventory import find_installations
from installer.operator.kube_objects import items_at, mapping_at, text_at

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


def read_cluster(api: KubeApi) -> tuple[dict[str, str], dict[str, str]]:
    """Read the ConfigMaps that our DaemonSets name now, and those in the namespace where the agent looks for
    its own: without an installation of ours, in its default. Anyone can create others. Return the texts, and
    by the same keys where each is from. Raises InvalidInputError and ApiError."""
    texts, places, faults = dict[str, str](), dict[str, str](), list[str]()
    for place, key, text in (*_of_daemon_sets(api), *_of_agents(api)):
        if texts.setdefault(key, text) != text:
            faults.append(f"{key}: {places[key]} and {place} differ: translate each with --configs")
        places.setdefault(key, place)
    empty = "no ConfigMap that this cluster uses has cri-resmgr's configuration"
    return _checked(texts, faults, empty), places


def _of_daemon_sets(api: KubeApi) -> Iterator[tuple[str, str, str]]:
    for installed in find_installations(api):
        for volume in items_at(installed.template, "spec", "volumes"):
            if name := volume.get("name") == "configs" and text_at(volume, "configMap", "name"):
                data = mapping_at(api.find(CONFIG_MAPS, installed.namespace, name), "data")
                for key, file in STATIC_CONFIGS.items():
                    if file in data:
                        yield f"{installed.namespace}/{name}", key, str(data[file])


def _of_agents(api: KubeApi) -> Iterator[tuple[str, str, str]]:
    """The agent's ConfigMaps have one key for each section. An installation without an agent reads none."""
    homes = find_homes(api).values()
    old = [SYSTEM] if not homes or api.find(DAEMON_SETS, SYSTEM, AGENT) else []
    for namespace in sorted({home.configs for home in homes} - {""}) or old:
        for config_map in api.list_objects(CONFIG_MAPS, namespace=namespace):
            name = text_at(config_map, "metadata", "name")
            key = name.removeprefix(_AGENTS)
            if name.startswith(_AGENTS) and is_config_key(key) and key not in STATIC_CONFIGS:
                data = mapping_at(config_map, "data")
                sections = {
                    section: parse_document(str(text).encode(), name).data for section, text in data.items()
                }
                yield f"{namespace}/{name}", key, dump(sections)


def _checked(texts: dict[str, str], faults: list[str], empty: str) -> dict[str, str]:
    if faults or not texts:
        raise InvalidInputError(faults or [empty])
    return texts
