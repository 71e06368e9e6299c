"""The verbs for a whole cluster, with a person's kubeconfig. Their client library is an extra that no node
has."""

from __future__ import annotations

import argparse
import importlib.util
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from installer.cli.options import Options
from installer.errors import ApiServerError, InterruptedRunError, InvalidInputError
from installer.model.event import Event

if TYPE_CHECKING:
    from installer.operator.annotations import Workload
    from installer.operator.kube import KubeClient
    from installer.operator.translate import Entry

_PENDING = 3


def run_report(arguments: argparse.Namespace, options: Options) -> int:
    """Show every node. Raises InstallerError."""
    with _cluster(arguments) as api:
        from installer.model.overview import NodeHealth
        from installer.operator.api import ApiError
        from installer.operator.inventory import Installed, describe_unproven, find_installations
        from installer.operator.judge import find_others, judge_nodes
        from installer.operator.rollout import see_rollouts
        from installer.operator.rollout_view import see_progress
        from installer.report.overview import print_overview

        installations = find_installations(api, arguments.namespace, arguments.name)
        if not installations and (arguments.namespace or arguments.name):
            raise _not_found(api, arguments)
        others = tuple[Installed, ...]()
        with suppress(ApiError):  # a person may see one namespace only
            others = find_others(api, installations) if arguments.name or arguments.namespace else ()
        overview = judge_nodes(api, installations, arguments.name, others)
        if not arguments.namespace and (not installations or NodeHealth.DIRTY in overview.counts):
            overview = replace(overview, unproven=describe_unproven(api, arguments.name))
        rollouts = see_rollouts(api, installations, overview.nodes)
        progress = see_progress(overview.nodes, rollouts, api.now())
        overview = replace(overview, rollouts=rollouts, progress=progress)
        return print_overview(overview, options.output, sys.stdout, arguments.nodes)


def run_rollout(arguments: argparse.Namespace, options: Options) -> int:
    """Show or steer the rollouts. Raises InstallerError."""
    with _cluster(arguments) as api:
        from installer.operator import rollout
        from installer.operator.inventory import find_installations
        from installer.operator.judge import judge_nodes
        from installer.operator.rollout_view import see_progress
        from installer.report.events import build_reporter
        from installer.report.rollout import print_rollouts

        installations = find_installations(api, arguments.namespace, arguments.name)
        if not installations:
            raise _not_found(api, arguments)
        if arguments.action == "status":
            nodes = judge_nodes(api, installations, arguments.name).nodes
            rollouts = rollout.see_rollouts(api, installations, nodes)
            progress = see_progress(nodes, rollouts, api.now())
            return print_rollouts(rollouts, options.output, sys.stdout, progress)
        if arguments.action == "pause":
            rollout.pause(api, installations, arguments.why)
            done = "paused: nodes finish work in progress and start none"
        elif arguments.action == "resume":
            rollout.resume(api, installations)
            done = "resumed: nodes start planned work again as permits allow"
        else:
            released = rollout.retry(api, installations)
            done = "; ".join(released) or "no generation was stopped; nothing has changed"
        emit = build_reporter(options.output, sys.stdout, options.verbose)
        names = [f"{each.namespace}/{each.name}" for each in installations]
        emit(Event("rollout", done, {"daemonSets": names}))
    return 0


def run_uninstall(arguments: argparse.Namespace, options: Options) -> int:
    """Clean every node, and delete everything. Raises InstallerError."""
    with _cluster(arguments) as api, ExitStack() as ends:
        from installer.operator.inventory import require_argo_cd
        from installer.operator.uninstall import (
            UninstallOptions,
            describe,
            find,
            left_behind,
            not_released,
            uninstall,
        )
        from installer.report.events import build_reporter

        emit = build_reporter(options.output, sys.stdout, options.verbose)
        wanted = UninstallOptions(arguments.namespace, arguments.name, arguments.wait, arguments.leave_nodes)
        release = arguments.helm_release
        if release and (why := not_released(api, wanted, release)):
            emit(Event("uninstall.skipped", why))
            return 0
        if arguments.binding_if_failed:  # a Job's deadline ends it like Ctrl-C
            signal.signal(signal.SIGTERM, signal.default_int_handler)
        ends.callback(_give_up_rights, api, arguments.binding_if_failed)
        if arguments.argo_cd:
            require_argo_cd(api, arguments.name, arguments.namespace)
        target = find(api, wanted)
        for line in describe(target, wanted):
            emit(line)
        if not target.owned and target.dirty:
            raise left_behind(target.dirty, "no object of cri-resmgr-installer is left in the API server")
        if not target.owned or arguments.dry_run:
            ends.pop_all()
            return _PENDING if target.owned else 0
        if not arguments.yes:
            _confirm()
        uninstall(api, target, wanted, emit)
        ends.pop_all()
        emit(
            Event(
                "uninstall.done",
                "uninstalled: every node is clean, and no object of cri-resmgr-installer is left",
            )
        )
    return 0


def run_translate(arguments: argparse.Namespace, options: Options) -> int:
    """Print cri-resmgr's configuration or annotations for nri-plugins. Raises InstallerError."""
    from installer.manifests.text import dump_objects
    from installer.model.jsontext import to_camel
    from installer.operator.annotations import find_workloads
    from installer.operator.config_sources import read_cluster, read_directory, read_provider
    from installer.operator.translate import translate
    from installer.report.terminal import one_line

    sources = dict[str, str]()
    given = [getattr(arguments, "configs", ""), arguments.provider_config, arguments.context]
    if sum(map(bool, given)) != 1:
        raise InvalidInputError(["give one of --configs DIR, --provider-config FILE and --context NAME"])
    if arguments.annotations and not arguments.context:
        raise InvalidInputError(["--annotations: needs --context NAME, the cluster that has the workloads"])
    if arguments.context:
        with _cluster(arguments) as api:
            if arguments.annotations:
                return _print_workloads(list(find_workloads(api)), options.output)
            configs, sources = read_cluster(api)
    elif arguments.provider_config:
        configs = read_provider(arguments.provider_config)
    else:
        configs = read_directory(Path(arguments.configs))
    translation = translate(configs, arguments.namespace)
    translation = translation.as_values() if options.output == "helm" else translation
    text = dump_objects(translation.resources)
    for key, place in sources.items():
        sys.stderr.write(f"{one_line(f'source       {key}: ConfigMap {place}')}\n")
    return _print({**to_camel(translation), "sources": sources}, text, translation.report, options.output)


def _print_workloads(workloads: Sequence[Workload], output: str) -> int:
    from installer.report.terminal import one_line, pick

    listed = [{"workload": each.name, **pick(each, "annotations patch")} for each in workloads]
    head = "# Patching a template recreates its pods: patch before the move, when that is acceptable."
    lines = [head, *(one_line(each.patch) for each in workloads)] if workloads else []
    report = [entry for each in workloads for entry in each.report]
    return _print({"workloads": listed}, "".join(f"{line}\n" for line in lines), report, output)


def _print(document: Mapping[str, object], text: str, report: Sequence[Entry], output: str) -> int:
    """Print the document as JSON or the text, and the report on stderr. Return the exit code."""
    from installer.report.terminal import one_line, write_json

    if output == "json":
        write_json({"schema": 1, **document}, sys.stdout)
    else:
        sys.stdout.write(text)
    for entry in report:
        sys.stderr.write(f"{one_line(entry.line)}\n")
    return _PENDING if any(entry.grade == "lost" for entry in report) else 0


def _not_found(api: KubeClient, arguments: argparse.Namespace) -> InvalidInputError:
    """Name what a person has asked for, which may be misspelt. Raises ApiError."""
    from installer.operator.inventory import describe_unproven

    if not arguments.namespace and (unproven := describe_unproven(api, arguments.name)):
        return InvalidInputError([unproven], "if one is yours, give its --namespace")
    options = {"--name": arguments.name, "--namespace": arguments.namespace}
    given = " ".join(f"{option} {value}" for option, value in options.items() if value)
    missing = f"no DaemonSet of cri-resmgr-installer was found{given and f' with {given}'}"
    all_of_them = "; `report` without them shows every installation" if given else ""
    return InvalidInputError([missing], f"--context chooses another cluster{all_of_them}")


def _confirm() -> None:
    """Ask a person for confirmation. Raises InvalidInputError without it."""
    if sys.stdin is None or not sys.stdin.isatty():
        raise InvalidInputError(["stdin is not a terminal: use --yes to proceed, --dry-run to preview"])
    try:
        answer = input("Proceed? [y/N] ")
    except EOFError:  # Ctrl-D
        answer = ""
    if answer.strip().lower() not in ("y", "yes"):
        raise InvalidInputError(["not confirmed; nothing was touched"])


@contextmanager
def _cluster(arguments: argparse.Namespace) -> Iterator[KubeClient]:
    """Connect to the API server that kubectl would use. Turns its errors, and Ctrl-C, into an
    InstallerError."""
    if importlib.util.find_spec("kubernetes") is None:
        raise InvalidInputError(
            ["the Python package kubernetes is missing"],
            "install it beside this program: pip install 'cri-resmgr-installer[operator]', in a checkout "
            "pip install '.[operator]'",
        )
    from installer.operator.api import ApiError
    from installer.operator.kube import connect_as_kubectl

    try:
        with closing(connect_as_kubectl(arguments.kubeconfig, arguments.context)) as api:
            yield api
    except KeyboardInterrupt:
        raise InterruptedRunError(signal.SIGINT) from None
    except ApiError as error:
        raise ApiServerError(f"the API server: {error}", _hint_for(error.code)) from None


def _give_up_rights(api: KubeClient, binding: str) -> None:
    """Delete the bindings by which a hook has its rights, the one of the whole cluster last: Helm and Argo CD
    leave them where the hook has failed, and create them again for the next."""
    from installer.operator.api import ApiError
    from installer.operator.inventory import find_bindings_of_hook

    if binding:
        with suppress(ApiError):  # then Helm deletes them, or a person
            for resource, namespace in find_bindings_of_hook(api, binding):
                api.delete(resource, namespace, binding)


def _hint_for(code: int) -> str:
    if code == 401:
        return (
            "`kubectl auth whoami` tries the same credentials; log in again, or choose others with --context"
        )
    if code == 403:
        return "`kubectl auth can-i --list` shows what you may do; docs/fleet.md says what this command needs"
    if code == 429 or code >= 500:
        return "it is overloaded, or starts: run the same command again a little later"
    return "check the cluster with `kubectl version`, then run the same command again"


VERBS = {
    "report": run_report,
    "rollout": run_rollout,
    "uninstall": run_uninstall,
    "translate": run_translate,
}
