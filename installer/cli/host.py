"""The verbs for one host: what a person types, and what the daemon starts for a pass."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

from installer.cli.options import Options, require_root
from installer.errors import UnservableHostError
from installer.host.clock import install_signal_handlers
from installer.host.ports import Host
from installer.host.real import build_host
from installer.host.validator import BinaryValidator
from installer.inputs.load import Request
from installer.inputs.settings import Settings, load_settings
from installer.model.state import Mode
from installer.reconcile import look, reconcile, rehearse


def run_host_verb(arguments: argparse.Namespace, options: Options) -> int:
    """Runs plan, install, remove or status, and returns its exit code."""
    settings = load_settings(options.config)
    require_root()
    install_signal_handlers()
    request = _request(arguments, options, settings)
    host = build_host(options.host_root)
    if arguments.command == "plan":
        return _plan(request, host, arguments, options)
    if arguments.command == "status":
        from installer.report.status import print_status

        return print_status(look(request, host), options.output, sys.stdout)
    from installer.report.events import build_reporter

    reconcile(request, host, build_reporter(options.output, sys.stdout, options.verbose))
    return 0


def _request(arguments: argparse.Namespace, options: Options, settings: Settings) -> Request:
    mode = Mode.REMOVE if arguments.command == "remove" else Mode.INSTALL
    if arguments.command == "plan":
        mode = Mode(arguments.mode or settings.mode)
    return Request(
        mode=mode,
        settings=settings,
        payload=options.payload,
        configs=options.configs,
        default_configs=options.default_configs,
        retry=getattr(arguments, "retry", False),
        accept_pending=getattr(arguments, "accept_pending", False),
        without_record=getattr(arguments, "without_record", False),
        despite_pause=getattr(arguments, "despite_pause", False),
        keep_kubelet=getattr(arguments, "keep_kubelet", False),
        unattended=getattr(arguments, "unattended", False),
    )


def _plan(request: Request, host: Host, arguments: argparse.Namespace, options: Options) -> int:
    from installer.report.events import report_error
    from installer.report.planned import print_plan

    assessment, error = rehearse(request, replace(host, validator=BinaryValidator()))
    plan = assessment.plan
    print_plan(plan, options.output, sys.stdout, diffs=arguments.diff, error=error)
    if error is not None:
        if options.output == "text":
            report_error(error, "text", sys.stderr)
        return error.exit_code
    if plan.refusals:
        return UnservableHostError.exit_code
    return 3 if plan.steps else 0
