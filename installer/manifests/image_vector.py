"""Finds our images in a Gardener image vector.

As Gardener does (`FindImage` of its package imagevector), it chooses by `architectures`: of several entries
that fit, the most specific one. It refuses version ranges: one image serves every version of Kubernetes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from installer.errors import InvalidInputError
from installer.inputs.reading import kind, shown, suggest
from installer.inputs.yaml_document import KeyPath, parse_document
from installer.manifests.sources import Fault

IMAGES = {
    "cri-resmgr-installer": "installer",
    "cri-resmgr-agent": "agent",
    "gardener-extension-cri-resmgr-agent": "agent",
}
"""Name in an image vector -> key of `images` in our values."""

_NOT_OURS = {
    "gardener-extension-cri-resmgr": "is the original extension's controller and is ignored",
    **dict.fromkeys(
        (
            "gardener-extension-cri-resmgr-installation",
            "gardener-extension-cri-resmgr-installation-and-agent",
        ),
        "is the original extension's image, which does not contain this program, and is ignored; "
        "give ours as --image or as an entry named cri-resmgr-installer",
    ),
}
_VERSIONS = ("targetVersion", "runtimeVersion")
# A number would lose its last zero: 1.10 is 1.1.
_STRINGS = ("ref", "repository", "tag")
_LENGTH = 1024  # characters of a reference: far more than a registry accepts
_ARCHITECTURES = ["amd64", "arm64"]  # of an entry that has none


@dataclass(slots=True)
class FoundImages:
    """`references` by the key of `images`. The paths of faults and warnings start below the vector."""

    references: dict[str, str] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    warnings: list[Fault] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Candidate:
    path: KeyPath
    reference: str
    score: int  # how specific it is for these nodes


def read_vector(vector: object, arch: str) -> FoundImages:
    """Find the images for nodes of the architecture `arch`. `vector` is a mapping with `images`, that list
    alone, or a text with either, as Gardener's charts have it. Never raises."""
    found = FoundImages()
    lines: Mapping[KeyPath, int] = {}
    if isinstance(vector, str):
        vector, lines = _parse(vector, found.faults)
    by_key: dict[str, tuple[KeyPath, list[_Candidate]]] = {}  # with the path of its first entry
    for path, entry in _entries(vector, found.faults) if not found.faults else ():
        name = entry.get("name") if isinstance(entry, Mapping) else None
        if not isinstance(entry, Mapping) or not isinstance(name, str):
            found.faults.append((path, f"must be a mapping with a name, not {shown(entry)}"))
        elif name in _NOT_OURS:
            found.warnings.append((path, f"{name} {_NOT_OURS[name]}"))
        elif name not in IMAGES:
            found.faults.append((path, f"unknown name {shown(name)}; {suggest(name, IMAGES)}"))
        else:
            _, candidates = by_key.setdefault(IMAGES[name], (path, []))
            candidates += _candidates(path, entry, arch, found.faults)
    if not found.faults:
        for key, (path, candidates) in by_key.items():
            _choose(key, path, candidates, arch, found)
    for listed in (found.faults, found.warnings):
        listed[:] = [(path, _with_line(path, fault, lines)) for path, fault in listed]
    return found


def _parse(text: str, faults: list[Fault]) -> tuple[object, Mapping[KeyPath, int]]:
    """Parse the vector in a text, with its lines there."""
    try:
        document = parse_document(text.encode("utf-8", "replace"), "line")
    except InvalidInputError as error:
        faults.append(((), "; ".join(fault.replace("line:", "line ", 1) for fault in error.faults)))
        return None, {}
    faults += [((), fault.replace("(line:", "(line ")) for fault in document.faults]
    return document.data, document.lines


def _with_line(path: KeyPath, what: str, lines: Mapping[KeyPath, int]) -> str:
    """Add the line in the text of the vector; the line in the file is added later."""
    while path and path not in lines:
        path = path[:-1]
    return f"line {lines[path]}: {what}" if path else what


def _entries(vector: object, faults: list[Fault]) -> Iterator[tuple[KeyPath, object]]:
    """Yield each entry with its path."""
    path: KeyPath = ()
    if isinstance(vector, Mapping):
        path, vector = ("images",), vector.get("images")
    if not isinstance(vector, list):
        faults.append(
            (path, f"must be a list of images, each with name, repository and tag, not {kind(vector)}")
        )
        return
    for index, entry in enumerate(vector):
        yield (*path, str(index)), entry


def _candidates(
    path: KeyPath, entry: Mapping[str, Any], arch: str, faults: list[Fault]
) -> Iterator[_Candidate]:
    """Yield the entry if it is for these nodes."""
    wrong = []
    for key in (*_STRINGS, *_VERSIONS):
        value = entry.get(key)
        if value is not None and key in _VERSIONS:
            what = "is not supported: one image serves every version of Kubernetes; leave it out"
            wrong.append(((*path, key), what))
        elif not isinstance(value, (str, type(None))):
            wrong.append(((*path, key), f"must be a string, not {shown(value)}; put it in quotes"))
        elif len(value or "") > _LENGTH:
            wrong.append(((*path, key), f"must have at most {_LENGTH} characters"))
    reference = "" if wrong else _reference(entry)
    if not wrong and not reference:
        wrong.append((path, "needs repository and tag, or ref alone"))
    architectures = entry.get("architectures") or _ARCHITECTURES
    if not isinstance(architectures, list):
        wrong.append(((*path, "architectures"), f"must be a list, not {shown(architectures)}"))
    faults += wrong
    if not wrong and arch in architectures:
        yield _Candidate(path, reference, 2 if len(architectures) == 1 else 1)


def _choose(key: str, path: KeyPath, candidates: Sequence[_Candidate], arch: str, found: FoundImages) -> None:
    if not candidates:
        found.faults.append((path, f"no entry for the {key} is for {arch}"))
        return
    best = max(candidate.score for candidate in candidates)
    chosen, *others = [candidate for candidate in candidates if candidate.score == best]
    other = next((candidate for candidate in others if candidate.reference != chosen.reference), None)
    if other:
        found.faults.append((other.path, f"matches as well as {'.'.join(chosen.path)}; keep one of them"))
    else:
        found.references[key] = chosen.reference


def _reference(entry: Mapping[str, str]) -> str:
    """Return the full reference of an entry; empty if it has none. A digest in the place of the tag follows
    `@`."""
    ref, repository, tag = entry.get("ref"), entry.get("repository"), entry.get("tag")
    if ref is not None or repository is None:
        return ref if ref is not None and repository is None and tag is None else ""
    if tag is None:
        return repository if "@" in repository or ":" in repository.rpartition("/")[2] else ""
    return f"{repository}{'@' if tag.startswith('sha256:') else ':'}{tag}"
