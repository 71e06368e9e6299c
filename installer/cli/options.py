"""The command line's grammar: global options, verbs, help. Says what was asked for, and whether this user may
ask for it; runs nothing."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from installer.errors import InvalidInputError, UnservableHostError

ENVIRONMENT_PREFIX = "CRI_RESMGR_INSTALLER_"
DAEMON_VERBS = ("run", "settings", "rescue", "cluster-heartbeat", "cluster-decommission")
_DEFAULTS = {
    "config": "",
    "host_root": "/",
    "payload": "/payload",
    "configs": "",
    "output": "text",
}
_DESCRIPTION = "Installs, keeps and removes CRI-Resource-Manager on a Kubernetes node."
_EPILOG = """exit codes:
  0    converged, nothing to do
  2    bad settings, configs, payload or usage; nothing touched
  3    plan: changes pending; status: not converged or not healthy
  4    this host cannot or should not be served; nothing touched
  5    failed, and the previous state is in place
  6    failed, and the rollback failed too: the message says what to do by hand
  75   another run is active on this host
  128+n  ended by signal n between two steps; run it again"""


@dataclass(frozen=True, slots=True)
class Options:
    """The global options after precedence: flag, then environment, then default."""

    config: Path | None
    host_root: Path
    payload: Path
    configs: Path | None
    output: str
    verbose: bool


class UsageError(InvalidInputError):
    """The command line is wrong; `parser` is of the command that was meant."""

    def __init__(self, parser: argparse.ArgumentParser, message: str) -> None:
        super().__init__([message], " ".join(parser.format_usage().split()))
        self.parser = parser


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(self, message)


def build_parser() -> argparse.ArgumentParser:
    """Global options are accepted before and after the command. Parsing raises UsageError."""
    shared = _Parser(add_help=False, argument_default=argparse.SUPPRESS)
    shared.add_argument("--config", metavar="FILE", help="settings (YAML); default: built-in defaults")
    shared.add_argument("--host-root", metavar="DIR", help="where the host's / is seen; default /")
    shared.add_argument("--payload", metavar="DIR", help="the unpacked release; default /payload")
    shared.add_argument("--configs", metavar="DIR", help="fallback.cfg, force.cfg, EXTRA_OPTIONS.cfg")
    shared.add_argument("--output", choices=("text", "json"), help="default text")
    shared.add_argument("-v", "--verbose", action="store_true", help="more detail; tracebacks of bugs")
    parser = _Parser(
        "cri-resmgr-installer",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        parents=[shared],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    plan = verbs.add_parser("plan", parents=[shared], help="show what would change; touches nothing")
    plan.add_argument("--mode", choices=("install", "remove"), default=None)
    install = verbs.add_parser("install", parents=[shared], help="converge the host to installed, once")
    install.add_argument("--retry", action="store_true", help="try a generation again that failed here")
    install.add_argument(
        "--accept-pending", action="store_true", help="make a pending edit of kubelet's unit live"
    )
    install.add_argument("--keep-kubelet", action="store_true", help=argparse.SUPPRESS)
    install.add_argument("--unattended", action="store_true", help=argparse.SUPPRESS)
    remove = verbs.add_parser("remove", parents=[shared], help="converge the host to removed, once")
    remove.add_argument(
        "--without-record",
        action="store_true",
        help="without a usable record: delete all files at our paths",
    )
    _add_daemon_verbs(verbs, shared)
    verbs.add_parser("status", parents=[shared], help="show both units, every file and the relay")
    _add_manifests(verbs, shared)
    return parser


def _add_manifests(verbs: Any, shared: argparse.ArgumentParser) -> None:
    manifests = verbs.add_parser("manifests", parents=[shared], help="print Kubernetes YAML")
    manifests.add_argument("--values", type=Path, metavar="FILE", help="what the YAML is made from")
    manifests.add_argument("--mode", choices=("install", "remove"), default=None)
    manifests.add_argument(
        "--provider-config",
        type=Path,
        metavar="FILE",
        action="append",
        default=[],
        help="a Gardener Shoot, its providerConfig, or a ControllerDeployment; later ones override",
    )
    manifests.add_argument(
        "--managed-resource", action="store_true", help="wrap everything in a ManagedResource (Gardener)"
    )
    manifests.add_argument("--profile", choices=("privileged", "restricted"), default=None)
    manifests.add_argument("--nodes", metavar="A,B,C", help="only these nodes")
    manifests.add_argument("--agent", action=argparse.BooleanOptionalAction, default=None)
    manifests.add_argument(
        "--image",
        metavar="[NAME=]REFERENCE",
        action="append",
        default=[],
        help="the image of the installer, or installer=... and agent=...",
    )


def _options(arguments: argparse.Namespace) -> Options:
    def chosen(name: str) -> str:
        default = os.environ.get(ENVIRONMENT_PREFIX + name.upper(), _DEFAULTS[name])
        return str(getattr(arguments, name, default))

    output = chosen("output")
    if output not in ("text", "json"):
        raise InvalidInputError([f"{ENVIRONMENT_PREFIX}OUTPUT: must be text or json, not {output!r}"])
    return Options(
        config=Path(chosen("config")) if chosen("config") else None,
        host_root=Path(chosen("host_root")),
        payload=Path(chosen("payload")),
        configs=Path(chosen("configs")) if chosen("configs") else None,
        output=output,
        verbose=getattr(arguments, "verbose", False),
    )


def parse_options(argv: Sequence[str] | None) -> tuple[argparse.Namespace, Options]:
    """The command line, and the global options after precedence.

    Exits with argparse's own words where the usage is wrong; raises UsageError instead if JSON was asked for.
    Raises InvalidInputError for a bad environment.
    """
    arguments = _parse(argv)
    return arguments, _options(arguments)


def require_root() -> None:
    """Raises UnservableHostError for any other user."""
    if os.geteuid() != 0:
        raise UnservableHostError("this has to run as root", "sudo, or a privileged container")


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    try:
        return build_parser().parse_args(argv)
    except UsageError as error:
        output = argparse.ArgumentParser(add_help=False, exit_on_error=False)
        output.add_argument("--output", default=os.environ.get(f"{ENVIRONMENT_PREFIX}OUTPUT"))
        with contextlib.suppress(argparse.ArgumentError):
            if output.parse_known_args(argv)[0].output == "json":
                raise
        argparse.ArgumentParser.error(error.parser, error.message)


def _add_daemon_verbs(verbs: Any, shared: argparse.ArgumentParser) -> None:
    """Only `run` has a help text: verbs without one are not listed."""
    verbs.add_parser("run", parents=[shared], help="daemon: converge, then watch (settings' mode)")
    verbs.add_parser("settings", parents=[shared])
    rescue = verbs.add_parser("rescue", parents=[shared])
    rescue.add_argument("--reason", default="")
    rescue.add_argument("--hold-only", action="store_true")
    rescue.add_argument("--restart-proxy", action="store_true")
    for verb in ("cluster-heartbeat", "cluster-decommission"):
        verbs.add_parser(verb, parents=[shared]).add_argument("request")
