"""Reads the command line and the environment, and checks that the user is root. Runs nothing."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from installer.cli.grammar import ENVIRONMENT_PREFIX, OWN_OUTPUTS, UsageError, build_parser
from installer.errors import InvalidInputError, UnservableHostError
from installer.model.names import REMEMBERED, spell

_DEFAULTS = {"host_root": "/", "payload": "/payload", "output": "text"}
_OF_HOST = ("config", "host_root", "payload", "configs", "default_configs")
_OF_CLUSTER = ("kubeconfig", "context", "namespace", "name")


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
    typed: Mapping[str, str] = field(default_factory=dict)  # what stands on the command line
    chosen: bool = False  # settings, payload or configs are given, here or by the environment

    @property
    def asked(self) -> dict[str, str]:
        """What is given of settings, payload and configs, for a process in any directory."""
        payload = self.payload if self.payload_given else None
        given = {"config": self.config, "payload": payload, "configs": self.configs}
        asked = {name: os.path.abspath(value) for name, value in given.items() if value}
        return asked | ({"default_configs": ""} if self.default_configs else {})

    def retype(self, command: str, last: Callable[[], Mapping[str, str]]) -> str:
        """Return a command for this host as this person has to type it next: with the options of now, else
        with those of the `last` run that it needs."""
        verb = command.partition(" ")[0]
        needs = REMEMBERED if verb in ("plan", "install") else ("config",)
        options = {} if self.chosen else {name: value for name, value in last().items() if name in needs}
        options |= {name: self.typed[name] for name in _OF_HOST if name in self.typed}
        if verb == "history":
            options = {name: value for name, value in options.items() if name == "host_root"}
        return f"{spell(options)} {command}".strip()

    def retype_for_cluster(self, command: str) -> str:
        """The same of a command for a cluster, or of kubectl."""
        takes = _OF_CLUSTER[:2] if command == "kubectl" else _OF_CLUSTER
        lacks = [name for name in takes if name in self.typed and f"--{name} " not in f"{command} "]
        return f"{command} {spell({name: self.typed[name] for name in lacks})}".strip()


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
    payload_given = hasattr(arguments, "payload") or f"{ENVIRONMENT_PREFIX}PAYLOAD" in os.environ
    return Options(
        config=Path(chosen("config")) if chosen("config") else None,
        host_root=Path(chosen("host_root")),
        payload=Path(chosen("payload")),
        payload_given=payload_given,
        configs=Path(configs) if configs and not by_default else None,
        default_configs=by_default,
        take_over=switched_on("take_over"),
        output=output,
        verbose=getattr(arguments, "verbose", False),
        typed=_typed(arguments),
        chosen=payload_given or by_default or bool(chosen("config") or configs),
    )


def _typed(arguments: argparse.Namespace) -> dict[str, str]:
    given = vars(arguments)
    typed = {name: str(given[name]) for name in (*_OF_HOST, *_OF_CLUSTER) if given.get(name)}
    return typed | {"default_configs": ""} if "default_configs" in typed else typed


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
