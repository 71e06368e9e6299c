"""The command line's grammar: options, commands, help."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from textwrap import indent
from typing import Any, NoReturn

from installer import __version__
from installer.errors import InvalidInputError
from installer.inputs.reading import suggest

ENVIRONMENT_PREFIX = "CRI_RESMGR_INSTALLER_"
INTERNAL_VERBS = ("pass", "sync")
OWN_OUTPUTS = {"html": "report", "yaml": "translate", "helm": "translate"}
"""Output formats that only one command can print."""
_RENAMED = {"--adopt": "--take-over"}
_PROGRAM = "cri-resmgr-installer"
_NODE = f"{_PROGRAM} --payload /root/payload --configs /root/configs"
_VALUES = "/etc/gardener-extension-cri-resmgr/values.yaml"
ENVIRONMENT = f"""{ENVIRONMENT_PREFIX}CONFIG, _PAYLOAD, _CONFIGS, _DEFAULT_CONFIGS, _TAKE_OVER,
_HOST_ROOT and _OUTPUT set the options of the same names; an option takes precedence. These
options may come before or after the command."""
EXIT_STATUS = (
    ("0", "converged, nothing to do"),
    ("1", "a bug (-v shows where), or this machine is out of memory, processes or file descriptors"),
    ("2", "bad settings, configs, payload or usage; nothing touched"),
    ("3", "plan: changes pending; status: not converged or not healthy"),
    ("4", "this host cannot or should not be served; nothing touched"),
    ("5", "failed, and the previous state is in place"),
    ("6", "failed, and the rollback failed too: the message says what to do by hand"),
    ("69", "the API server does not answer or refuses; what was done before stays"),
    ("75", "another run is active on this host"),
    ("128+n", "ended by signal n between two steps; run it again"),
)
EXAMPLES = (
    f"{_NODE} plan",
    f"{_NODE} install",
    f"kubectl -n kube-system exec POD -- {_PROGRAM} status",
    f"{_PROGRAM} explain exit 4",
)
_NO_ROOT = "Only the commands for a host, and run, need root."


def _epilog() -> str:
    """Return the end of --help."""
    exits = "".join(f"  {code:<7}{meaning}\n" for code, meaning in EXIT_STATUS)
    examples = "".join(f"  {example}\n" for example in EXAMPLES)
    environment = indent(ENVIRONMENT, "  ")
    return (
        f"{_NO_ROOT}\n\nenvironment:\n{environment}\n\nexit codes:\n{exits}\nexamples:\n{examples}".rstrip()
    )


class UsageError(InvalidInputError):
    """The command line is wrong."""


class Parser(argparse.ArgumentParser):
    """Takes no abbreviations, which a later option would make ambiguous or give another meaning, and suggests
    what an unknown word was probably meant to be. Raises UsageError."""

    def __init__(self, prog: str | None = None, **options: Any) -> None:
        super().__init__(prog, allow_abbrev=False, **options)

    def flag(self, *names: str, help: str, **more: Any) -> None:
        """Add an option without a value."""
        self.add_argument(*names, action="store_true", help=help, **more)

    def error(self, message: str) -> NoReturn:
        raise UsageError([message], f"see `{self.prog} --help`")

    def _check_value(self, action: argparse.Action, value: object) -> None:
        if isinstance(action.choices, dict) and value not in action.choices:
            listed = [name for name in action.choices if name not in INTERNAL_VERBS]
            self.error(f"unknown command {value!r}; {suggest(str(value), listed)}")
        super()._check_value(action, value)

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        """An empty value is a variable of a script that is not set; it must not become a default."""
        if action.option_strings and "" in arg_strings:
            self.error(f"argument {'/'.join(action.option_strings)}: must not be empty")
        return super()._get_values(action, arg_strings)

    def refuse(self, words: Sequence[str]) -> NoReturn:
        """Raise UsageError for words that no option and no command takes."""
        options = [word.partition("=")[0] for word in words if word.startswith("-")]
        verb = self.prog.rpartition(" ")[2]
        known = [name for name in self._option_string_actions if name.startswith("--")]
        faults = []
        for option in options:
            if option in _RENAMED:
                faults.append(f"{option} was renamed to {_RENAMED[option]}")
                continue
            if option in known:
                faults.append(f"{option} belongs after `{verb}`: `{_PROGRAM} {verb} {option}`")
                continue
            close = suggest(option, known)
            faults.append(f"unknown option {option}" + (f"; {close}" if close.startswith("did") else ""))
        faults = faults or [f"unexpected argument {word!r}" for word in words]
        raise UsageError(faults, f"see `{self.prog} --help`")


def build_parser() -> tuple[Parser, Mapping[str, Parser]]:
    """Build the parser, and the parser of each command by its name. Options that many commands share may
    stand before the command as well. Parsing raises UsageError."""
    output = _output()
    shared = _host_options(output)
    parser = Parser(
        _PROGRAM,
        description="Installs CRI-Resource-Manager on a Kubernetes node, keeps it there, and removes it.",
        epilog=_epilog(),
        parents=[_host_options(_output(*OWN_OUTPUTS))],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"{_PROGRAM} {__version__}")
    verbs = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", title="commands")

    def add(verb: str, purpose: str, example: str, parent: Parser = output) -> Parser:
        own = [name for name, only in OWN_OUTPUTS.items() if only == verb]
        return verbs.add_parser(
            verb,
            parents=[_output(*own) if own else parent],
            help=purpose,
            description=f"{purpose[0].upper()}{purpose[1:]}.",
            epilog=f"example:\n  {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    _add_host_verbs(partial(add, parent=shared))
    said = "print what the runbooks say about a code, an exit code or a phase"
    add("explain", said, f"{_PROGRAM} explain kubelet-masked").add_argument(
        "words", nargs="*", metavar="CODE", help="a code in brackets, `exit 5`, `held`; default: list them"
    )
    shown = f"{_PROGRAM} manifests --values values.yaml | kubectl apply -f -"
    _add_manifests(add("manifests", "print the Kubernetes objects as YAML", shown, _output(hidden=True)))
    _add_cluster_verbs(add)
    plugins = "translate cri-resmgr's configuration for nri-plugins, and print it"
    _add_translate(add("translate", plugins, f"{_PROGRAM} translate --configs /root/configs"))
    controller = "run the controller for Gardener, in a pod on a seed; see docs/gardener.md"
    _add_extension(add("extension", controller, f"{_PROGRAM} --output json extension --values {_VALUES}"))
    # The daemon's child runs. Without a help text they are not listed.
    passes, sync = (verbs.add_parser(verb, parents=[shared]) for verb in INTERNAL_VERBS)
    passes.add_argument("--log", action="store_true")  # see daemon/pass_log.py
    passes.add_argument("order")
    sync.add_argument("request")
    return parser, verbs.choices


def _output(*own: str, hidden: bool = False) -> Parser:
    """Build what every command takes. `own`: what only some commands can print. `hidden`: it is taken, but
    changes nothing."""
    output = Parser(add_help=False, argument_default=argparse.SUPPRESS)
    default = "yaml" if "yaml" in own and "html" not in own else "text"
    said = argparse.SUPPRESS if hidden else f"default: {default}"
    output.add_argument("--output", choices=("text", "json", *own), help=said)
    output.flag("-v", "--verbose", help="more detail, and tracebacks of bugs")
    return output


def _host_options(output: Parser) -> Parser:
    """Build what every command that looks at a node takes."""
    shared = Parser(add_help=False, argument_default=argparse.SUPPRESS, parents=[output])
    shared.add_argument("--config", metavar="FILE", help="settings (YAML); default: built-in settings")
    shared.add_argument("--host-root", metavar="DIR", help="where the host's / is mounted; default: /")
    shared.add_argument("--payload", metavar="DIR", help="the unpacked release; default: /payload")
    configs = "directory with fallback.cfg, force.cfg, EXTRA_OPTIONS.cfg"
    shared.add_argument("--configs", metavar="DIR", help=configs)
    shared.flag("--default-configs", help="run without configs; the policy is `none`")
    return shared


def _add_host_verbs(add: Callable[[str, str, str], Parser]) -> None:
    steps = "show each step that would change this host, and why; touches nothing"
    plan = add("plan", steps, f"{_NODE} plan --diff")
    install = add("install", "install or update cri-resmgr on this host, once", f"{_NODE} install")
    leave = "move kubelet back to its runtime and remove cri-resmgr from this host"
    remove = add("remove", leave, f"{_PROGRAM} remove")
    add("run", "run the daemon: converge this host, then keep watching it", f"{_NODE} run")
    history = add("history", "show what changed on this host, and why", f"{_PROGRAM} history -n 50")
    status = add(
        "status",
        "show whether this host is converged and healthy, and its last change; touches nothing",
        f"kubectl -n kube-system exec POD -- {_PROGRAM} status",
    )
    plan.add_argument("--mode", choices=("install", "remove"), help="default: the setting `mode`")
    plan.flag("--diff", help="also show the changed text of each file")
    for verb in (plan, install):
        verb.flag("--retry", help="retry a generation that failed on this host")
        live = "also apply someone else's pending edit of kubelet's unit"
        verb.flag("--accept-pending", help=live)
        other = "take over cri-resmgr that another installer has put on this host"
        verb.flag("--take-over", help=other, default=argparse.SUPPRESS)
    for verb in (plan, remove):
        lost = "if the record is lost: delete every file at a path that the installer uses"
        verb.flag("--without-record", help=lost)
    for verb in (plan, install, remove):
        verb.flag("--despite-pause", help="proceed even if the node is paused")
    history.add_argument(
        "-n", "--lines", type=_count, default=20, metavar="COUNT", help="how many changes; default: 20"
    )
    status.add_argument(
        "--wait",
        type=_count,
        nargs="?",
        const=300,
        metavar="SECONDS",
        help="wait until the host is converged and healthy, at most this long; default: 300",
    )


def _count(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= 1000:
        raise argparse.ArgumentTypeError(f"must be a number from 1 to 1000, not {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    if not text.isdecimal() or int(text) > 86_400:
        raise argparse.ArgumentTypeError(f"must be seconds, at most 86400, not {text!r}")
    return float(text)


def _add_manifests(manifests: Parser) -> None:
    add = manifests.add_argument
    add("--values", type=Path, metavar="FILE", help="the values (YAML); see docs/operations.md")
    add("--mode", choices=("install", "remove"), help="remove: print the removal, whose pods clean the nodes")
    add(
        "--provider-config",
        type=Path,
        metavar="FILE",
        action="append",
        default=[],
        dest="provider_configs",
        help="a Gardener Shoot, Extension or ControllerDeployment, its values or a providerConfig alone; "
        "see docs/gardener-by-hand.md",
    )
    manifests.flag("--managed-resource", help="wrap everything in a ManagedResource (Gardener)")
    manifests.flag("--monitoring", help="add a PodMonitor, alerts and a Grafana dashboard")
    add("--profile", choices=("privileged", "restricted"), help="rights of the pods; default: privileged")
    add("--nodes", metavar="A,B,C", help="only these nodes")
    add("--agent", action=argparse.BooleanOptionalAction, help="include cri-resmgr-agent, or leave it out")
    image = "image of the installer; NAME is installer, agent or extension"
    add("--image", metavar="[NAME=]REFERENCE", action="append", default=[], dest="images", help=image)
    manifests.flag(
        "--gardener-registration",
        help="instead, print the registration with Gardener; needs --image extension=REFERENCE",
    )
    add(
        "--for",
        dest="registers_for",
        choices=("garden", "operator", "v1beta1"),
        default="garden",
        help="where to register; operator: with gardener-operator; v1beta1: with Gardener before 1.96",
    )
    chart = "where you have pushed the chart of the registration; default: the registration contains it"
    add("--chart-ref", default="", metavar="REFERENCE", help=chart)


def _add_cluster_verbs(add: Callable[[str, str, str], Parser]) -> None:
    report = add(
        "report", "show the state of every node of a cluster, and the reason", f"{_PROGRAM} report --nodes"
    )
    rollout = add(
        "rollout",
        "show which nodes may restart kubelet and which are waiting; pause, resume or retry",
        f"{_PROGRAM} rollout pause --why 'maintenance until noon'",
    )
    uninstall = add(
        "uninstall",
        "clean every node of a cluster, then delete the installer's objects from it",
        f"{_PROGRAM} uninstall --dry-run",
    )
    for verb in (report, rollout, uninstall):
        _add_kubeconfig(verb)
        verb.add_argument("-n", "--namespace", default="", help="namespace of the DaemonSet; default: all")
        verb.add_argument(
            "--name", default="", help="installation name (the chart's value `name`); default: all"
        )
    report.flag("--nodes", help="add a line for each node")
    rollout.add_argument(
        "action",
        choices=("status", "pause", "resume", "retry"),
        help="status: show permits, canaries, and what was stopped and why; pause: let no node start planned "
        "work; resume: end the pause; retry: start stopped generations again",
    )
    rollout.add_argument("--why", default="", help="reason for the pause, shown to everyone")
    wait = "give up when no node makes progress for this long; default: the setting removal.waitSeconds"
    uninstall.add_argument("--wait", type=_seconds, metavar="SECONDS", help=wait)
    uninstall.flag("--leave-nodes", help="delete everything even if some nodes are not clean")
    release = "do nothing unless this Helm release has installed it: for the hook of the chart"
    uninstall.add_argument("--helm-release", default="", metavar="NAMESPACE/NAME", help=release)
    argo_cd = "refuse unless Argo CD has applied it last: for the hook of the chart"
    uninstall.add_argument("--argo-cd", action="store_true", help=argo_cd)
    rights = "delete this ClusterRoleBinding if it fails: for the hook, which has its rights by it"
    uninstall.add_argument("--binding-if-failed", default="", metavar="NAME", help=rights)
    sure = uninstall.add_mutually_exclusive_group()
    sure.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    preview = "show what would be done; exit 3 if there is anything to do"
    sure.add_argument("--dry-run", action="store_true", help=preview)


def _add_kubeconfig(verb: Parser) -> None:
    context = "context of the kubeconfig; default: the current one"
    verb.add_argument("--kubeconfig", default="", metavar="FILE", help="default: as kubectl finds it")
    verb.add_argument("--context", default="", metavar="NAME", help=context)


def _add_translate(translate: Parser) -> None:
    _add_kubeconfig(translate)
    configs = "directory with fallback.cfg, force.cfg, and the agent's default, group.NAME and node.NAME"
    translate.add_argument("--configs", metavar="DIR", default=argparse.SUPPRESS, help=configs)
    provider = "a Gardener user's configuration; see docs/gardener-by-hand.md"
    translate.add_argument("--provider-config", type=Path, metavar="FILE", help=provider)
    home = "namespace of the plugin, and so of its resources; default: kube-system"
    translate.add_argument("-n", "--namespace", metavar="NAMESPACE", default="kube-system", help=home)
    workloads = "instead, print `kubectl patch` commands for workloads with cri-resmgr's annotations"
    translate.flag("--annotations", help=workloads)


def _add_extension(extension: Parser) -> None:
    extension.add_argument("--values", type=Path, metavar="FILE", help="the values (YAML) for every Shoot")
    deployment = "the values of the ControllerDeployment; those of a Shoot take precedence"
    extension.add_argument(
        "--provider-config", type=Path, metavar="FILE", action="append", default=[], help=deployment
    )
    alive = "file to touch while no thread hangs; default: none"
    extension.add_argument("--alive", type=Path, metavar="FILE", help=alive)
