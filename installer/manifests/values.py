"""The operator's values: what the manifests are made from. YAML in, one frozen value out.

Checks forms only; what several values mean together is seen to when the objects are built. No
value of a node stands here: those are the settings, which travel inside (`settings`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from installer.manifests import validators
from installer.manifests.text import is_plain

AGENT_IMAGE = "intel/cri-resmgr-agent:v0.9.0"
STATIC_CONFIGS = {"fallback": "fallback.cfg", "force": "force.cfg", "EXTRA_OPTIONS": "EXTRA_OPTIONS.cfg"}
"""Key of `configs` -> the file that it becomes on the node."""
DYNAMIC_PREFIXES = ("node.", "group.")

_NAME_LIMIT = 52  # so that what is put behind it leaves it a label's value


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


class _Section(BaseModel):
    """Strict, and every key known: a misspelt one would be a node that is not as it should be."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, alias_generator=_camel, defer_build=True
    )


class Images(_Section):
    """Full references. Without an installer there is nothing to run."""

    installer: str = ""
    agent: str = AGENT_IMAGE

    @field_validator("*")
    @classmethod
    def _check(cls, reference: str) -> str:
        if not validators.is_image(reference):
            raise ValueError("must be a reference to an image, as registry.example.org/name:tag")
        return reference


class Resources(_Section):
    """What the installer's container asks for. No limit on memory: what is killed half-way through
    a change has to be done again."""

    requests: Mapping[str, Any] = Field(default={"cpu": "10m", "memory": "64Mi"})
    limits: Mapping[str, Any] = Field(default={})

    @field_validator("*")
    @classmethod
    def _check(cls, quantities: Mapping[str, Any]) -> Mapping[str, Any]:
        validators.refuse(
            f"{name!r} is no name of a resource" for name in quantities if not validators.is_key(name)
        )
        validators.refuse(
            f"{name}: must be a quantity as 100m or 64Mi, not {quantity!r}"
            for name, quantity in quantities.items()
            if isinstance(quantity, bool) or not validators.is_quantity(str(quantity))
        )
        return {name: str(quantity) for name, quantity in quantities.items()}


class UpdateStrategy(_Section):
    """How many nodes may be at work on a change at once."""

    max_unavailable: Any = 1

    @field_validator("max_unavailable")
    @classmethod
    def _check(cls, count: object) -> object:
        number = isinstance(count, int) and not isinstance(count, bool) and count > 0
        if not number and not (isinstance(count, str) and validators.is_percent(count)):
            raise ValueError("must be a number above 0, or a share as 10%")
        return count


class Agent(_Section):
    """cri-resmgr-agent, which brings the dynamic configs to the nodes."""

    enabled: bool = False


class ManagedResource(_Section):
    """Where Gardener's ManagedResource goes; empty: where `kubectl -n` says, and no class."""

    namespace: str = ""
    class_: str = Field(default="", alias="class")

    @field_validator("*")
    @classmethod
    def _check(cls, name: str) -> str:
        if name and not validators.is_short_name(name):
            raise ValueError("must be a name in lower case, digits and dashes")
        return name


class Values(_Section):
    """Everything that shapes the manifests; see the README for what each does."""

    api_version: Literal["cri-resmgr-installer/v1"] = "cri-resmgr-installer/v1"
    name: str = "cri-resmgr-installer"
    namespace: str = "kube-system"
    images: Images = Field(default_factory=Images)
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    image_pull_secrets: tuple[str, ...] = Field(default=(), strict=False)
    profile: Literal["privileged", "restricted"] = "privileged"
    settings: Mapping[str, Any] = Field(default={})
    configs: Mapping[str, str] = Field(default={})
    node_selector: Mapping[str, str] = Field(default={})
    affinity: Mapping[str, Any] = Field(default={})
    nodes: tuple[str, ...] = Field(default=(), strict=False)
    arch: Literal["amd64", "arm64"] = "amd64"
    control_plane: bool = False
    gardener: bool = False
    cri_name: str = "containerd"
    resources: Resources = Field(default_factory=Resources)
    update_strategy: UpdateStrategy = Field(default_factory=UpdateStrategy)
    agent: Agent = Field(default_factory=Agent)
    managed_resource: ManagedResource = Field(default_factory=ManagedResource)
    annotate_node: bool = False
    labels: Mapping[str, str] = Field(default={})
    annotations: Mapping[str, str] = Field(default={})

    @field_validator("name", "namespace")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not validators.is_short_name(name, _NAME_LIMIT):
            raise ValueError(f"must be at most {_NAME_LIMIT} lower-case letters, digits and dashes")
        return name

    @field_validator("image_pull_secrets", "nodes")
    @classmethod
    def _check_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        validators.refuse(
            f"{name!r} is no name of an object" for name in names if not validators.is_name(name)
        )
        return tuple(sorted(set(names)))

    @field_validator("node_selector", "labels")
    @classmethod
    def _check_labels(cls, labels: Mapping[str, str]) -> Mapping[str, str]:
        validators.refuse(validators.label_faults(labels))
        return labels

    @field_validator("annotations")
    @classmethod
    def _check_annotations(cls, annotations: Mapping[str, str]) -> Mapping[str, str]:
        validators.refuse(validators.annotation_faults(annotations))
        return annotations

    @field_validator("cri_name")
    @classmethod
    def _check_cri_name(cls, name: str) -> str:
        if not name or not validators.is_label_value(name):
            raise ValueError("must be the value of a label, as containerd")
        return name

    @field_validator("settings", "affinity")
    @classmethod
    def _check_plain(cls, mapping: Mapping[str, Any]) -> Mapping[str, Any]:
        if not is_plain(mapping):
            raise ValueError("has values that Kubernetes cannot carry (dates, or keys that are no strings)")
        return mapping

    @field_validator("configs")
    @classmethod
    def _check_configs(cls, configs: Mapping[str, str]) -> Mapping[str, str]:
        known = ", ".join((*STATIC_CONFIGS, "default", "node.<NODE>", "group.<GROUP>"))
        validators.refuse(
            f"{key}: has characters that Kubernetes cannot carry"
            if is_config_key(key)
            else f"{key!r} is unknown; known are {known}"
            for key, text in configs.items()
            if not is_config_key(key) or not is_plain(text)
        )
        return configs


def is_config_key(key: str) -> bool:
    """Whether it is one of those that `configs` may have; a node's or group's name has to be one."""
    if key in STATIC_CONFIGS or key == "default":
        return True
    prefix = next((prefix for prefix in DYNAMIC_PREFIXES if key.startswith(prefix)), "")
    return bool(prefix) and validators.is_name(f"cri-resmgr-config.{key}")
