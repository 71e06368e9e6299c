"""The verb `run`, and the hidden verbs that `run` starts as its child processes."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import NoReturn, TextIO, cast

from installer.cli.grammar import ENVIRONMENT_PREFIX
from installer.cli.options import Options, require_root
from installer.errors import InvalidInputError
from installer.model.jsontext import spare_openssl


def run_daemon_verb(arguments: argparse.Namespace, options: Options) -> int:
    """Run `run` or one of INTERNAL_VERBS; return the exit code."""
    if arguments.command == "run":
        _run_daemon(options)
    if arguments.command == "sync":
        from installer.cluster.sync_child import sync

        print(sync(arguments.request))
        return 0
    from installer.cli.passes import run_pass

    return run_pass(arguments, options)


def _run_daemon(options: Options) -> NoReturn:
    """Run until a signal comes. What raises before that ends as in any other verb."""
    spare_openssl()  # for the life of the daemon; runs use it, because it is faster
    from installer.cluster.client import ClusterClient
    from installer.cluster.pod_context import find_pod_context
    from installer.daemon.configuration import Command
    from installer.daemon.loop import Daemon
    from installer.host.files import RootedFiles
    from installer.host.heap import share_heap
    from installer.host.priority import raise_priority
    from installer.model.daemon import READY_FILE, Cluster
    from installer.report.events import build_reporter
    from installer.report.queued import QueuedStream

    require_root()
    share_heap()
    raise_priority()
    given = {
        name: os.environ[ENVIRONMENT_PREFIX + name.upper()]
        for name in ("ready_file", "pod_uid", "good_seconds", "node_address")
        if ENVIRONMENT_PREFIX + name.upper() in os.environ
    }
    context = find_pod_context(os.environ)
    command = Command(
        options.host_root,
        options.payload,
        options.configs,
        options.config,
        Path(given.get("ready_file", READY_FILE)),
        given.get("pod_uid", ""),
        _seconds(given.get("good_seconds", "60")),
        default_configs=options.default_configs,
        take_over=options.take_over,
        node_address=given.get("node_address", ""),
        installation=context.installation if context else "",
    )
    log = QueuedStream(sys.stdout)
    emit = build_reporter(options.output, cast(TextIO, log), options.verbose)
    cluster = ClusterClient(context, emit, RootedFiles(options.host_root)) if context else Cluster()
    try:
        code = Daemon(command, emit, cluster).run()
    finally:
        log.finish()
    # Nothing is left to do. A thread may still take a picture, or hang in one, and GLib has threads of its
    # own: an interpreter that takes itself apart beneath them may crash.
    os._exit(code)


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        name = f"{ENVIRONMENT_PREFIX}GOOD_SECONDS"
        raise InvalidInputError([f"{name}: must be a number of seconds, not {text!r}"]) from None
