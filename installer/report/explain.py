"""Finds what the runbooks say about a code, an exit code or a phase. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from installer.model.codes import Code

_CODES = frozenset(Code)
_CODE = re.compile(r"`([a-z0-9-]+)`(?:, )?")
_LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")


def normalise(words: str) -> list[str]:
    """Return the names that a person has typed: `[kubelet-masked]`, `exit 5`, `5`, `137`."""
    joined = re.sub(r"exit[ _]+(?=\d)", "exit-", words.lower().translate(str.maketrans("[]`,", "    ")))
    return [_exit_of(word) for word in joined.split()]


def _exit_of(word: str) -> str:
    number = word.removeprefix("exit-").removeprefix("128+n") or "128"
    if not number.isdecimal():
        return word
    return f"exit-{min(int(number), 128)}"


def find_entries(page: str) -> dict[str, str]:
    """Return the text about each name, as people read it on a terminal."""
    entries: dict[str, str] = {}
    for heading, body in re.findall(r"(?ms)^##+ (.*?)$\n(.*?)(?=^## |^### |\Z)", page):
        rows = list(_rows(body))
        for codes, cells in rows:
            text = "\n".join(f"{cell[:1].upper()}{cell[1:]}." for cell in map(_plain, cells[:1]))
            text += "".join(f"\nDo: {cell}" for cell in map(_plain, cells[1:]))
            entries |= {code: entries.get(code) or text for code in codes}
        title, _, exits = heading.lower().partition(" (")
        names = [title.replace(" ", "-"), exits.rstrip(")").replace(" ", "-")]
        text = "\n".join([heading, "", *_section(body)]).rstrip()
        entries |= dict.fromkeys(filter(None, names), text)
    return entries


def _rows(body: str) -> Iterator[tuple[list[str], list[str]]]:
    """Yield the rows of tables that begin with codes: the codes, and the other cells."""
    for line in body.splitlines():
        cells = _cells(line)
        codes = _CODE.findall(cells[0]) if len(cells) == 3 and not _CODE.sub("", cells[0]) else []
        if codes and all(code in _CODES or code.startswith("exit-") for code in codes):
            yield codes, cells[1:]


def _cells(line: str) -> list[str]:
    return [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def _section(body: str) -> Iterator[str]:
    """Yield its lines, without the tables of codes, and with other rows as paragraphs."""
    for paragraph in re.split(r"\n{2,}", body.strip("\n")):
        lines = paragraph.splitlines()
        if not lines[0].startswith("|"):
            is_block = lines[0].startswith(("    ", "- ", "1. "))
            yield from lines if is_block else [_plain(" ".join(lines))]
        elif not any(_rows(paragraph)):
            for line in lines[2:]:
                first, *others = map(_plain, _cells(line))
                yield "- " + "\n  ".join(filter(None, [first, *others]))
        else:
            yield "`cri-resmgr-installer explain CODE` explains each code."
        yield ""


def _plain(text: str) -> str:
    """Return Markdown as text."""
    linked = _LINK.sub(lambda link: f"{link[1]} ({_target(link[2])})", text)
    return linked.replace("**", "")


def _target(link: str) -> str:
    if link.startswith("#"):
        return f"`cri-resmgr-installer explain {re.sub('-exit-.*', '', link[1:])}`"
    return link if "://" in link else f"docs/{link}".replace("docs/../", "")
