"""The hidden verb `pass`: carries out one order of the daemon, and reports the result."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TextIO, cast

from installer.cli.options import Options, require_root
from installer.daemon.configuration import Command
from installer.daemon.decision import Action, Order
from installer.daemon.outcome import result_event
from installer.daemon.pass_log import open_pass_log
from installer.errors import InstallerError, InvalidInputError, unforeseen
from installer.host.clock import install_signal_handlers
from installer.host.files import RootedFiles
from installer.host.ports import Host
from installer.host.real import build_host
from installer.inputs.load import Request
from installer.inputs.settings import Settings, load_settings
from installer.model.event import Emit
from installer.model.jsontext import from_json
from installer.model.names import Mode
from installer.model.result import Tally
from installer.node.reconcile import reconcile
from installer.node.rescue import hold_kubelet, restart_proxy
from installer.report.events import JsonReporter, build_reporter, report_error
from installer.report.terminal import SteadyStream

_DESPITE_BAD_SETTINGS = (Action.RESTART_PROXY, Action.RESCUE, Action.HOLD)


def run_pass(arguments: argparse.Namespace, options: Options) -> int:
    """Run the pass; return the exit code, which is also in the result."""
    order = from_json(Order, arguments.order)
    with _opened_log(options, logged=arguments.log) as log:
        emit, machine = (
            build_reporter(options.output, sys.stdout, options.verbose, log=log),
            JsonReporter(log or sys.stdout),
        )
        tally = Tally(lambda result: machine(result_event(result)))
        try:
            settings = _load_settings(order, options)
            require_root()
            install_signal_handlers()
            carry_out(
                order, build_request(order, options, settings), build_host(options.host_root), emit, tally
            )
            return 0
        except Exception as raised:
            error = raised if isinstance(raised, InstallerError) else unforeseen(raised)
            tally.note(tally.result.failed(error))
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


def carry_out(order: Order, asked: Request, host: Host, emit: Emit, tally: Tally) -> None:
    """Carry out the order. Raises InstallerError; `tally` then has what was done until then."""
    if order.action is Action.RESTART_PROXY:
        restart_proxy(asked.settings, host, emit)
    elif order.action in (Action.RESCUE, Action.HOLD):
        hold_kubelet(asked.settings, host, emit, order.why, tally, restart=order.action is Action.RESCUE)
    else:
        reconcile(asked, host, emit, tally)
    tally.note(replace(tally.result, code=0, ended=True))


def build_request(order: Order, options: Options, settings: Settings) -> Request:
    """Build the request of an unattended run."""
    command = Command(
        options.host_root,
        options.payload,
        options.configs,
        options.config,
        default_configs=options.default_configs,
        take_over=options.take_over,
    )
    request = command.request(settings, Mode.REMOVE if order.action is Action.REMOVE else Mode.INSTALL)
    mandate = replace(
        request.mandate,
        because=order.why,
        restarts_left=order.restarts_left if order.action is Action.INSTALL else math.inf,
        ask_first=order.ask_first,
        begins=order.begins,
    )
    return replace(request, mandate=mandate)
