"""The manual page and what the shells complete, from the parser."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

from installer import __version__
from installer.cli.grammar import ENVIRONMENT, EXAMPLES, EXIT_STATUS, INTERNAL_VERBS, build_parser
from installer.model import paths

NAME = "cri-resmgr-installer"
WHATIS = "put cri-resmgr on a node, keep it there, remove it"
_FILES = (
    (f"{paths.OUR_STATE}/", "the record of what is ours, with what was there before"),
    (f"{paths.OUR_STATE}/hold", "while it exists, kubelet starts without the proxy"),
    ("/etc/cri-resmgr/pause", "while it exists, the daemon changes nothing"),
    (f"{paths.OUR_RUNTIME}/", "what does not survive a reboot"),
    (f"/usr/share/doc/{NAME}/docs/", "the whole documentation"),
)
_SEE_ALSO = "kubectl(1), systemctl(1), journalctl(1), kubelet(1), ctr(8)"
Verbs = dict[str, argparse.ArgumentParser]


def public_parser() -> tuple[argparse.ArgumentParser, Verbs]:
    """Return the parser and those of its commands, without what only the daemon runs."""
    parser, _ = build_parser()
    (commands,) = (each for each in parser._actions if isinstance(each, argparse._SubParsersAction))
    for verb in INTERNAL_VERBS:
        del commands.choices[verb]
    return parser, dict(commands.choices)


def options_of(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Return those that are explained, each once."""
    hidden = (argparse.SUPPRESS, None)
    commands = argparse._SubParsersAction
    return [each for each in parser._actions if each.help not in hidden and not isinstance(each, commands)]


def manual_page(date: str) -> str:
    """Return it as troff."""
    return "\n".join(_lines(date)) + "\n"


def _lines(date: str) -> Iterator[str]:
    parser, verbs = public_parser()
    yield f'.TH {NAME.upper()} 8 "{date}" "{NAME} {__version__}" "System administration"'
    yield from (".SH NAME", f"{escaped(NAME)} \\- {escaped(WHATIS)}")
    yield from (".SH SYNOPSIS", f".B {escaped(NAME)}", "[\\fIOPTIONS\\fR] \\fICOMMAND\\fR")
    yield from (".SH DESCRIPTION", escaped(parser.description or ""))
    yield from (".SH OPTIONS", "These may stand before or after the command.")
    yield from _entries(parser)
    yield ".SH COMMANDS"
    shared = {option for each in options_of(parser) for option in each.option_strings} - {"--output"}
    for verb, its in verbs.items():
        yield f".SS {escaped(verb)}"
        yield escaped(its.description or "")
        yield from _entries(its, shared)
        yield from _example((its.epilog or "").partition("\n")[2].strip())
    yield ".SH EXIT STATUS"
    for code, meaning in EXIT_STATUS:
        yield from _entry(code, meaning)
    yield from (".SH ENVIRONMENT", escaped(ENVIRONMENT))
    yield ".SH FILES"
    for path, meaning in _FILES:
        yield from _entry(path, meaning)
    yield ".SH EXAMPLES"
    for example in EXAMPLES:
        yield from _example(example)
    yield from (".SH SEE ALSO", escaped(_SEE_ALSO))


def _entries(
    parser: argparse.ArgumentParser, without: set[str] | frozenset[str] = frozenset()
) -> Iterator[str]:
    for each in options_of(parser):
        if not set(each.option_strings).intersection(without):
            name = ", ".join(each.option_strings)
            yield from _entry(f"{name} {_value(each)}".strip(), (each.help or "") % vars(each))


def _value(action: argparse.Action) -> str:
    if action.nargs == 0:
        return ""
    metavar = action.metavar if isinstance(action.metavar, str) else action.dest
    value = "|".join(map(str, action.choices)) if action.choices else metavar
    return f"[{value}]" if action.nargs == "?" else f"[{value} ...]" if action.nargs == "*" else value


def _entry(term: str, meaning: str) -> Iterator[str]:
    yield from (".TP", f"\\fB{escaped(term)}\\fR", escaped(meaning))


def _example(command: str) -> Iterator[str]:
    yield from (".PP", ".nf", ".RS 4", escaped(command), ".RE", ".fi")


def escaped(text: str) -> str:
    """Return the text as troff prints it: no line is a request, no hyphen is broken or turned."""
    plain = text.replace("\\", "\\e").replace("-", "\\-")
    return "\n".join(re.sub(r"^([.'])", r"\\&\1", line) for line in plain.splitlines())


def completing(mark: dict[str, object]) -> argparse.ArgumentParser:
    """Return the parser for shtab, which completes files and directories where one is the value: `mark` has
    its marks by the word that stands for the value."""
    parser, verbs = public_parser()
    for each in (parser, *verbs.values()):
        for action in each._actions:
            if isinstance(action.metavar, str) and action.metavar in mark:
                action.complete = mark[action.metavar]  # type: ignore[attr-defined]
    return parser
