"""The verbs for one host, as a person types them."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from installer.cli.options import Options, require_root
from installer.errors import InvalidInputError, UnservableHostError
from installer.host.clock import SystemClock, ignore_suspension, install_signal_handlers
from installer.host.files import RootedFiles
from installer.host.ports import Host
from installer.host.real import build_host
from installer.host.validator import BinaryValidator
from installer.inputs.load import Consent, Mandate, Request
from installer.inputs.reading import is_roots_own
from installer.inputs.settings import Settings, load_settings
from installer.model.names import Mode, spell
from installer.node.reconcile import inspect, preview, reconcile
from installer.node.record import last_options
from installer.report.terminal import one_line

_WAIT_PAUSE = 1.0  # seconds between two checks of status --wait


def run_host_verb(arguments: argparse.Namespace, options: Options) -> int:
    """Run plan, install, remove, status or history; return the exit code."""
    if arguments.command == "history":
        return _history(arguments, options)
    require_root()
    payload = options.payload if options.payload_given or options.payload.exists() else None
    settings = _settings(options, needed=payload is not None and arguments.command != "remove")
    install_signal_handlers()
    request = _request(arguments, options, settings, payload)
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


def _request(
    arguments: argparse.Namespace, options: Options, settings: Settings, payload: Path | None
) -> Request:
    mode = Mode.REMOVE if arguments.command == "remove" else Mode.INSTALL
    if arguments.command == "plan":
        mode = Mode(arguments.mode or settings.mode)
    return Request(
        mode=mode,
        settings=settings,
        payload=payload,
        inspect=arguments.command == "status",
        configs=options.configs,
        default_configs=options.default_configs,
        asked={} if _is_in_pod(os.environ) else options.asked,  # of its own file system
        consent=Consent(
            retry=getattr(arguments, "retry", False),
            accept_pending=getattr(arguments, "accept_pending", False),
            without_record=getattr(arguments, "without_record", False),
            despite_pause=getattr(arguments, "despite_pause", False),
            take_over=options.take_over or settings.take_over,
        ),
        mandate=Mandate(_who(os.environ)),
    )


def recall(options: Options) -> Mapping[str, str]:
    """Return the options of the last run by hand on this host, as far as their paths are still root's own."""
    last = last_options(RootedFiles(options.host_root))
    return {name: value for name, value in last.items() if not value or is_roots_own(value)}


def _settings(options: Options, *, needed: bool) -> Settings:
    """Load the settings; where they are not `needed` and no inputs are given, those of the last run. Raises
    InvalidInputError."""
    last = "" if needed or options.chosen else recall(options).get("config", "")
    remark = f"settings: {last}, as in the last run"
    try:
        settings = load_settings(Path(last) if last else options.config)
    except InvalidInputError as error:
        if not last:
            raise
        settings, remark = load_settings(None), f"warning: the settings of the last run are left out: {error}"
    if last and options.output == "text":
        sys.stderr.write(f"{one_line(remark)}\n")
    return settings


def _is_in_pod(environment: Mapping[str, str]) -> bool:
    return bool(environment.get("KUBERNETES_SERVICE_HOST"))


def _who(environment: Mapping[str, str]) -> str:
    """Return who runs the command, for the history: a command in the pod, or the person who became root."""
    if _is_in_pod(environment):
        return f"a command in pod {environment.get('POD_NAME') or 'unknown'}"
    return environment.get("SUDO_USER") or "root"


def _history(arguments: argparse.Namespace, options: Options) -> int:
    from installer.node.history import read_history
    from installer.report.history import print_history

    require_root()
    host = build_host(options.host_root)
    history = read_history(host.journal, arguments.lines)
    if history.fault:
        raise UnservableHostError(
            f"the journal of this host cannot be read: {history.fault}",
            "check --host-root; without journald there is no history",
        )
    print_history(history._replace(at_work=host.lock_holder()), options.output, sys.stdout)
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
    lost = [name for name, value in seen.asked.items() if value and name not in recall(options)]
    if lost and options.output == "text":
        left_out = one_line(spell({name: seen.asked[name] for name in lost}))
        sys.stderr.write(f"remark: {left_out} is gone, or not root's alone any more: no hint names it\n")
    past = read_past(host.journal, seen.snapshot.kubelet.unit.identifier)
    return print_status(seen, options.output, sys.stdout, past)


def _plan(request: Request, host: Host, arguments: argparse.Namespace, options: Options) -> int:
    from installer.report.events import report_error
    from installer.report.planned import print_plan

    assessment, error = preview(request, replace(host, validator=BinaryValidator()))
    plan = assessment.plan
    how = {"diffs": arguments.diff, "verbose": options.verbose}
    print_plan(assessment, options.output, sys.stdout, error=error, **how)
    if error is not None and options.output == "text":
        report_error(error, "text", sys.stderr)
    return plan.exit_code if error is None else error.exit_code
