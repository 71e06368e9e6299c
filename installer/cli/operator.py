"""The verbs for a whole cluster, with a person's kubeconfig. Their library is an extra that no node has."""

from __future__ import annotations

import argparse
import importlib.util
import signal
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from installer.cli.options import Options
from installer.errors import InstallerError, InterruptedRunError, InvalidInputError
from installer.model.event import Event

if TYPE_CHECKING:
    from installer.operator.kube import KubeClient
    from installer.operator.translate import Translation

_PENDING = 3


def run_report(arguments: argparse.Namespace, options: Options) -> int:
    """Raises InstallerError."""
    with _cluster(arguments) as api:
        from installer.operator.find import find_installations
        from installer.operator.look import look
        from installer.operator.progress import see_progress
        from installer.operator.rollout import see_rollouts
        from installer.report.overview import print_overview

        found = find_installations(api, arguments.namespace, arguments.name)
        seen = look(api, arguments.namespace, arguments.name)
        rollouts = see_rollouts(api, found, seen.nodes)
        progress = see_progress(seen.nodes, rollouts, api.now().timestamp())
        seen = replace(seen, rollouts=rollouts, progress=progress)
        return print_overview(seen, options.output, sys.stdout, arguments.nodes)


def run_rollout(arguments: argparse.Namespace, options: Options) -> int:
    """Raises InstallerError."""
    with _cluster(arguments) as api:
        from installer.operator import rollout
        from installer.operator.find import find_installations
        from installer.operator.look import look
        from installer.report.events import build_reporter
        from installer.report.rollout import print_rollouts

        found = find_installations(api, arguments.namespace, arguments.name)
        if not found:
            missing = "no DaemonSet of cri-resmgr-installer was found"
            raise InvalidInputError([missing], "--context chooses another cluster")
        if arguments.action == "status":
            nodes = look(api, arguments.namespace, arguments.name).nodes
            seen = rollout.see_rollouts(api, found, nodes)
            return print_rollouts(seen, options.output, sys.stdout)
        if arguments.action == "pause":
            rollout.pause(api, found, arguments.why)
            said = "paused: nodes finish work in progress and start none"
        elif arguments.action == "resume":
            rollout.resume(api, found)
            said = "resumed: nodes start planned work again as permits allow"
        else:
            said = "; ".join(rollout.retry(api, found)) or "no generation was stopped; nothing has changed"
        emit = build_reporter(options.output, sys.stdout, options.verbose)
        names = [f"{each.what.namespace}/{each.what.name}" for each in found]
        emit(Event("rollout", said, {"daemonSets": names}))
    return 0


def run_uninstall(arguments: argparse.Namespace, options: Options) -> int:
    """Raises InstallerError."""
    with _cluster(arguments) as api:
        from installer.operator.uninstall import Asked, describe, find, left_behind, uninstall
        from installer.report.events import build_reporter

        emit = build_reporter(options.output, sys.stdout, options.verbose)
        asked = Asked(arguments.namespace, arguments.name, arguments.wait, arguments.leave_nodes)
        found = find(api, asked)
        for line in describe(found, asked):
            emit(line)
        if not found.owned and found.dirty:
            raise left_behind(found.dirty, "no object of cri-resmgr-installer is left in the API server")
        if not found.owned:
            return 0
        if arguments.dry_run:
            return _PENDING
        if not arguments.yes:
            _confirm()
        uninstall(api, found, asked, emit)
        emit(
            Event(
                "uninstall.done",
                "uninstalled: every node is clean, and no object of cri-resmgr-installer is left",
            )
        )
    return 0


def run_translate(arguments: argparse.Namespace, options: Options) -> int:
    """Raises InstallerError."""
    from installer.operator.given_configs import read_cluster, read_directory, read_provider
    from installer.operator.translate import translate

    given = [
        name
        for name, value in {
            "--configs": hasattr(arguments, "configs") and options.configs,
            "--provider-config": arguments.provider_config,
            "--context": arguments.context,
        }.items()
        if value
    ]
    if len(given) != 1:
        raise InvalidInputError(["give one of --configs DIR, --provider-config FILE and --context NAME"])
    if arguments.annotations and not arguments.context:
        raise InvalidInputError(["--annotations: needs --context NAME, the cluster that has the workloads"])
    if arguments.context:
        with _cluster(arguments) as api:
            if arguments.annotations:
                return _print_workloads(api, options.output)
            return _print_translation(translate(read_cluster(api)), options.output)
    if arguments.provider_config:
        return _print_translation(translate(read_provider(arguments.provider_config)), options.output)
    assert options.configs is not None
    return _print_translation(translate(read_directory(options.configs)), options.output)


def _print_translation(found: Translation, output: str) -> int:
    from installer.manifests.text import dump_objects
    from installer.report.terminal import one_line, write_json

    if output == "helm":
        values, found = found.as_values()
        sys.stdout.write(dump_objects([values]) if values else "")
    elif output == "json":
        report = [
            {
                "config": each.config,
                "path": list(each.path),
                "grade": str(each.grade),
                "to": list(each.targets),
            }
            | {"note": each.note}
            for each in found.report
        ]
        write_json({"schema": 1, "resources": list(found.resources), "report": report}, sys.stdout)
    else:
        sys.stdout.write(dump_objects(found.resources) if found.resources else "")
    for entry in found.report:
        sys.stderr.write(f"{one_line(entry.line)}\n")
    if not found.resources:
        sys.stderr.write("no resource: no policy of these configs has a plugin\n")
    return _PENDING if found.lost else 0


def _print_workloads(api: KubeClient, output: str) -> int:
    from installer.operator.annotations import find_workloads
    from installer.operator.nri_table import Grade
    from installer.report.terminal import one_line, write_json

    found = list(find_workloads(api))
    if output == "json":
        write_json({"schema": 1, "workloads": [each.data for each in found]}, sys.stdout)
    else:
        sys.stdout.write("".join(f"{one_line(each.patch)}\n" for each in found))
    entries = [entry for each in found for entry in each.found]
    for entry in entries:
        sys.stderr.write(f"{one_line(entry.line)}\n")
    if found:
        sys.stderr.write("a patched template starts its pods anew: patch before the move, when that may be\n")
    return _PENDING if any(entry.grade is Grade.LOST for entry in entries) else 0


def _confirm() -> None:
    """Raises InvalidInputError."""
    if not sys.stdin.isatty():
        raise InvalidInputError(["stdin is not a terminal: use --yes to proceed, --dry-run to preview"])
    try:
        answer = input("Proceed? [y/N] ")
    except EOFError:  # Ctrl-D
        answer = ""
    if answer.strip().lower() not in ("y", "yes"):
        raise InvalidInputError(["not confirmed; nothing was touched"])


@contextmanager
def _cluster(arguments: argparse.Namespace) -> Iterator[KubeClient]:
    """The API server that kubectl would ask. What it refuses is an InstallerError, and so is Ctrl-C."""
    if importlib.util.find_spec("kubernetes") is None:
        raise InvalidInputError(
            ["the Python package kubernetes is missing"],
            "install it beside this program: pip install 'cri-resmgr-installer[operator]', in a checkout "
            "pip install '.[operator]'",
        )
    from installer.operator.api import ApiError
    from installer.operator.kube import connect_as_kubectl

    with closing(connect_as_kubectl(arguments.kubeconfig, arguments.context)) as api:
        try:
            yield api
        except KeyboardInterrupt:
            raise InterruptedRunError(signal.SIGINT) from None
        except ApiError as error:
            raise InstallerError(
                f"the API server: {error}", "check the cluster with `kubectl version`, then run it again"
            ) from None
