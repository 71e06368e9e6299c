"""The verbs for one host, as a person types them."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from dataclasses import replace

from installer.cli.options import Options, require_root
from installer.errors import UnservableHostError
from installer.host.clock import SystemClock, ignore_suspension, install_signal_handlers
from installer.host.ports import Host
from installer.host.real import build_host
from installer.host.validator import BinaryValidator
from installer.inputs.load import Request
from installer.inputs.settings import Settings, load_settings
from installer.model.names import Mode
from installer.node.reconcile import inspect, preview, reconcile

_WAIT_PAUSE = 1.0  # seconds between two checks of status --wait


def run_host_verb(arguments: argparse.Namespace, options: Options) -> int:
    """Run plan, install, remove, status or history; return the exit code."""
    if arguments.command == "history":
        return _history(arguments, options)
    settings = load_settings(options.config)
    require_root()
    install_signal_handlers()
    request = _request(arguments, options, settings)
    host = build_host(options.host_root)
    if arguments.command == "plan":
        return _plan(request, host, arguments, options)
    if arguments.command == "status":
        return _status(request, host, arguments.wait, options)
    return _converge(request, host, options)


def _converge(request: Request, host: Host, options: Options) -> int:
    from installer.report.events import build_reporter
    from installer.report.waiting import WaitingLine

    ignore_suspension()
    waiting = WaitingLine(sys.stderr)
    watched = replace(host, clock=SystemClock(waiting.tick))
    emit = build_reporter(options.output, sys.stdout, options.verbose, waiting)
    try:
        reconcile(request, watched, emit)
    finally:
        waiting.clear()
    return 0


def _request(arguments: argparse.Namespace, options: Options, settings: Settings) -> Request:
    mode = Mode.REMOVE if arguments.command == "remove" else Mode.INSTALL
    if arguments.command == "plan":
        mode = Mode(arguments.mode or settings.mode)
    inspect = arguments.command == "status"
    given = not inspect or options.payload_given or options.payload.exists()
    return Request(
        mode=mode,
        settings=settings,
        payload=options.payload if given else None,
        inspect=inspect,
        configs=options.configs,
        default_configs=options.default_configs,
        who=_who(os.environ),
        retry=getattr(arguments, "retry", False),
        accept_pending=getattr(arguments, "accept_pending", False),
        without_record=getattr(arguments, "without_record", False),
        despite_pause=getattr(arguments, "despite_pause", False),
        take_over=options.take_over or settings.take_over,
    )


def _who(environment: Mapping[str, str]) -> str:
    """Return who runs the command, for the history: a command in the pod, or the person who became root."""
    if environment.get("KUBERNETES_SERVICE_HOST"):
        return f"a command in pod {environment.get('POD_NAME') or 'unknown'}"
    return environment.get("SUDO_USER") or "root"


def _history(arguments: argparse.Namespace, options: Options) -> int:
    from installer.node.history import read_history
    from installer.report.history import print_history

    require_root()
    history = read_history(build_host(options.host_root).journal, arguments.lines)
    if history.fault:
        raise UnservableHostError(
            f"the journal of this host cannot be read: {history.fault}",
            "check --host-root; without journald there is no history",
        )
    print_history(history, options.output, sys.stdout)
    return 0


def _status(request: Request, host: Host, wait: int | None, options: Options) -> int:
    from installer.node.history import read_past
    from installer.report.status import is_well, print_status, verdict
    from installer.report.waiting import WaitingLine

    deadline = host.clock.monotonic() + (wait or 0)
    waiting = WaitingLine(sys.stderr)
    while not is_well(seen := inspect(request, host)) and host.clock.monotonic() < deadline:
        waiting.show(f"waiting: {verdict(seen)}")
        host.clock.sleep(_WAIT_PAUSE)
    waiting.clear()
    past = read_past(host.journal, seen.snapshot.kubelet.unit.identifier)
    return print_status(seen, options.output, sys.stdout, past)


def _plan(request: Request, host: Host, arguments: argparse.Namespace, options: Options) -> int:
    from installer.report.events import report_error
    from installer.report.planned import print_plan

    assessment, error = preview(request, replace(host, validator=BinaryValidator()))
    plan = assessment.plan
    print_plan(plan, options.output, sys.stdout, diffs=arguments.diff, error=error)
    if error is not None and options.output == "text":
        report_error(error, "text", sys.stderr)
    return plan.exit_code if error is None else error.exit_code
