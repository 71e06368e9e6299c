"""The forms of Kubernetes' names, labels and quantities, as types for pydantic.

Only what would otherwise fail late, on half of the objects or on the nodes; the API server judges the rest.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    WithJsonSchema,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core.core_schema import CoreSchema, no_info_after_validator_function

_DNS_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
DNS_NAME = rf"{_DNS_LABEL}(\.{_DNS_LABEL})*"
_QUALIFIED = r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_HOST = r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?"
_COUNT = r"[1-9][0-9]{0,8}|([1-9][0-9]?|100)%"
_QUANTITY = r"[0-9]+(\.[0-9]+)?([munkMGTPE]|[KMGTPE]i)?"
_PART = r"[a-z0-9]+((\.|_{1,2}|-+)[a-z0-9]+)*"


@dataclass(frozen=True, slots=True)
class _Form:
    """A text of at most `limit` characters; `what` completes "must be". The JSON schema has it, too."""

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


def _check_json(value: object) -> object:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        raise ValueError("must have only what JSON can carry (no dates)") from None
    return value


def _check_count(count: object) -> object:
    if not re.fullmatch(_COUNT, str(count)):
        raise ValueError("must be a number above 0, or a percentage such as 10%")
    return int(count) if isinstance(count, str) and count.isdecimal() else count


# What is appended to the name must still fit into a label's value.
BaseName = Annotated[str, _Form(_DNS_LABEL, "at most 52 lower-case letters, digits and dashes", 52)]
DnsLabel = Annotated[str, _Form(_DNS_LABEL, "at most 63 lower-case letters, digits and dashes")]
OptionalDnsLabel = Annotated[
    str, _Form(rf"({_DNS_LABEL})?", "empty, or at most 63 lower-case letters, digits and dashes")
]
ObjectName = Annotated[str, _Form(DNS_NAME, "an object's name (lower-case letters, digits, dashes, dots)")]
ObjectNames = Annotated[
    tuple[ObjectName, ...], Field(strict=False), AfterValidator(lambda names: tuple(sorted(set(names))))
]
LabelKey = Annotated[
    str, _Form(rf"({DNS_NAME}/)?{_QUALIFIED}", "a valid key, such as name or example.org/name", 317)
]
LabelValue = Annotated[
    str, _Form(rf"({_QUALIFIED})?", "a valid label value (at most 63 letters, digits, '-', '_' and '.')")
]
NonEmptyLabelValue = Annotated[str, _Form(_QUALIFIED, "a valid label value, such as containerd")]
ImageReference = Annotated[
    str,
    _Form(
        rf"({_HOST}/)?{_PART}(/{_PART})*(:[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})?(@sha256:[0-9a-f]{{64}})?",
        "an image reference, such as registry.example.org/name:tag",
        512,
    ),
]
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
JsonMapping = Annotated[dict[str, Any], AfterValidator(_check_json)]
