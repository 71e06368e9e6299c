"""Reads the command line and the environment, and checks that the user is root. Runs nothing."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from installer.cli.grammar import ENVIRONMENT_PREFIX, OWN_OUTPUTS, UsageError, build_parser
from installer.errors import InvalidInputError, UnservableHostError

_DEFAULTS = {"host_root": "/", "payload": "/payload", "output": "text"}


@dataclass(frozen=True, slots=True)
class Options:
    """The global options after precedence: flag, then environment, then default."""

    config: Path | None
    host_root: Path
    payload: Path
    payload_given: bool
    configs: Path | None
    default_configs: bool
    take_over: bool
    output: str
    verbose: bool
    typed: str = ""  # of these options, those that stand on the command line and tell which host and inputs


def _options(arguments: argparse.Namespace) -> Options:
    def chosen(name: str) -> str:
        default = os.environ.get(ENVIRONMENT_PREFIX + name.upper(), _DEFAULTS.get(name, ""))
        return str(getattr(arguments, name, default))

    def switched_on(name: str) -> bool:
        value = chosen(name).lower()
        if value not in ("", "true", "false"):
            variable = ENVIRONMENT_PREFIX + name.upper()
            raise InvalidInputError([f"{variable}: must be true or false, not {value!r}"])
        return value == "true"

    output, configs = chosen("output"), chosen("configs")
    if (only := OWN_OUTPUTS.get(output, arguments.command)) != arguments.command:
        raise UsageError(
            [f"--output {output}: only `{only}` can print it"], "see `cri-resmgr-installer --help`"
        )
    if output not in ("text", "json", *OWN_OUTPUTS):
        raise InvalidInputError([f"{ENVIRONMENT_PREFIX}OUTPUT: must be text or json, not {output!r}"])
    defaults = switched_on("default_configs")
    given, default_given = hasattr(arguments, "configs"), hasattr(arguments, "default_configs")
    if given and default_given:
        raise UsageError(["--configs and --default-configs exclude each other"])
    by_default = default_given or (defaults and not given)
    return Options(
        config=Path(chosen("config")) if chosen("config") else None,
        host_root=Path(chosen("host_root")),
        payload=Path(chosen("payload")),
        payload_given=hasattr(arguments, "payload") or f"{ENVIRONMENT_PREFIX}PAYLOAD" in os.environ,
        configs=Path(configs) if configs and not by_default else None,
        default_configs=by_default,
        take_over=switched_on("take_over"),
        output=output,
        verbose=getattr(arguments, "verbose", False),
        typed=_typed(arguments),
    )


def _typed(arguments: argparse.Namespace) -> str:
    words = []
    for name in ("config", "host_root", "payload", "configs"):
        if hasattr(arguments, name):
            words += [f"--{name.replace('_', '-')}", getattr(arguments, name)]
    words += ["--default-configs"] if hasattr(arguments, "default_configs") else []
    return shlex.join(words)


def parse_options(argv: Sequence[str] | None) -> tuple[argparse.Namespace, Options]:
    """Parse the command line, and return the global options after precedence as well.

    Raises UsageError, and InvalidInputError for a bad environment. Help is printed, and ends the program.
    """
    parser, verbs = build_parser()
    arguments, unknown = parser.parse_known_args(argv)
    if unknown:
        verbs[arguments.command].refuse(unknown)
    return arguments, _options(arguments)


def require_root() -> None:
    """Raise UnservableHostError for any other user."""
    if os.geteuid() != 0:
        raise UnservableHostError("must run as root", "use sudo, or a privileged container")


def asked_output(argv: Sequence[str] | None) -> str:
    """Return the output format of a command line that cannot be parsed."""
    output = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    output.add_argument("--output", default=os.environ.get(f"{ENVIRONMENT_PREFIX}OUTPUT"))
    with contextlib.suppress(argparse.ArgumentError):
        return "json" if output.parse_known_args(argv)[0].output == "json" else "text"
    return "text"
