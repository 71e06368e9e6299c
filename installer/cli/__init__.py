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
from typing import TYPE_CHECKING, Any, NoReturn

from installer.errors import InstallerError, InvalidInputError, UnservableHostError

if TYPE_CHECKING:
    from installer.inputs.settings import Settings

_ENVIRONMENT_PREFIX = "CRI_RESMGR_INSTALLER_"
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
    verbs.add_parser("run", parents=[shared], help="resident: converge, then watch (settings' mode)")
    verbs.add_parser("status", parents=[shared], help="what is there, unit by unit")
    _add_manifests(verbs, shared)
    _add_verbs_of_the_resident(verbs, shared)
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


def _add_verbs_of_the_resident(verbs: Any, shared: argparse.ArgumentParser) -> None:
    """What `run` asks of its children; without help, so that they are not listed."""
    verbs.add_parser("settings", parents=[shared])
    rescue = verbs.add_parser("rescue", parents=[shared])
    rescue.add_argument("--reason", default="")
    rescue.add_argument("--hold-only", action="store_true")
    rescue.add_argument("--restart-proxy", action="store_true")
    for talk in ("cluster-heartbeat", "cluster-evidence"):
        verbs.add_parser(talk, parents=[shared]).add_argument("request")


def _options(arguments: argparse.Namespace) -> Options:
    def chosen(name: str) -> str:
        default = os.environ.get(_ENVIRONMENT_PREFIX + name.upper(), _DEFAULTS[name])
        return str(getattr(arguments, name, default))

    output = chosen("output")
    if output not in ("text", "json"):
        raise InvalidInputError([f"{_ENVIRONMENT_PREFIX}OUTPUT: must be text or json, not {output!r}"])
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
        output.add_argument("--output", default=os.environ.get(f"{_ENVIRONMENT_PREFIX}OUTPUT"))
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


def _stay(options: Options) -> int:
    """The verb `run`: a process that loads no more than it needs for the rest of its life."""
    from installer.daemon.cluster.client import ApiCluster
    from installer.daemon.cluster.pod_context import find_pod_context
    from installer.daemon.loop import Command, Daemon
    from installer.host.files import RootedFiles
    from installer.host.watch import Child
    from installer.model.daemon import NoCluster
    from installer.report.events import build_reporter

    if os.geteuid() != 0:
        raise UnservableHostError("this has to run as root", "sudo, or a privileged container")
    given = {
        name: os.environ[_ENVIRONMENT_PREFIX + name.upper()]
        for name in ("ready_file", "pod_uid", "good_seconds")
        if _ENVIRONMENT_PREFIX + name.upper() in os.environ
    }
    command = Command(
        options.host_root,
        options.payload,
        options.configs,
        options.config,
        Path(given.get("ready_file", "/run/cri-resmgr-installer/ready")),
        given.get("pod_uid", ""),
        _seconds(given.get("good_seconds", "60")),
    )
    emit = build_reporter(options.output, sys.stdout, options.verbose)
    place = find_pod_context(os.environ)
    cluster = ApiCluster(place, emit, RootedFiles(options.host_root), Child) if place else NoCluster()
    return Daemon(command, emit, cluster).run()


def _talk(arguments: argparse.Namespace) -> int:
    """A child of `run` that asks and tells the API server; loads nothing else."""
    from installer.daemon.cluster import evidence, heartbeat

    talk = heartbeat if arguments.command == "cluster-heartbeat" else evidence
    print(talk(arguments.request))
    return 0


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        name = f"{_ENVIRONMENT_PREFIX}GOOD_SECONDS"
        raise InvalidInputError([f"{name}: must be a number of seconds, not {text!r}"]) from None


def _help_resident(arguments: argparse.Namespace, options: Options, settings: Settings) -> int:
    """The verbs that only `run` uses, in its children."""
    from installer.daemon.rescue import hold_kubelet, restart_proxy
    from installer.host.clock import install_signal_handlers
    from installer.host.real import build_host
    from installer.report import build_reporter

    if arguments.command == "settings":
        print(settings.model_dump_json(by_alias=True))
        return 0
    install_signal_handlers()
    host, emit = build_host(options.host_root), build_reporter(options.output, sys.stdout, options.verbose)
    if arguments.restart_proxy:
        restart_proxy(settings, host, emit)
    else:
        hold_kubelet(settings, host, emit, arguments.reason, restart=not arguments.hold_only)
    return 0


def _print_manifests(arguments: argparse.Namespace) -> int:
    from installer.manifests import Request, render_manifests

    request = Request(
        values=arguments.values,
        provider_configs=tuple(arguments.provider_config),
        mode=arguments.mode,
        profile=arguments.profile,
        nodes=arguments.nodes,
        agent=arguments.agent,
        images=tuple(arguments.image),
        managed_resource=arguments.managed_resource,
    )
    sys.stdout.write(render_manifests(request))
    return 0


def _run(arguments: argparse.Namespace, options: Options) -> int:
    if arguments.command == "run":
        return _stay(options)
    if arguments.command in ("cluster-heartbeat", "cluster-evidence"):
        return _talk(arguments)
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
    if command in ("settings", "rescue"):
        return _help_resident(arguments, options, settings)
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
