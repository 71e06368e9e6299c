"""The forms of Kubernetes' names, labels and quantities, as types for pydantic.

Only what would otherwise fail late, on half of the objects or on the nodes; the API server judges the rest.
"""

from __future__ import annotations

import json
import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

_DNS_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
DNS_NAME = rf"{_DNS_LABEL}(\.{_DNS_LABEL})*"
_QUALIFIED = r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_HOST = r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?"
_PART = r"[a-z0-9]+((\.|_{1,2}|-+)[a-z0-9]+)*"


def _form(pattern: str, what: str, limit: int = 253) -> AfterValidator:
    """Of at most `limit` characters; `what` completes "must be"."""
    compiled = re.compile(pattern)

    def check(text: str) -> str:
        if len(text) > limit or not compiled.fullmatch(text):
            raise ValueError(f"must be {what}")
        return text

    return AfterValidator(check)


def _number_as_text(value: object) -> object:
    return str(value) if type(value) in (int, float) else value


def _check_json(value: object) -> object:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        raise ValueError("must have only what JSON can carry (no dates)") from None
    return value


def _check_count(count: object) -> object:
    if not re.fullmatch(r"[1-9][0-9]{0,8}|([1-9][0-9]?|100)%", str(count)):
        raise ValueError("must be a number above 0, or a percentage such as 10%")
    return int(count) if isinstance(count, str) and count.isdecimal() else count


# What is appended to the name must still fit into a label's value.
BaseName = Annotated[str, _form(_DNS_LABEL, "at most 52 lower-case letters, digits and dashes", 52)]
DnsLabel = Annotated[str, _form(_DNS_LABEL, "at most 63 lower-case letters, digits and dashes")]
OptionalDnsLabel = Annotated[
    str, _form(rf"({_DNS_LABEL})?", "empty, or at most 63 lower-case letters, digits and dashes")
]
ObjectName = Annotated[str, _form(DNS_NAME, "an object's name (lower-case letters, digits, dashes, dots)")]
ObjectNames = Annotated[
    tuple[ObjectName, ...], Field(strict=False), AfterValidator(lambda names: tuple(sorted(set(names))))
]
LabelKey = Annotated[
    str, _form(rf"({DNS_NAME}/)?{_QUALIFIED}", "a valid key, such as name or example.org/name", 317)
]
LabelValue = Annotated[
    str, _form(rf"({_QUALIFIED})?", "a valid label value (at most 63 letters, digits, '-', '_' and '.')")
]
NonEmptyLabelValue = Annotated[str, _form(_QUALIFIED, "a valid label value, such as containerd")]
ImageReference = Annotated[
    str,
    _form(
        rf"({_HOST}/)?{_PART}(/{_PART})*(:[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})?(@sha256:[0-9a-f]{{64}})?",
        "an image reference, such as registry.example.org/name:tag",
        512,
    ),
]
Quantity = Annotated[
    str,
    BeforeValidator(_number_as_text),
    _form(r"[0-9]+(\.[0-9]+)?([munkMGTPE]|[KMGTPE]i)?", "a quantity, such as 100m or 64Mi"),
]
CountOrPercentage = Annotated[Any, AfterValidator(_check_count)]
JsonMapping = Annotated[dict[str, Any], AfterValidator(_check_json)]
