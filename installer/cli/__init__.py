"""The command line: verbs, options, exit codes. The only place that builds the real host and exits.

Decides nothing about the host: `installer.reconcile` does.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from installer.cli.daemon import DAEMON_VERBS, ENVIRONMENT_PREFIX, add_verbs, run_verb
from installer.errors import InstallerError, InvalidInputError, UnservableHostError

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
  6    failed, and the way back failed too: the message says what to do by hand
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
    shared.add_argument("-v", "--verbose", action="store_true", help="tell more; tracebacks of bugs")
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
        "--accept-pending", action="store_true", help="make somebody's pending edit of kubelet's unit live"
    )
    install.add_argument("--keep-kubelet", action="store_true", help=argparse.SUPPRESS)
    install.add_argument("--unattended", action="store_true", help=argparse.SUPPRESS)
    remove = verbs.add_parser("remove", parents=[shared], help="converge the host to removed, once")
    remove.add_argument(
        "--without-record", action="store_true", help="without a usable record: delete all at our paths"
    )
    add_verbs(verbs, shared)
    verbs.add_parser("status", parents=[shared], help="what is there, unit by unit")
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
    manifests.add_argument("--managed-resource", action="store_true", help="wrap all for Gardener")
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


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Exits with argparse's own words, unless what can be read of a command line that is wrong asks for JSON:
    raises UsageError then."""
    try:
        return build_parser().parse_args(argv)
    except UsageError as error:
        output = argparse.ArgumentParser(add_help=False, exit_on_error=False)
        output.add_argument("--output", default=os.environ.get(f"{ENVIRONMENT_PREFIX}OUTPUT"))
        with contextlib.suppress(argparse.ArgumentError):
            if output.parse_known_args(argv)[0].output == "json":
                raise
        argparse.ArgumentParser.error(error.parser, error.message)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code (the exit codes of --help)."""
    try:
        arguments = _parse(argv)
    except UsageError as error:
        return _fail(error, "json")
    output, verbose = "text", getattr(arguments, "verbose", False)
    try:
        options = _options(arguments)
        output = options.output
        return _run(arguments, options)
    except InstallerError as error:
        return _fail(error, output)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if verbose:
            raise
        print(f"error: {type(error).__name__}: {error} (a bug; -v shows where)", file=sys.stderr)
        return 1


def _fail(error: InstallerError, output: str) -> int:
    from installer.report import report_error

    report_error(error, output, sys.stdout if output == "json" else sys.stderr)
    return error.exit_code


def _print_manifests(arguments: argparse.Namespace) -> int:
    from installer.manifests import ManifestOptions, render_manifests

    options = ManifestOptions(
        values=arguments.values,
        provider_configs=tuple(arguments.provider_config),
        mode=arguments.mode,
        profile=arguments.profile,
        nodes=arguments.nodes,
        agent=arguments.agent,
        images=tuple(arguments.image),
        managed_resource=arguments.managed_resource,
    )
    sys.stdout.write(render_manifests(options))
    return 0


def _run(arguments: argparse.Namespace, options: Options) -> int:
    if arguments.command in DAEMON_VERBS:
        return run_verb(arguments, options)
    if arguments.command == "manifests":
        return _print_manifests(arguments)

    from installer.host.clock import install_signal_handlers
    from installer.host.real import build_host
    from installer.inputs.load import Request
    from installer.inputs.settings import load_settings
    from installer.model.state import Mode
    from installer.reconcile import look, reconcile
    from installer.report import build_reporter, print_plan, print_status

    settings = load_settings(options.config)
    if os.geteuid() != 0:
        raise UnservableHostError("this has to run as root", "sudo, or a privileged container")
    command = arguments.command
    install_signal_handlers()
    mode = Mode.REMOVE if command == "remove" else Mode.INSTALL
    if command == "plan":
        mode = Mode(arguments.mode or settings.mode)
    request = Request(
        mode=mode,
        settings=settings,
        payload=options.payload,
        configs=options.configs,
        retry=getattr(arguments, "retry", False),
        accept_pending=getattr(arguments, "accept_pending", False),
        without_record=getattr(arguments, "without_record", False),
        keep_kubelet=getattr(arguments, "keep_kubelet", False),
        unattended=getattr(arguments, "unattended", False),
    )
    host = build_host(options.host_root)
    if command == "plan":
        plan = look(request, host).plan
        print_plan(plan, options.output, sys.stdout)
        if plan.refusals:
            return UnservableHostError.exit_code
        return 3 if plan.steps else 0
    if command == "status":
        return print_status(look(request, host), options.output, sys.stdout)
    reconcile(request, host, build_reporter(options.output, sys.stdout, options.verbose))
    return 0


if __name__ == "__main__":
    sys.exit(main())
