"""Lines for people are folded to their terminal, and nothing that they copy is."""

from __future__ import annotations

import re

import pytest

from installer.report.terminal import wrapped

LONG = "hint: give it again with `install --configs /root/a/long/path --payload /root/payload`, or do not"


@pytest.mark.parametrize("width", [10, 20, 40, 60, 80, 200])
@pytest.mark.parametrize(
    "text", [LONG, f"    {LONG}", f"\x1b[31m{LONG}\x1b[0m", "x" * 90, "", "`", "a ` b " * 20]
)
def test_only_the_spaces_between_words_change(text: str, width: int) -> None:
    folded = wrapped(f"{text}\nshort\n", width)
    assert folded.split() == [*text.split(), "short"]
    assert re.findall("`[^`]*`", folded) == re.findall("`[^`]*`", text)
    for line in folded.splitlines():
        shown = re.sub("\x1b.*?m", "", line)
        assert len(shown) <= width or len(re.sub("`[^`]*`", "", shown).split()) <= 2


def test_what_follows_is_further_in_than_its_line() -> None:
    assert wrapped("  one two three\n", 10) == "  one two\n    three\n"
