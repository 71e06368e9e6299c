"""Texts that somebody may hand us by mistake or to do harm: bytes, YAML, good documents gone bad.

Strategies of hypothesis only; what is to hold of them is for others to say.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from hypothesis import strategies as st

BOMB = "[&b0 [x, x], " + ", ".join(f"&b{n} [{', '.join([f'*b{n - 1}'] * 10)}]" for n in range(1, 8)) + "]"
"""A list of a kilobyte that has twenty million items when somebody writes it out."""

MERGE_BOMB = (
    "[&m0 {x: 1, y: 2}, "
    + ", ".join(f"&m{n} {{<<: [{', '.join([f'*m{n - 1}'] * 10)}]}}" for n in range(1, 10))
    + "]"
)

SPECIALS = (
    *("\0", "\n", "\r", "\r\n", "\t", "\x0b", "\x0c", "\x1b[2J", "\x7f", "\x85", "\xa0", "\xad"),
    *("\u2028", "\u2029", "\u202e", "\u200b", "\ufeff", "\ufffe", "\uffff", "\U0001f600", "\udc80", "\ud800"),
    *("%n", "%%", "%i", "$X", "${X}", "$$", "`id`", "$(id)", "\\", "\\\\", "\\\n", "\\x00", "\\u2028", "\\s"),
    *("'", '"', "''", '"""', " ", "  ", "#", " #", ";", "=", ":", ": ", "-", "--", "---\n", "...\n"),
    *("{{ x }}", "{% raw %}", "{# x", "<<", "*", "&a", "!", "!!", "%YAML 1.1\n", "@", "|", ">", "?", ","),
    *("/", "//", "..", "/../../etc/passwd", "/etc/shadow", "~", "x" * 5000, "\u20ac" * 100, "[Service]\n"),
    *(
        "\nExecStart=/bin/sh\n",
        "\nEnvironmentFile=/x\n",
        "EXTRA_OPTIONS=x\n",
        "A=B",
        "-x",
        "--",
        "\nmode: remove\n",
    ),
)
"""What means something to YAML, systemd, a shell, Jinja, a terminal or a file system."""

TOKENS = (
    *("", "~", "null", "true", "yes", "1", "-1", "0", "0x10", "0o17", "1_000", "12:30:45", "1e400", ".nan"),
    *("-.inf", "9" * 30, "9" * 5000, "0x" + "f" * 5000, "1" + ":59" * 900, "2001-01-01", "2001-99-99"),
    *("2001-01-01 00:00:00 +99:99", "!!int ''", "!!bool x", "!!float x", "!!timestamp x", "!!null x"),
    *(
        "!!binary x",
        "!!binary AAAA",
        "!!str 1",
        "!!set {a, b}",
        "!!omap [a: 1]",
        "!!pairs [a: 1]",
        "!!int {=: 0x" + "f" * 5000 + "}",
    ),
    *("!!python/object/apply:os.system [id]", "!x y", "=", "<<", "{<<: [1]}", "{<<: {a: 1}}", "&a [*a]"),
    *(
        "&a {a: *a}",
        "*nobody",
        "[]",
        "{}",
        "[1, 2]",
        "{a: b}",
        "{1: 2}",
        "{[1]: 2}",
        "{? {a: 1} : 2}",
        "{null: 1}",
    ),
    *(
        "{2001-01-01: 1}",
        "[[[[[[]]]]]]",
        "[" * 90 + "]" * 90,
        "[" * 200_000,
        "{a: " * 50_000,
        BOMB,
        MERGE_BOMB,
    ),
    *(
        '"\\0"',
        '"\\e[2J"',
        '"\\uD800"',
        '"\\N\\L\\P"',
        "'a\n\n b'",
        "|\n  x\n  y",
        ">-\n x",
        '"' + "x" * 9000 + '"',
    ),
)
"""What may stand behind a key in YAML, or may not."""

_CHANGES = (*("value",) * 8, "insert", "insert", "line", "delete", "twice", "cut")
_KEY = re.compile(r"^([ -]*[\w./-]+:)[^\n]*$", re.MULTILINE)


def one_of(texts: Sequence[str]) -> st.SearchStrategy[str]:
    """One of them; `sampled_from` would spell them all out whenever it is named."""
    return st.integers(0, len(texts) - 1).map(texts.__getitem__)


plain_text = st.text(st.characters(codec="utf-8"), max_size=30)
hostile_text = st.lists(one_of(SPECIALS) | plain_text, max_size=4).map("".join)
tokens = one_of(TOKENS) | one_of(TOKENS) | one_of(TOKENS) | hostile_text.map(json.dumps)


def flow() -> st.SearchStrategy[str]:
    """YAML of any shape, in flow style."""
    return st.recursive(
        tokens,
        lambda below: (
            st.lists(below, max_size=3).map(lambda items: f"[{', '.join(items)}]")
            | st.lists(st.tuples(tokens, below), max_size=3).map(
                lambda pairs: "{" + ", ".join(f"{key}: {value}" for key, value in pairs) + "}"
            )
        ),
        max_leaves=6,
    )


@st.composite
def _mutated(draw: st.DrawFn, good: Sequence[str], values: st.SearchStrategy[str]) -> str:
    """A good document with one to three things wrong."""
    text = draw(one_of(good))
    for _ in range(draw(st.integers(1, 3))):
        keys = list(_KEY.finditer(text))
        lines = text.splitlines(keepends=True) or [""]
        change = draw(st.sampled_from(_CHANGES))
        at = draw(st.integers(0, len(text)))
        number = at % len(lines)
        if change == "value" and keys:
            key = keys[at % len(keys)]
            text = f"{text[: key.end(1)]} {draw(values)}{text[key.end() :]}"
        elif change in ("value", "insert"):
            text = text[:at] + draw(one_of(SPECIALS)) + text[at:]
        elif change == "line":
            lines.insert(number, f"{draw(plain_text)}: {draw(values)}\n")
        elif change == "delete":
            del lines[number]
        elif change == "twice":
            lines.insert(number, lines[draw(st.integers(0, len(lines) - 1))])
        else:
            text = text[:at]
        if change in ("line", "delete", "twice"):
            text = "".join(lines)
    return text


def _encoded(text: str) -> st.SearchStrategy[bytes]:
    """Mostly UTF-8 (what has no code in it as `surrogatepass` has it); sometimes something else."""
    utf8 = text.encode("utf-8", "surrogatepass")
    others = [
        b"\xef\xbb\xbf" + utf8,
        text.encode("utf-16", "surrogatepass"),
        text.encode("latin-1", "replace"),
    ]
    return st.sampled_from((utf8,) * 9 + tuple(others))


def spoilt(good: Sequence[str], values: st.SearchStrategy[str] = tokens) -> st.SearchStrategy[bytes]:
    """Good documents gone bad, in any encoding; sometimes bytes that never were one. `values` are those
    that come behind a key."""
    raw = _mutated(good, values).map(lambda text: text.encode("utf-8", "surrogatepass"))
    odd = _mutated(good, values).flatmap(_encoded)
    shapes = flow().map(lambda text: text.encode("utf-8", "surrogatepass"))
    return st.one_of(raw, raw, raw, odd, shapes, st.binary(max_size=60))


def every_value(good: Sequence[str]) -> list[bytes]:
    """Each of the documents with each of the tokens behind each of its keys: chance is rare to find all."""
    return [
        f"{text[: key.end(1)]} {token}{text[key.end() :]}".encode("utf-8", "surrogatepass")
        for text in good
        for key in _KEY.finditer(text)
        for token in TOKENS
    ]
