"""The verb `extension`: Gardener's controller. Its client library is an extra that no node has."""

from __future__ import annotations

import argparse
import importlib.util
import os
import signal
import sys
import threading
from functools import partial

from installer.cli.options import Options
from installer.errors import InstallerError, InvalidInputError
from installer.model.event import Event


def run_extension(arguments: argparse.Namespace, options: Options) -> int:
    """Run until a signal comes; the exit code says which. Raises InstallerError."""
    if importlib.util.find_spec("kubernetes") is None:
        raise InvalidInputError(
            ["the Python package kubernetes is missing"],
            "install cri-resmgr-installer[extension], or use the image of the extension",
        )
    from installer.gardener.controller import Setup
    from installer.gardener.managed_resource import Renderer
    from installer.gardener.service import serve
    from installer.gardener.watchdog import Watchdog
    from installer.operator.api import LEASE, SHOOT
    from installer.operator.kube import connect, connect_with
    from installer.report.events import build_reporter

    emit = build_reporter(options.output, sys.stdout, options.verbose)
    renderer = Renderer(arguments.values, tuple(arguments.provider_config))
    name, warnings = renderer.check()
    for warning in warnings:
        emit(Event("warning", warning))
    namespace, pod = os.environ.get("POD_NAMESPACE", ""), os.environ.get("POD_NAME", "")
    if not namespace or not pod:
        raise InvalidInputError(
            ["POD_NAMESPACE and POD_NAME: must both be set"],
            "they name the namespace and the holder of the Lease",
        )
    stop, received = threading.Event(), list[int]()

    def end(number: int, _frame: object) -> None:
        received.append(number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    setup = Setup(renderer, name, pod, partial(connect_with, limits=SHOOT), Watchdog(arguments.alive))
    seed, leases = connect(), connect(LEASE)
    led = serve(seed, leases, setup, namespace, stop, lambda line: emit(Event("extension", line)))
    if not led:
        raise InstallerError(
            "this replica is no longer the leader", "it restarts, and waits until it leads again"
        )
    return 128 + received[0] if received else 0
