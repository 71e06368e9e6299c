"""The operator's values: what the manifests are made from. YAML in, one frozen value out.

Checks the form of each value; inputs.py checks what several of them mean together. A node's own settings
are not here: they travel inside (`settings`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema

from installer.manifests.validators import (
    DNS_NAME,
    BaseName,
    CountOrPercentage,
    DnsLabel,
    ImageReference,
    JsonMapping,
    LabelKey,
    LabelValue,
    NonEmptyLabelValue,
    ObjectNames,
    OptionalDnsLabel,
    Quantity,
)
from installer.model.jsontext import camel

AGENT_IMAGE = "intel/cri-resmgr-agent:v0.9.0"
STATIC_CONFIGS = {"fallback": "fallback.cfg", "force": "force.cfg", "EXTRA_OPTIONS": "EXTRA_OPTIONS.cfg"}
"""Key of `configs` -> the file that it becomes on the node."""

_DYNAMIC = re.compile(rf"default|(node|group)\.{DNS_NAME}")
_KEY_LIMIT = 235  # characters: a dynamic config becomes the ConfigMap cri-resmgr-config.<key>


def is_config_key(key: str) -> bool:
    """Whether `configs` may have this key."""
    return key in STATIC_CONFIGS or (len(key) <= _KEY_LIMIT and bool(_DYNAMIC.fullmatch(key)))


_CONFIG_KEY = f"^({'|'.join((*STATIC_CONFIGS, _DYNAMIC.pattern))})$"


def _check_config_key(key: str) -> str:
    if not is_config_key(key):
        known = ", ".join((*STATIC_CONFIGS, "default", "node.<NODE>", "group.<GROUP>"))
        raise ValueError(f"must be one of {known}")
    return key


ConfigKey = Annotated[
    str,
    AfterValidator(_check_config_key),
    WithJsonSchema({"type": "string", "pattern": _CONFIG_KEY, "maxLength": _KEY_LIMIT}),
]


class _Section(BaseModel):
    """Strict, and every key is known: a misspelt one would leave its default on the nodes."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, alias_generator=camel, defer_build=True
    )


class Images(_Section):
    """Full references. Only the agent's has a default."""

    installer: ImageReference = ""
    agent: ImageReference = AGENT_IMAGE


class Resources(_Section):
    """Of the installer's container. No memory limit by default: a change that is killed half-way has to be
    done again."""

    requests: Mapping[LabelKey, Quantity] = Field(default={"cpu": "10m", "memory": "64Mi"})
    limits: Mapping[LabelKey, Quantity] = Field(default={})


class UpdateStrategy(_Section):
    """How many nodes may be changed at the same time."""

    max_unavailable: CountOrPercentage = "10%"


class Agent(_Section):
    """cri-resmgr-agent, which brings the dynamic configs to the nodes, and people's Adjustments. `namespace`:
    where it looks for both; empty: one of its own."""

    enabled: bool = False
    namespace: OptionalDnsLabel = ""


class ManagedResource(_Section):
    """Gardener's ManagedResource, and where it goes; without a namespace into that of `kubectl -n`. `class_`:
    on whose nodes the pods run, those of the shoot in whose namespace it is, or those of the seed.
    `keep_objects`: deleting it leaves everything that it brought."""

    namespace: OptionalDnsLabel = ""
    class_: Literal["shoot", "seed"] = Field(default="shoot", alias="class")
    keep_objects: bool = False
    inject_labels: Mapping[LabelKey, LabelValue] = Field(default={})


class Registration(_Section):
    """Of the extension with Gardener: the clusters that it can serve, which are Shoots alone, and those that
    have it unless they say otherwise."""

    auto_enable: tuple[Literal["shoot"], ...] = Field(default=(), strict=False)
    cluster_compatibility: tuple[Literal["shoot"]] = Field(default=("shoot",), strict=False)


class Values(_Section):
    """Everything that shapes the manifests; docs/operations.md says what each does."""

    api_version: Literal["cri-resmgr-installer/v1"] = "cri-resmgr-installer/v1"
    name: BaseName = "cri-resmgr-installer"
    namespace: DnsLabel = "kube-system"
    images: Images = Field(default_factory=Images)
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    image_pull_secrets: ObjectNames = ()
    profile: Literal["privileged", "restricted"] = "privileged"
    settings: Mapping[str, Any] = Field(default={})
    configs: Mapping[ConfigKey, str] = Field(default={})
    node_selector: Mapping[LabelKey, LabelValue] = Field(default={})
    affinity: JsonMapping = Field(default={})
    nodes: ObjectNames = ()
    arch: Literal["amd64", "arm64"] = "amd64"
    control_plane: bool = False
    gardener: bool = False
    cri_name: NonEmptyLabelValue = "containerd"
    resources: Resources = Field(default_factory=Resources)
    update_strategy: UpdateStrategy = Field(default_factory=UpdateStrategy)
    agent: Agent = Field(default_factory=Agent)
    managed_resource: ManagedResource = Field(default_factory=ManagedResource)
    registration: Registration = Field(default_factory=Registration)
    admission_policies: bool = True
    annotate_node: bool | None = None
    labels: Mapping[LabelKey, LabelValue] = Field(default={})
    annotations: Mapping[LabelKey, str] = Field(default={})

    @property
    def rollout_namespace(self) -> str:
        """Where the permits are."""
        return f"{self.name}-rollout"

    @property
    def agent_namespace(self) -> str:
        return self.agent.namespace or f"{self.name}-agent"

    @property
    def writes_node(self) -> bool:
        """Whether a pod writes its Node. By default only where the API server holds it to its own."""
        return self.admission_policies if self.annotate_node is None else self.annotate_node
