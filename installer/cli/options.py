"""The command line's grammar: global options, verbs, help. Says what was asked for, and whether this user may
ask for it; runs nothing."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from installer import __version__
from installer.cli.manifest_options import add_manifests
from installer.errors import InvalidInputError, UnservableHostError
from installer.inputs.reading import suggest

ENVIRONMENT_PREFIX = "CRI_RESMGR_INSTALLER_"
INTERNAL_VERBS = ("settings", "pass", "talk")
DAEMON_VERBS = ("run", *INTERNAL_VERBS)
_DEFAULTS = {
    "config": "",
    "host_root": "/",
    "payload": "/payload",
    "configs": "",
    "default_configs": "",
    "take_over": "",
    "output": "text",
}
_OWN_OUTPUTS = {"html": "report", "yaml": "translate", "helm": "translate"}
"""Forms of the output that one command alone can print."""
_RENAMED = {"--adopt": "--take-over"}
_PROGRAM = "cri-resmgr-installer"
_NODE = f"{_PROGRAM} --payload /root/payload --configs /root/configs"
_DESCRIPTION = "Installs, keeps and removes CRI-Resource-Manager on a Kubernetes node."
_EPILOG = f"""environment:
  {ENVIRONMENT_PREFIX}CONFIG, _PAYLOAD, _CONFIGS, _DEFAULT_CONFIGS, _TAKE_OVER, _HOST_ROOT and _OUTPUT
  stand for the options of these names; an option takes precedence. These options may stand
  before or after the command.

exit codes:
  0    converged, nothing to do
  1    a bug (-v shows where), or this machine lacks what every program needs
  2    bad settings, configs, payload or usage; nothing touched
  3    plan: changes pending; status: not converged or not healthy
  4    this host cannot or should not be served; nothing touched
  5    failed, and the previous state is in place
  6    failed, and the rollback failed too: the message says what to do by hand
  75   another run is active on this host
  128+n  ended by signal n between two steps; run it again

examples:
  cri-resmgr-installer --payload /root/payload --configs /root/configs plan
  cri-resmgr-installer --payload /root/payload --configs /root/configs install
  kubectl -n kube-system exec POD -- cri-resmgr-installer status"""


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


class UsageError(InvalidInputError):
    """The command line is wrong. `output` is how that is to be said: text or json."""

    output = "text"


class _Parser(argparse.ArgumentParser):
    """Takes no abbreviations, which a later option would make ambiguous or another one, and says what an
    unknown word was probably meant to be. Raises UsageError."""

    def __init__(self, prog: str | None = None, **options: Any) -> None:
        super().__init__(prog, allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        raise UsageError([message], f"`{self.prog} --help` says what is possible")

    def _check_value(self, action: argparse.Action, value: object) -> None:
        if isinstance(action.choices, dict) and value not in action.choices:
            listed = [name for name in action.choices if name not in INTERNAL_VERBS]
            self.error(f"unknown command {value!r}; {suggest(str(value), listed)}")
        super()._check_value(action, value)

    def refuse(self, words: Sequence[str]) -> NoReturn:
        """What no option and no command takes."""
        options = [word.partition("=")[0] for word in words if word.startswith("-")]
        known = [name for name in self._option_string_actions if name.startswith("--")]
        faults = []
        for option in options:
            if option in _RENAMED:
                faults.append(f"{option} is called {_RENAMED[option]} now")
                continue
            close = suggest(option, known)
            faults.append(f"unknown option {option}" + (f"; {close}" if close.startswith("did") else ""))
        faults = faults or [f"unexpected word {word!r}" for word in words]
        raise UsageError(faults, f"`{self.prog} --help` says what is possible")


def _output_options() -> _Parser:
    """What every command takes."""
    shared = _Parser(add_help=False, argument_default=argparse.SUPPRESS)
    shared.add_argument(
        "--output",
        choices=("text", "json", *_OWN_OUTPUTS),
        help="default: text; html is for `report` only, yaml and helm for `translate`, whose default is yaml",
    )
    shared.add_argument("-v", "--verbose", action="store_true", help="more detail, and tracebacks of bugs")
    return shared


def _host_options(output: _Parser) -> _Parser:
    """What every command that looks at a node takes."""
    shared = _Parser(add_help=False, argument_default=argparse.SUPPRESS, parents=[output])
    shared.add_argument("--config", metavar="FILE", help="settings (YAML); default: built-in settings")
    shared.add_argument("--host-root", metavar="DIR", help="where the host's / is mounted; default: /")
    shared.add_argument("--payload", metavar="DIR", help="the unpacked release; default: /payload")
    shared.add_argument(
        "--configs", metavar="DIR", help="directory with fallback.cfg, force.cfg, EXTRA_OPTIONS.cfg"
    )
    shared.add_argument("--default-configs", action="store_true", help="use no configs: the policy is none")
    return shared


def build_parser() -> tuple[argparse.ArgumentParser, Mapping[str, _Parser]]:
    """The parser, and that of each command by its name. Options that many commands share are accepted before
    the command as well. Parsing raises UsageError."""
    output = _output_options()
    shared = _host_options(output)
    parser = _Parser(
        "cri-resmgr-installer",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        parents=[shared],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"cri-resmgr-installer {__version__}")
    verbs = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", title="commands")

    def add(verb: str, purpose: str, example: str, on_host: bool = False) -> _Parser:
        return verbs.add_parser(
            verb,
            parents=[shared if on_host else output],
            help=purpose,
            description=f"{purpose[0].upper()}{purpose[1:]}.",
            epilog=f"example:\n  {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    _add_changing_verbs(partial(add, on_host=True))
    _add_watching_verbs(partial(add, on_host=True))
    manifests = "print the Kubernetes objects as YAML; needs neither root nor a host"
    add_manifests(
        add("manifests", manifests, f"{_PROGRAM} manifests --values values.yaml | kubectl apply -f -")
    )
    report = "show every node of a cluster, how it does and why, with your kubeconfig"
    _add_report(add("report", report, f"{_PROGRAM} report --nodes"))
    rollout = "show who may restart kubelet and who waits; pause, resume or retry"
    _add_rollout(add("rollout", rollout, f"{_PROGRAM} rollout pause --why 'maintenance until noon'"))
    uninstall = "clean every node of a cluster, then delete the installer's objects from it"
    _add_uninstall(add("uninstall", uninstall, f"{_PROGRAM} uninstall --dry-run"))
    translate = "print nri-plugins' configuration for that of cri-resmgr; touches nothing"
    _add_translate(add("translate", translate, f"{_PROGRAM} translate --configs /root/configs"))
    extension = "run Gardener's controller, in a pod of a seed; see docs/gardener.md"
    values = "/etc/gardener-extension-cri-resmgr/values.yaml"
    _add_extension(add("extension", extension, f"{_PROGRAM} --output json extension --values {values}"))
    _add_internal_verbs(verbs, shared)
    return parser, verbs.choices


def _add_changing_verbs(add: Callable[[str, str, str], argparse.ArgumentParser]) -> None:
    plan = add(
        "plan", "show each step that would change this host, and why; touches nothing", f"{_NODE} plan --diff"
    )
    plan.add_argument("--mode", choices=("install", "remove"), help="default: as the settings say")
    plan.add_argument("--diff", action="store_true", help="also show the changed text of each file")
    install = add("install", "install cri-resmgr on this host, or update it, once", f"{_NODE} install")
    for verb in (plan, install):
        verb.add_argument(
            "--retry", action="store_true", help="try a generation again that failed on this host"
        )
        verb.add_argument(
            "--accept-pending",
            action="store_true",
            help="let the daemon-reload make a pending edit of kubelet's unit live",
        )
        verb.add_argument(
            "--take-over",
            action="store_true",
            default=argparse.SUPPRESS,
            help="take over an installation of cri-resmgr that another installer has made",
        )
    remove = add(
        "remove",
        "move kubelet back to its runtime and remove cri-resmgr from this host",
        f"{_PROGRAM} remove",
    )
    for verb in (plan, remove):
        verb.add_argument(
            "--without-record",
            action="store_true",
            help="if the record is lost: delete every file at a path that the installer uses",
        )
    for verb in (plan, install, remove):
        _add_despite_pause(verb)


def _add_watching_verbs(add: Callable[[str, str, str], argparse.ArgumentParser]) -> None:
    add("run", "run the daemon: converge this host, then keep watching it", f"{_NODE} run")
    history = add(
        "history", "show what changed on this host, when, by whom and why", f"{_PROGRAM} history -n 50"
    )
    history.add_argument("-n", "--lines", type=_count, default=20, metavar="COUNT", help="default: 20")
    status = add(
        "status",
        "show whether this host is converged and healthy, and its last change; touches nothing",
        "kubectl -n kube-system exec POD -- cri-resmgr-installer status",
    )
    status.add_argument(
        "--wait",
        type=_count,
        nargs="?",
        const=300,
        metavar="SECONDS",
        help="wait until it is converged and healthy, at most this long; default: 300",
    )


def _add_despite_pause(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--despite-pause", action="store_true", help="proceed even if the node is paused")


def _count(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= 1000:
        raise argparse.ArgumentTypeError(f"must be a number from 1 to 1000, not {text!r}")
    return int(text)


def _add_cluster_options(verb: argparse.ArgumentParser) -> None:
    """As kubectl has them."""
    verb.add_argument("--kubeconfig", default="", metavar="FILE", help="default: as kubectl finds it")
    verb.add_argument(
        "--context", default="", metavar="NAME", help="context of the kubeconfig; default: its current one"
    )
    verb.add_argument("-n", "--namespace", default="", help="namespace of the DaemonSet; default: all")


def _add_report(report: argparse.ArgumentParser) -> None:
    _add_cluster_options(report)
    report.add_argument("--name", default="", help="the value `name` of the manifests; default: all")
    report.add_argument("--nodes", action="store_true", help="add a line for each node")


def _add_rollout(rollout: argparse.ArgumentParser) -> None:
    rollout.add_argument(
        "action",
        choices=("status", "pause", "resume", "retry"),
        help="status: show permits, canaries, and what was stopped and why; pause: let no node start planned "
        "work; resume: end the pause; retry: start stopped generations again",
    )
    rollout.add_argument("--why", default="", help="reason of a pause, shown to everybody")
    rollout.add_argument("--name", default="", help="the value `name` of the manifests; default: all")
    _add_cluster_options(rollout)


def _add_uninstall(uninstall: argparse.ArgumentParser) -> None:
    _add_cluster_options(uninstall)
    uninstall.add_argument(
        "--name",
        default="",
        help="the value `name` of the manifests; needed if there are several installations",
    )
    uninstall.add_argument(
        "--wait",
        type=_seconds,
        metavar="SECONDS",
        help="give up when no node has made progress for this long; default: the setting removal.waitSeconds",
    )
    uninstall.add_argument(
        "--leave-nodes", action="store_true", help="delete everything even if some nodes are not clean"
    )
    sure = uninstall.add_mutually_exclusive_group()
    sure.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    sure.add_argument(
        "--dry-run", action="store_true", help="show what would be done; exit 3 if there is anything to do"
    )


def _add_translate(translate: argparse.ArgumentParser) -> None:
    translate.add_argument(
        "--configs",
        metavar="DIR",
        default=argparse.SUPPRESS,
        help="directory with fallback.cfg, force.cfg, and the agent's default, group.NAME and node.NAME",
    )
    translate.add_argument(
        "--provider-config", type=Path, metavar="FILE", help="what Gardener users have; see docs/gardener.md"
    )
    translate.add_argument("--context", default="", metavar="NAME", help="a cluster of your kubeconfig")
    translate.add_argument("--kubeconfig", default="", metavar="FILE", help="default: as kubectl finds it")
    translate.add_argument(
        "--annotations",
        action="store_true",
        help="print `kubectl patch` for workloads with cri-resmgr's annotations instead",
    )


def _seconds(text: str) -> float:
    if not text.isdecimal() or int(text) > 86_400:
        raise argparse.ArgumentTypeError(f"must be seconds, at most 86400, not {text!r}")
    return float(text)


def _add_extension(extension: argparse.ArgumentParser) -> None:
    extension.add_argument("--values", type=Path, metavar="FILE", help="the values (YAML) for every Shoot")
    extension.add_argument(
        "--provider-config",
        type=Path,
        metavar="FILE",
        action="append",
        default=[],
        help="the values of the ControllerDeployment; those of a Shoot take precedence",
    )
    extension.add_argument(
        "--alive", type=Path, metavar="FILE", help="file to touch while no thread hangs; default: none"
    )


def _options(arguments: argparse.Namespace) -> Options:
    def chosen(name: str) -> str:
        default = os.environ.get(ENVIRONMENT_PREFIX + name.upper(), _DEFAULTS[name])
        return str(getattr(arguments, name, default))

    def switched_on(name: str) -> bool:
        value = chosen(name).lower()
        if value not in ("", "true", "false"):
            variable = ENVIRONMENT_PREFIX + name.upper()
            raise InvalidInputError([f"{variable}: must be true or false, not {value!r}"])
        return value == "true"

    output, configs = chosen("output"), chosen("configs")
    if (only := _OWN_OUTPUTS.get(output, arguments.command)) != arguments.command:
        raise UsageError(
            [f"--output {output}: only `{only}` can print it"], f"`{_PROGRAM} --help` says what is possible"
        )
    if output not in ("text", "json", *_OWN_OUTPUTS):
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
    )


def parse_options(argv: Sequence[str] | None) -> tuple[argparse.Namespace, Options]:
    """The command line, and the global options after precedence.

    Raises UsageError, and InvalidInputError for a bad environment. Help is printed, and ends the program.
    """
    try:
        arguments = _parse(argv)
        return arguments, _options(arguments)
    except UsageError as error:
        error.output = _asked_output(argv)
        raise


def require_root() -> None:
    """Raises UnservableHostError for any other user."""
    if os.geteuid() != 0:
        raise UnservableHostError("must run as root", "use sudo, or a privileged container")


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser, verbs = build_parser()
    arguments, unknown = parser.parse_known_args(argv)
    if unknown:
        verbs[arguments.command].refuse(unknown)
    return arguments


def _asked_output(argv: Sequence[str] | None) -> str:
    """Of a command line that cannot be parsed."""
    output = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    output.add_argument("--output", default=os.environ.get(f"{ENVIRONMENT_PREFIX}OUTPUT"))
    with contextlib.suppress(argparse.ArgumentError):
        return "json" if output.parse_known_args(argv)[0].output == "json" else "text"
    return "text"


def _add_internal_verbs(verbs: Any, shared: argparse.ArgumentParser) -> None:
    """What the daemon's child runs are started with. Without a help text they are not listed."""
    _settings, passes, talk = (verbs.add_parser(verb, parents=[shared]) for verb in INTERNAL_VERBS)
    passes.add_argument("--log", action="store_true")  # see daemon/pass_log.py
    passes.add_argument("order")
    talk.add_argument("request")
