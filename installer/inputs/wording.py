"""What is wrong with a value, in an operator's words instead of pydantic's."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

_WORDING = (
    ("Value error, ", ""),
    ("Input should be a valid integer", "must be a whole number"),
    ("Input should be a valid string", "must be a string"),
    ("Input should be a valid boolean", "must be true or false"),
    ("Input should be a valid tuple", "must be a list"),
    ("Input should be a valid mapping", "must be a mapping"),
    ("Input should be greater than or equal to", "must be at least"),
    ("Input should be less than or equal to", "must be at most"),
    ("Input should be", "must be"),
)
_SHOWN = 80  # characters of a value


def reword(message: str) -> str:
    """A message of pydantic-core's error list as one of ours: `must be at least 1`."""
    for pydantics, ours in _WORDING:
        message = message.replace(pydantics, ours)
    return message


def shown(value: object) -> str:
    """The value as people recognise it, cut where it is long; of a mapping or list only its kind."""
    if isinstance(value, bool):
        return "true" if value else "false"
    text = repr(value) if isinstance(value, (str, int, float)) else kind(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def kind(value: object) -> str:
    """`a mapping`, `a list`, `a string` ..."""
    names = {"dict": "a mapping", "list": "a list", "str": "a string"}
    name = type(value).__name__
    return names.get(name, f"a {name}")


def suggest(word: str, known: Iterable[str]) -> str:
    """`did you mean guardSeconds?` where `word` resembles one of `known`, else all of them."""
    from difflib import get_close_matches  # late: most runs have no fault

    names = {name.lower(): name for name in known}
    plain = word.replace("_", "").lower()
    close = get_close_matches(word.lower(), names, n=1) or get_close_matches(plain, names, n=1)
    return f"did you mean {names[close[0]]}?" if close else f"known are {', '.join(names.values())}"


def nearest(path: Path) -> str:
    """What to say of a path that does not exist: `did you mean /root/configs?`, or which part of it is
    missing."""
    from difflib import get_close_matches  # late: most runs have no fault

    parent, name = path.absolute().parent, path.name
    while not parent.exists() and parent != parent.parent:
        parent, name = parent.parent, parent.name
    try:
        names = sorted(entry.name for entry in parent.iterdir())
    except OSError:
        names = []
    close = get_close_matches(name, names, n=1)
    return f"did you mean {parent / close[0]}?" if close else f"{parent} has no {name}"
