"""Unit files and EnvironmentFiles, read as systemd 252 reads them.

Every expectation about words and values was seen on a real systemd.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from installer.host.files import RootedFiles
from installer.host.unit_files import set_properties
from installer.inputs.systemd_syntax import (
    Assignment,
    ExecCommand,
    bare_variable,
    expand,
    merged,
    parse_environment_file,
    parse_exec,
    parse_unit,
    quote,
    split_words,
)
from installer.model.host import KubeletBase, UnitText
from installer.node.kubelet_command import BaseUnit, last_variable, next_command_line, parse_base

PATH = "/etc/systemd/system/kubelet.service"


def parse(text: str) -> list[tuple[str, str, str]]:
    return [(line.section, line.key, line.value) for line in parse_unit(UnitText(PATH, text))]


def command(value: str) -> ExecCommand:
    return parse_exec(Assignment(PATH, "Service", "ExecStart", value))


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (
            "Lost=1\n# c\n; c\n[Unit]\n A = b c \n\n[Service]\nnonsense\nB=\n  # c\nC==d\n",
            [("Unit", "A", "b c"), ("Service", "B", ""), ("Service", "C", "=d")],
        ),
        ("[S]\nA=b \\\n  c\\\nd\nE=f\n", [("S", "A", "b    c d"), ("S", "E", "f")]),
        # A comment inside a continuation vanishes, and an empty line ends one.
        ("[S]\nA=b \\\n# hidden \\\n; too\n c\nD=e\n", [("S", "A", "b   c"), ("S", "D", "e")]),
        ("[S]\nA=b \\\n\nC=d\n", [("S", "A", "b"), ("S", "C", "d")]),
        # Two backslashes at the end are none, and it may end with the file.
        ("[S]\nA=b\\\\\nC=d\n", [("S", "A", "b\\\\"), ("S", "C", "d")]),
        ("[S]\nA=b \\", [("S", "A", "b")]),
    ],
)
def test_sections_comments_and_continuations(text: str, lines: list[tuple[str, str, str]]) -> None:
    assert parse(text) == lines


def test_line_ends_of_dos_and_other_separators() -> None:
    """A carriage return and a NUL end a line, too: a form feed or U+2028 is a character like any other."""
    assert parse("\ufeff[S]\r\nA=b \\\r\n c\r\nD=e\x0cf\u2028g\r\n") == [
        ("S", "A", "b   c"),
        ("S", "D", "e\x0cf\u2028g"),
    ]
    assert parse("[S]\rA=1\0B=2\n\rC=3\r\rD=4") == [
        ("S", key, value) for key, value in zip("ABCD", "1234", strict=True)
    ]


@pytest.mark.parametrize(
    "line", ["[S", "[S]x", "[S]\u2028", '["S"]', "A=\udcff", "ExecStart=/x %", "ExecStart=/x"]
)
def test_nothing_is_read_behind_a_line_that_systemd_cannot_read(line: str) -> None:
    found = parse(f"[Service]\nA=1\n{line}\nB=2\n")
    assert (("Service", "B", "2") in found) is line.startswith("ExecStart=/x")


@pytest.mark.parametrize(
    ("value", "on"),
    [
        ("relative/x", False),
        ('/x "a', False),
        ("/x/", False),
        ("@", False),
        ("-relative/x", True),
        ('"a', True),
    ],
)
def test_a_command_that_systemd_refuses_ends_its_file(value: str, on: bool) -> None:
    assert (("Service", "B", "2") in parse(f"[Service]\nExecStart={value}\nB=2\n")) is on


def test_merged_lists_and_their_reset() -> None:
    lines = parse_unit(UnitText(PATH, "[Service]\nA=1\nA=2\nA=\nA=3\n[Unit]\nA=4\n[Service]\nA=5\n"))
    assert [line.value for line in merged(lines, "Service", "A")] == ["3", "5"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ()),
        ("  a\tb\n c ", ("a", "b", "c")),
        ("\"a b\" 'c d'", ("a b", "c d")),
        ("a\"b c\"d 'e'f", ("ab cd", "ef")),
        ("'' \"\"", ("", "")),
        ('"it\'s" \'say "x"\'', ("it's", 'say "x"')),
        (r"a\ b\\c\"d", (r"a b\c" + '"d',)),
        (r"'a\'b'", ("a'b",)),
    ],
)
def test_words_of_a_value(text: str, words: tuple[str, ...]) -> None:
    assert split_words(text) == words


def test_a_key_that_only_begins_like_that_of_a_command_ends_nothing() -> None:
    lines = parse_unit(UnitText(PATH, "[Service]\nExecStart \\\nUser=a/b\nExecStart=a/b\nUser=c\n"))
    assert [(line.key, line.value) for line in lines] == [("ExecStart  User", "a/b"), ("ExecStart", "a/b")]


def test_an_open_quote() -> None:
    with pytest.raises(ValueError, match="unclosed quote"):
        split_words('a "b c')
    assert split_words('a "b c', relaxed=True) == ("a", "b c")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (r"a\tb \x41\102\u00e9\U0001F600", ("a\tb", "ABé😀")),
        (r"\s\\\"\'", (" \\\"'",)),
        (r"\q \;", ("\\q", "\\;")),
        (r'"\n"', ("\n",)),
    ],
)
def test_escapes_in_unit_files(text: str, words: tuple[str, ...]) -> None:
    assert split_words(text, c_escapes=True) == words


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))))
def test_quoted_words_come_back(words: list[str]) -> None:
    quoted = " ".join('"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"' for word in words)
    assert split_words(quoted) == tuple(words)


def test_exec_prefixes() -> None:
    found = command("-@+/usr/bin/kubelet kubelet --v=2")
    assert (found.prefixes, found.words) == ("-@+", ("/usr/bin/kubelet", "kubelet", "--v=2"))
    assert found.raw == "-@+/usr/bin/kubelet kubelet --v=2"
    with pytest.raises(ValueError, match="no command"):
        command("-")


@pytest.mark.parametrize(
    ("word", "variable"),
    [
        ("$A", "A"),
        ("$_a1", "_a1"),
        ("${A}", ""),
        ("x$A", ""),
        ("$A-", ""),
        ("$$A", ""),
        ("$1", ""),
        ("$", ""),
    ],
)
def test_only_a_bare_variable_is_split(word: str, variable: str) -> None:
    assert bare_variable(word) == variable


def test_expansion() -> None:
    line = command(r'k $A "$B" ${B} --c=${B}/$A $$A 50%% "$NONE" ${NONE} \;')
    assert expand(line, {"A": "1 '2 3'", "B": "x y"}) == (
        "k", "1", "2 3", "x", "y", "x y", "--c=x y/$A", "$A", "50%", "", ";",
    )  # fmt: skip
    assert expand(command(":k $A ${A}"), {"A": "1"}) == ("k", "$A", "${A}")
    assert expand(command("k ${A:-x} ${A:+${B}}"), {"A": "1", "B": "2"}) == ("k", "${A:-x}", "${A:+2}")


def test_last_variable() -> None:
    assert last_variable(command("kubelet $A $B")) == "B"
    assert last_variable(command("kubelet $A --b")) == ""
    assert last_variable(command(":kubelet $A")) == ""


def test_environment_of_the_command_line() -> None:
    text = (
        "[Service]\nEnvironment=\"A=1 2\" B=%%b 'C=c'\nEnvironmentFile=-/etc/one\nEnvironmentFile=/etc/two\n"
        "UnsetEnvironment=C D=x E=e\nExecStart=/k $A ${B} $C $D\n"
    )
    unit = BaseUnit(parse_unit(UnitText(PATH, text)), ())
    files = {
        "/etc/one": (UnitText("/etc/one", "A=from one\nD=d\n"),),
        "/etc/two": (UnitText("/etc/two", "A=from two\nE=e\n"),),
    }
    assert unit.environment(files) == {"A": "from two", "B": "%b", "D": "d"}
    base = KubeletBase(texts=(UnitText(PATH, text),))
    assert next_command_line(parse_base(base), base) == ("/k", "1", "2", "%b")


def test_a_command_line_that_cannot_be_known() -> None:
    for body in ("ExecStart=/k 'open\n", "ExecStart=\n", "ExecStart=/a\nExecStart=/b\n"):
        text = UnitText(PATH, f"[Service]\n{body}")
        base = KubeletBase(texts=(text,))
        assert next_command_line(parse_base(base), base) == ()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("A=1\nB=2\nA=3\n", {"A": "3", "B": "2"}),
        ("# A=1\n; B=2\n\n  C = d  \n", {"C": "d"}),
        ("A=b c  \nB= d\n", {"A": "b c", "B": "d"}),
        ("A=\"b  c \" \nB='$x \\n'\n", {"A": "b  c ", "B": "$x \\n"}),
        ('A=b"c"\nB=\'it\'"s"\n', {"A": 'b"c"', "B": "its"}),
        ("A=b\\\nc\nB=\"d\\\ne\"\nC='f\ng'\n", {"A": "bc", "B": "de", "C": "f\ng"}),
        ('A="\\n \\" \\\\ \\$ \\`"\n', {"A": '\\n " \\ $ `'}),
        ("A=\\ b\\\\c\n", {"A": " b\\c"}),
        ("export A=1\n1B=2\nC\nD=4", {"D": "4"}),
        ("A=${B} $B\n", {"A": "${B} $B"}),
        ('A=\nB=""\n', {"A": "", "B": ""}),
    ],
)
def test_environment_files(text: str, found: dict[str, str]) -> None:
    assert parse_environment_file(text) == found


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")))
def test_quoted_values_come_back(value: str) -> None:
    assert parse_environment_file(f"A={quote(value)}\nB=1\n") == {"A": value, "B": "1"}


def test_what_an_environment_file_cannot_hold() -> None:
    with pytest.raises(ValueError, match="NUL"):
        quote("a\0b")
    with pytest.raises(ValueError, match="surrogates"):
        quote("a\udcffb")


def test_white_space_in_environment_files_is_four_characters() -> None:
    text = "\xa0A=1\nB\u2028=2\nC=\x0c3\x85 \nD\rE=5\r=x\nF=6\n"
    assert parse_environment_file(text) == {"C": "\x0c3\x85", "E": "5", "F": "6"}
    assert parse_environment_file("A=1\nB=\0\n") == {}


def test_environment_lines_end_at_what_cannot_be_read() -> None:
    lines = parse_unit(UnitText(PATH, "[Service]\nEnvironment=A=1 1B=2 =3 C=%% D=\\q E=5\nEnvironment=F='\n"))
    assert BaseUnit(lines, ()).environment({}) == {"A": "1", "C": "%"}


def test_environment_files_are_named_as_systemd_names_them() -> None:
    lines = "".join(
        f"EnvironmentFile={value}\n" for value in ("-//a//./b/", "/a/../b", "- /c", '"/d"', "-%%", "-/e %%")
    )
    assert BaseUnit(parse_unit(UnitText(PATH, f"[Service]\n{lines}")), ()).environment_files() == (
        "/a/b",
        "/e %",
    )


@pytest.mark.parametrize(
    ("value", "prefixes", "words"),
    [
        ('"-@/x" y', "-@", ("/x", "y")),
        ("!!/x", "!!", ("/x",)),
        (r"/x \x00 \xc3\xa9 \ud800", "", ("/x", "\\x00", "é", "\\ud800")),
        (r'/x \; "\;"', "", ("/x", ";", "\\;")),
        ("/x ; /y", "", ("/x",)),
        ('; ";" -/x y', "-", ("/x", "y")),
    ],
)
def test_commands(value: str, prefixes: str, words: tuple[str, ...]) -> None:
    found = command(value)
    assert (found.prefixes, found.words, found.several) == (prefixes, words, value == "/x ; /y")


@pytest.mark.parametrize("value", ["+!/x", "--/x", "- /x", "a/b", "/x/", "|/x", '/a"b', "-", r"/x\n", "@/x"])
def test_what_is_no_command(value: str) -> None:
    value = value if value != '/a"b' else '/a\\"b'
    with pytest.raises(ValueError, match="no"):
        command(value)


def test_a_backslash_at_the_end_swallows_nothing_that_follows() -> None:
    assert command("/x \\").raw_before_more == "/x \\\\"
    assert command("/x \\\\").raw_before_more == "/x \\\\"


@pytest.mark.parametrize(
    ("value", "number"),
    [
        *[("infinity", (1 << 64) - 1), ("18446744073709551615", (1 << 64) - 1), ("5s", None), ("", None)],
        *[("9" * 5000, None), ("²", None)],  # edited by hand
    ],
)
def test_what_set_property_has_set(tmp_path: Path, value: str, number: int | None) -> None:
    first = '# This is a drop-in unit file extension, created via "systemctl set-property"'
    (tmp_path / "50-CPUWeight.conf").write_text(f"{first}\n[Service]\nCPUWeight={value}\n")
    assert set_properties(RootedFiles(tmp_path), "/50-CPUWeight.conf") == {"CPUWeight": number}
