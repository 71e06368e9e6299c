"""The operator's values: what the manifests are made from. YAML in, one frozen value out.

Checks the form of each value; inputs.py checks what several of them mean together. A node's own settings
are not modelled here: they are passed through (`settings`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    WithJsonSchema,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core.core_schema import CoreSchema, no_info_after_validator_function

from installer.model.jsontext import camel

# The forms of Kubernetes' names, labels and quantities. They check only what would otherwise fail late, on
# half of the objects or on the nodes; the API server judges the rest.
_DNS_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
DNS_NAME = rf"{_DNS_LABEL}(\.{_DNS_LABEL})*"
_QUALIFIED = r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_HOST = r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?"
_COUNT = r"[1-9][0-9]{0,8}|([1-9][0-9]?|100)%"
_QUANTITY = r"[0-9]+(\.[0-9]+)?([munkMGTPE]|[KMGTPE]i)?"
_PART = r"[a-z0-9]+((\.|_{1,2}|-+)[a-z0-9]+)*"
_TAG, _DIGEST = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}", r"sha256:[0-9a-f]{64}"
_IMAGE_PARTS = {"registry": "{}/", "repository": "{}", "tag": ":{}", "digest": "@{}"}


@dataclass(frozen=True, slots=True)
class _Form:
    """A text of at most `limit` characters; `what` completes "must be". Also part of the JSON schema."""

    pattern: str
    what: str
    limit: int = 253

    def check(self, text: str) -> str:
        if len(text) > self.limit or not re.fullmatch(self.pattern, text):
            raise ValueError(f"must be {self.what}")
        return text

    def __get_pydantic_core_schema__(self, kind: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return no_info_after_validator_function(self.check, handler(kind))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {**handler(schema), "pattern": f"^({self.pattern})$", "maxLength": self.limit}


def _number_as_text(value: object) -> object:
    return str(value) if type(value) in (int, float) else value


def _reference_of_parts(given: object) -> object:
    """Join the parts of an image's name; anything else is checked as it is."""
    if not isinstance(given, dict) or not given.get("repository") or not given.keys() <= _IMAGE_PARTS.keys():
        return given
    return "".join(form.format(given[part]) for part, form in _IMAGE_PARTS.items() if given.get(part))


def _names_of_references(given: object) -> object:
    if not isinstance(given, list):
        return given
    return [each["name"] if isinstance(each, dict) and each.keys() == {"name"} else each for each in given]


_NAME_SCHEMA = {"type": "string", "pattern": f"^({DNS_NAME})$", "maxLength": 253}


def _check_count(count: object) -> object:
    if not re.fullmatch(_COUNT, str(count)):
        raise ValueError("must be a number above 0, or a percentage such as 10%")
    return int(count) if isinstance(count, str) and count.isdecimal() else count


# With the suffixes that are appended, the name must still fit into a label's value.
BaseName = Annotated[str, _Form(_DNS_LABEL, "at most 52 lower-case letters, digits and dashes", 52)]
DnsLabel = Annotated[str, _Form(_DNS_LABEL, "at most 63 lower-case letters, digits and dashes")]
OptionalDnsLabel = Annotated[
    str, _Form(rf"({_DNS_LABEL})?", "empty, or at most 63 lower-case letters, digits and dashes")
]
ObjectName = Annotated[str, _Form(DNS_NAME, "an object's name (lower-case letters, digits, dashes, dots)")]
OptionalObjectName = Annotated[str, _Form(rf"({DNS_NAME})?", "empty, or an object's name")]
ObjectNames = Annotated[
    tuple[ObjectName, ...], Field(strict=False), AfterValidator(lambda names: tuple(sorted(set(names))))
]
PullSecrets = Annotated[
    ObjectNames,
    BeforeValidator(_names_of_references),
    WithJsonSchema(
        {
            "type": "array",
            "items": {
                "anyOf": [
                    _NAME_SCHEMA,
                    {
                        "type": "object",
                        "properties": {"name": _NAME_SCHEMA},
                        "required": ["name"],
                        "additionalProperties": False,
                    },
                ]
            },
        }
    ),
]
"""Names, or objects with one, as a pod has them (LocalObjectReference) and most charts."""
LabelKey = Annotated[
    str, _Form(rf"({DNS_NAME}/)?{_QUALIFIED}", "a valid key, such as name or example.org/name", 317)
]
LabelValue = Annotated[
    str, _Form(rf"({_QUALIFIED})?", "a valid label value (at most 63 letters, digits, '-', '_' and '.')")
]
NonEmptyLabelValue = Annotated[str, _Form(_QUALIFIED, "a valid label value, such as containerd")]
_IMAGE_FORM = _Form(
    rf"({_HOST}/)?{_PART}(/{_PART})*(:{_TAG})?(@{_DIGEST})?",
    "an image reference, such as registry.example.org/name:tag",
    512,
)
ImageReference = Annotated[str, _IMAGE_FORM]
GivenImage = Annotated[
    str,
    _IMAGE_FORM,
    BeforeValidator(_reference_of_parts),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "pattern": f"^({_IMAGE_FORM.pattern})$", "maxLength": _IMAGE_FORM.limit},
                {
                    "type": "object",
                    "properties": {
                        "registry": {"type": "string", "pattern": f"^({_HOST})?$"},
                        "repository": {"type": "string", "pattern": rf"^({_HOST}/)?{_PART}(/{_PART})*$"},
                        "tag": {"type": "string", "pattern": f"^({_TAG})?$"},
                        "digest": {"type": "string", "pattern": f"^({_DIGEST})?$"},
                    },
                    "required": ["repository"],
                    "additionalProperties": False,
                },
            ]
        }
    ),
]
"""A reference, or its parts, as most charts have them."""
Quantity = Annotated[
    str,
    BeforeValidator(_number_as_text),
    _Form(_QUANTITY, "a quantity, such as 100m or 64Mi"),
    WithJsonSchema({"type": ["string", "number"], "pattern": f"^({_QUANTITY})$"}),
]
CountOrPercentage = Annotated[
    Any,
    AfterValidator(_check_count),
    WithJsonSchema({"type": ["string", "integer"], "minimum": 1, "pattern": f"^({_COUNT})$"}),
]
JsonMapping = dict[str, Any]

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
    """Strict, and refuses unknown keys: a misspelt one would leave the default on the nodes."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, alias_generator=camel, defer_build=True
    )


class Images(_Section):
    """Full image references, or their parts. Only the agent's has a default."""

    installer: GivenImage = ""
    agent: GivenImage = AGENT_IMAGE


class Resources(_Section):
    """Resources of the installer's container. No memory limit by default: a change that is killed half-way
    has to be repeated."""

    requests: Mapping[LabelKey, Quantity] = Field(default={"cpu": "10m", "memory": "64Mi"})
    limits: Mapping[LabelKey, Quantity] = Field(default={})


class UpdateStrategy(_Section):
    """How many nodes may change at the same time."""

    max_unavailable: CountOrPercentage = "10%"


class Agent(_Section):
    """cri-resmgr-agent, which delivers the dynamic configs and users' Adjustments to the nodes.
    `namespace`: where it reads both; empty: a namespace of its own."""

    enabled: bool = False
    namespace: OptionalDnsLabel = ""


class ManagedResource(_Section):
    """Gardener's ManagedResource, and its namespace; without one, that of `kubectl -n`. `class_`: on whose
    nodes the pods run, those of the shoot in whose namespace it is, or those of the seed. `keep_objects`:
    its deletion leaves all objects that it has created."""

    namespace: OptionalDnsLabel = ""
    class_: Literal["shoot", "seed"] = Field(default="shoot", alias="class")
    keep_objects: bool = False
    inject_labels: Mapping[LabelKey, LabelValue] = Field(default={})


class Registration(_Section):
    """The extension's registration with Gardener: the clusters that it can serve, which are Shoots alone,
    and those that have it by default."""

    auto_enable: tuple[Literal["shoot"], ...] = Field(default=(), strict=False)
    cluster_compatibility: tuple[Literal["shoot"]] = Field(default=("shoot",), strict=False)


class Values(_Section):
    """All values; docs/operations.md describes each."""

    api_version: Literal["cri-resmgr-installer/v1"] = "cri-resmgr-installer/v1"
    name: BaseName = "cri-resmgr-installer"
    namespace: DnsLabel = "kube-system"
    images: Images = Field(default_factory=Images)
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    image_pull_secrets: PullSecrets = ()
    priority_class_name: OptionalObjectName = "system-node-critical"
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
        """The namespace of the permits."""
        return f"{self.name}-rollout"

    @property
    def agent_namespace(self) -> str:
        return self.agent.namespace or f"{self.name}-agent"

    @property
    def writes_node(self) -> bool:
        """Whether a pod writes its Node. By default only where the API server restricts it to its own."""
        return self.admission_policies if self.annotate_node is None else self.annotate_node
