"""What names, labels and images look like in Kubernetes: one checker for each form of text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from installer.manifests.text import is_plain

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_QUALIFIED = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
_HOST = r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::[0-9]{1,5})?"
_PART = r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*"
_IMAGE = re.compile(
    rf"(?:{_HOST}/)?{_PART}(?:/{_PART})*(?::[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})?(?:@sha256:[0-9a-f]{{64}})?"
)
_QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?([munkMGTPE]|[KMGTPE]i)?")
_PERCENT = re.compile(r"([1-9][0-9]?|100)%")


def is_name(text: str, limit: int = 253) -> bool:
    """An object's name: a DNS subdomain (RFC 1123)."""
    return 0 < len(text) <= limit and all(
        len(part) <= 63 and _LABEL.fullmatch(part) for part in text.split(".")
    )


def is_short_name(text: str, limit: int = 63) -> bool:
    """A DNS label (RFC 1123)."""
    return len(text) <= limit and bool(_LABEL.fullmatch(text))


def is_key(text: str) -> bool:
    """The key of a label or annotation: an optional DNS subdomain and a slash before the name."""
    prefix, slash, name = text.rpartition("/")
    return (is_name(prefix) if slash else True) and len(name) <= 63 and bool(_QUALIFIED.fullmatch(name))


def is_label_value(text: str) -> bool:
    return not text or (len(text) <= 63 and bool(_QUALIFIED.fullmatch(text)))


def is_image(text: str) -> bool:
    """A reference: registry, repository, tag or digest."""
    return len(text) <= 512 and bool(_IMAGE.fullmatch(text))


def is_quantity(text: str) -> bool:
    return bool(_QUANTITY.fullmatch(text))


def is_percent(text: str) -> bool:
    return bool(_PERCENT.fullmatch(text))


def label_faults(labels: Mapping[str, str]) -> list[str]:
    """What is wrong with each of them."""
    return [f"{key!r} is no key of a label" for key in labels if not is_key(key)] + [
        f"{key}: {value!r} is no value of a label"
        for key, value in labels.items()
        if not is_label_value(value)
    ]


def annotation_faults(annotations: Mapping[str, str]) -> list[str]:
    """What is wrong with each of them."""
    return [f"{key!r} is no key of an annotation" for key in annotations if not is_key(key)] + [
        f"{key}: has characters that YAML cannot carry"
        for key, value in annotations.items()
        if not is_plain(value)
    ]


def refuse(faults: Iterable[str]) -> None:
    """Raises ValueError with one line for each, if there is any."""
    lines = "\n".join(faults)
    if lines:
        raise ValueError(lines)
