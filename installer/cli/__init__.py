"""The command line: verbs and exit codes. The only place that builds the real host and exits.

Decides nothing about the host: `node.reconcile` does.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from functools import partial
from typing import TextIO, cast

from installer.cli.grammar import INTERNAL_VERBS, UsageError
from installer.cli.options import Options, asked_output, parse_options
from installer.errors import InstallerError, InvalidInputError, unforeseen
from installer.report.terminal import OF_CLUSTER, OF_HOST, SteadyStream, retyped, wrapped

_OF_HOST = ("plan", "install", "remove", "status", "history")
_OF_CLUSTER = ("report", "rollout", "uninstall")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code (see the exit codes of --help).

    Output is never a reason to stop: if its reader goes away or its disk is full, the rest of the output is
    lost, and the command continues.
    """
    out, err = SteadyStream(sys.stdout), SteadyStream(sys.stderr)
    with contextlib.redirect_stdout(cast(TextIO, out)), contextlib.redirect_stderr(cast(TextIO, err)):
        try:
            return _main(argv, out, err)
        finally:
            out.flush()
            err.flush()


def _main(argv: Sequence[str] | None, *streams: SteadyStream) -> int:
    try:
        arguments, options = parse_options(argv)
    except InstallerError as error:
        return _fail(error, asked_output(argv))
    # Diffs show files as they are.
    if options.output == "text" and not getattr(arguments, "diff", False):
        for stream in streams:
            stream.retype = _retyping(arguments.command, options)
            # YAML and tables stay as they are, and so do the commands in an entry of the runbooks.
            folded = arguments.command in _OF_HOST + _OF_CLUSTER and not getattr(arguments, "nodes", False)
            stream.width = _width(stream) if folded else 0
    try:
        with contextlib.nullcontext() if arguments.command in ("run", "extension") else _short_life():
            return _run(arguments, options)
    except InstallerError as error:
        return _fail(error, options.output)
    except Exception as error:
        if options.verbose:
            raise
        return _fail(unforeseen(error), options.output)


def _width(stream: TextIO | SteadyStream) -> int:
    """Return the columns of the terminal that a person reads; 0 for anything else."""
    try:
        return os.get_terminal_size(stream.fileno()).columns if stream.isatty() else 0
    except (OSError, ValueError):
        return 0


def _retyping(verb: str, options: Options) -> Callable[[str], str] | None:
    """What gives the commands in our text the options that this person needs."""
    if verb in _OF_HOST:
        from installer.cli.host import recall

        return partial(retyped, pattern=OF_HOST, spell=partial(options.retype, last=partial(recall, options)))
    if verb in _OF_CLUSTER:
        return partial(retyped, pattern=OF_CLUSTER, spell=options.retype_for_cluster)
    return None


@contextlib.contextmanager
def _short_life() -> Iterator[None]:
    """Disable the search for reference cycles, in the block and when the interpreter ends: it takes an
    eighth of the time of a process that lives for less than a second, and the kernel frees all memory at
    once."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _fail(error: InstallerError, output: str) -> int:
    from installer.report.events import report_error

    report_error(error, output, sys.stdout if output == "json" else sys.stderr)
    return error.exit_code


def _explain(words: Sequence[str], output: str) -> int:
    from installer.inputs.reading import suggest
    from installer.rendering import runbooks
    from installer.report.explain import find_entries, normalise
    from installer.report.terminal import write_json

    entries = find_entries(runbooks())
    names = list(dict.fromkeys(normalise(" ".join(words)))) or sorted(entries)
    if unknown := [name for name in names if name not in entries]:
        fault = f"the runbooks have nothing about {unknown[0]!r}"
        raise InvalidInputError([fault], f"{suggest(unknown[0], entries)}; without a CODE all are listed")
    if output == "json":
        write_json({"schema": 1, "entries": {name: entries[name] for name in names}}, sys.stdout)
    else:
        width = _width(sys.stdout) or sys.maxsize
        texts = [f"{name}\n\n{entries[name]}\n" for name in names]
        lines = "\n".join(texts).splitlines() if words else names
        for line in lines:
            sys.stdout.write(f"{line}\n" if line.startswith("    ") else wrapped(f"{line}\n", width))
    return 0


def _print_manifests(arguments: argparse.Namespace) -> int:
    from installer.gardener.registration import render_registration
    from installer.manifests import ManifestOptions, render_manifests
    from installer.model.event import Event
    from installer.report.events import TextReporter

    if not arguments.gardener_registration and (arguments.chart_ref or arguments.registers_for != "garden"):
        raise UsageError(["--for and --chart-ref: need --gardener-registration"])
    known = {each.name for each in fields(ManifestOptions)}
    options = ManifestOptions(**{name: value for name, value in vars(arguments).items() if name in known})
    report = TextReporter(sys.stderr)
    render = render_registration if arguments.gardener_registration else render_manifests
    sys.stdout.write(render(options, lambda warning: report(Event("warning", warning))))
    return 0


def _run(arguments: argparse.Namespace, options: Options) -> int:
    if arguments.command in ("run", *INTERNAL_VERBS):
        from installer.cli.daemon import run_daemon_verb

        return run_daemon_verb(arguments, options)
    if arguments.command == "manifests":
        return _print_manifests(arguments)
    if arguments.command == "explain":
        return _explain(arguments.words, options.output)
    if arguments.command == "extension":
        from installer.cli.gardener import run_extension

        return run_extension(arguments, options)
    if arguments.command in ("report", "rollout", "uninstall", "translate"):
        from installer.cli.operator import VERBS

        return VERBS[arguments.command](arguments, options)
    from installer.cli.host import run_host_verb

    return run_host_verb(arguments, options)
