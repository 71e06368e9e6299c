"""The manual page: the sections that people know, every command and option, and no internal verb."""

from __future__ import annotations

import re

from hack.manual import completing, manual_page, options_of, public_parser
from installer.cli.grammar import EXIT_STATUS, INTERNAL_VERBS

PAGE = manual_page("27 Nov 2026")
SECTIONS = re.findall(r"(?m)^\.SH (.*)$", PAGE)


def section(name: str) -> str:
    return PAGE.partition(f"\n.SH {name}\n")[2].partition("\n.SH ")[0].replace("\\-", "-")


def test_it_has_the_usual_sections_in_their_order() -> None:
    assert [
        *("NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "COMMANDS"),
        *("EXIT STATUS", "ENVIRONMENT", "FILES", "EXAMPLES", "SEE ALSO"),
    ] == SECTIONS


def test_it_has_every_command_and_option_and_no_internal_verb() -> None:
    commands, verbs = section("COMMANDS"), public_parser()[1]
    assert re.findall(r"(?m)^\.SS (.*)$", commands) == list(verbs)
    for verb, parser in verbs.items():
        for option in options_of(parser):
            named = section("OPTIONS") + commands.partition(f".SS {verb}\n")[2].partition("\n.SS ")[0]
            assert all(name in named for name in option.option_strings), (verb, option.option_strings)
    assert not set(verbs) & set(INTERNAL_VERBS)


def test_each_command_lists_the_outputs_that_it_has() -> None:
    outputs = dict(re.findall(r"(?ms)^\.SS ([a-z]+)$(?:(?!^\.SS).)*?--output ([^\\ ]*)", section("COMMANDS")))
    assert outputs["plan"] == "text|json"
    assert outputs["report"] == "text|json|html"
    assert "manifests" not in outputs


def test_exit_status_has_every_exit_code() -> None:
    assert re.findall(r"(?m)^\\fB(\S+)\\fR$", section("EXIT STATUS")) == [code for code, _ in EXIT_STATUS]


def test_no_line_is_a_request_by_chance() -> None:
    known = {"TH", "SH", "SS", "TP", "PP", "nf", "fi", "RS", "RE", "B"}
    assert {line.split()[0][1:] for line in PAGE.splitlines() if line.startswith(".")} <= known


def test_shells_complete_files_and_directories() -> None:
    parser = completing({"FILE": "a file", "DIR": "a directory"})
    found = {each.dest: getattr(each, "complete", "") for each in parser._actions}
    assert (found["config"], found["payload"], found["verbose"]) == ("a file", "a directory", "")
