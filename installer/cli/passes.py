"""The hidden verb `pass`: carries out one order of the daemon, and reports the outcome."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TextIO, cast

from installer.cli.options import Options, require_root
from installer.daemon.configuration import build_configuration
from installer.daemon.decision import Action, Order
from installer.daemon.outcome import PassReporter
from installer.daemon.pass_log import open_pass_log
from installer.errors import InstallerError, InvalidInputError, unforeseen
from installer.host.clock import install_signal_handlers
from installer.host.files import RootedFiles
from installer.host.ports import Host
from installer.host.real import build_host
from installer.host.validator import BinaryValidator
from installer.inputs.load import Request
from installer.inputs.settings import Settings, load_settings
from installer.model.jsontext import from_json
from installer.model.names import Mode
from installer.node.reconcile import preview, reconcile
from installer.node.rescue import hold_kubelet, restart_proxy
from installer.node.run import DAEMON
from installer.report.events import JsonReporter, build_reporter, report_error
from installer.report.planned import summarise_plan
from installer.report.terminal import SteadyStream

_DESPITE_BAD_SETTINGS = (Action.RESTART_PROXY, Action.RESCUE, Action.HOLD)


def run_pass(arguments: argparse.Namespace, options: Options) -> int:
    """Run the pass; return the exit code, which is also in the outcome."""
    order = from_json(Order, arguments.order)
    with _opened_log(options, logged=arguments.log) as log:
        emit = build_reporter(options.output, sys.stdout, options.verbose, log=log)
        reporter = PassReporter(emit, JsonReporter(log or sys.stdout))
        try:
            settings = _load_settings(order, options)
            require_root()
            if order.action is Action.SETTINGS:
                reporter.configured(build_configuration(settings))
                return 0
            install_signal_handlers()
            host = build_host(options.host_root)
            if order.action is Action.PLAN:  # which does not take the lock
                host = replace(host, validator=BinaryValidator())
            return carry_out(order, build_request(order, options, settings), host, reporter)
        except Exception as raised:
            error = raised if isinstance(raised, InstallerError) else unforeseen(raised)
            reporter.ended(error.exit_code, error)
            if log is not None:
                report_error(error, "json", log)
            raise


def _load_settings(order: Order, options: Options) -> Settings:
    """Load the settings. If they are invalid, what moves kubelet off a dead relay uses the defaults, for
    the unit that the daemon watches: the node comes first. Raises InvalidInputError for any other order."""
    try:
        return load_settings(options.config)
    except InvalidInputError:
        if order.action not in _DESPITE_BAD_SETTINGS:
            raise
        settings = load_settings(None)
        kubelet = settings.kubelet.model_copy(update={"unit": order.kubelet_unit or settings.kubelet.unit})
        return settings.model_copy(update={"kubelet": kubelet})


@contextmanager
def _opened_log(options: Options, *, logged: bool) -> Iterator[TextIO | None]:
    """Open the log of a pass that runs as a service, whose stdout is the journal. It is open from the
    beginning, because a removal deletes its path."""
    if not logged:
        yield None
        return
    log = cast(TextIO, SteadyStream(open_pass_log(RootedFiles(options.host_root))))
    try:
        yield log
    finally:
        log.flush()


def carry_out(order: Order, asked: Request, host: Host, reporter: PassReporter) -> int:
    """Carry out the order. Raises InstallerError, which the caller passes to `reporter`."""
    if order.action is Action.PLAN:
        assessment, error = preview(asked, host)
        plan = assessment.plan
        code = plan.exit_code if error is None else error.exit_code
        pending = summarise_plan(plan) if plan.steps else ""
        reporter.planned(code, pending, error)
        return code
    if order.action is Action.RESTART_PROXY:
        restart_proxy(asked.settings, host, reporter)
    elif order.action in (Action.RESCUE, Action.HOLD):
        hold_kubelet(asked.settings, host, reporter, order.why, restart=order.action is Action.RESCUE)
    else:
        reconcile(asked, host, reporter)
    reporter.ended(0)
    return 0


def build_request(order: Order, options: Options, settings: Settings) -> Request:
    """Build the request of an unattended run. The mode of a plan is that of the settings."""
    mode = Mode.REMOVE if order.action is Action.REMOVE else Mode.INSTALL
    plans = order.action is Action.PLAN
    return Request(
        mode=Mode(settings.mode) if plans else mode,
        settings=settings,
        payload=options.payload,
        configs=options.configs,
        default_configs=options.default_configs,
        who=DAEMON,
        because=order.why,
        despite_pause=True,
        take_over=options.take_over or settings.take_over,
        restarts_left=order.restarts_left if order.action is Action.INSTALL else math.inf,
        ask_first=order.ask_first,
        begins=order.begins,
        unattended=not plans,
    )
