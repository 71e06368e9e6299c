"""Several hosts at a time: what is tried on one is mostly waiting for it."""

from __future__ import annotations

import multiprocessing
import os
import random
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from tests.faults import Report
from tests.faults.hosts.bench import Bench, Tried
from tests.lib.throwaway.real import NeedsStandInError

#: How many: a trial keeps a core busy for a third of its time.
HOSTS = 2 * (os.cpu_count() or 1)

Work = Callable[[Path], Tried]
"""Tries something, with a directory for its files that is there and empty."""

_SPAWNED = multiprocessing.get_context("spawn")  # what is forked would share this process's connections


@dataclass(frozen=True, slots=True)
class Share:
    """What one process tries, and the row it belongs to; `work` must be possible to pickle."""

    row: str
    work: Work


def share_on_bench(row: str, work: Callable[[Bench], Tried]) -> Share:
    """A share that is tried on a bench of its own."""
    return Share(row, partial(_on_bench, work))


def share_out(row: str, at_random: Callable[..., Tried], amount: int, each: int) -> list[Share]:
    """Shares of at most `each` trials at random; `at_random` takes a bench, `amount` and `seed`."""
    seed = random.randrange(1 << 32)
    return [
        share_on_bench(row, partial(at_random, amount=min(each, amount - first), seed=seed + first))
        for first in range(0, amount, each)
    ]


def try_abreast(report: Report, shares: Sequence[Share]) -> None:
    """Tries them all, some at a time, in this order. A row is reported when its last share is done."""
    rows = {share.row: Tried() for share in shares}
    left = [share.row for share in shares]
    with tempfile.TemporaryDirectory(prefix="abreast-") as directory:
        for share, tried in _all_tried(shares, Path(directory)):
            row = rows[share.row]
            row.count += tried.count
            row.bad += tried.bad
            row.skipped += tried.skipped
            left.remove(share.row)
            if share.row not in left:
                report(share.row, row.count, row.bad, row.skipped)


def _all_tried(shares: Sequence[Share], scratch: Path) -> Iterator[tuple[Share, Tried]]:
    """Each share with what came of it, as they end."""
    running: dict[Connection, tuple[Share, BaseProcess]] = {}
    waiting = list(enumerate(shares))
    try:
        while waiting or running:
            while waiting and len(running) < HOSTS:
                number, share = waiting.pop(0)
                receiver, process = _start(share.work, scratch / str(number))
                running[receiver] = share, process
            wait(list(running))
            for receiver in [receiver for receiver in running if receiver.poll()]:
                share, process = running.pop(receiver)
                try:
                    tried = receiver.recv()
                except EOFError:
                    tried = Tried(1, ["its process died; what it said stands above"])
                process.join()
                yield share, tried
    finally:
        for _, process in running.values():
            process.terminate()  # its host ends with it
            process.join()


def _start(work: Work, scratch: Path) -> tuple[Connection, BaseProcess]:
    receiver, sender = _SPAWNED.Pipe(duplex=False)
    process = _SPAWNED.Process(target=_try_share, args=(work, scratch, sender))
    process.start()
    sender.close()
    return receiver, process


def _try_share(work: Work, scratch: Path, answer: Connection) -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    scratch.mkdir()
    try:
        answer.send(work(scratch))
    except NeedsStandInError as error:
        answer.send(Tried(skipped=[str(error)]))


def _on_bench(work: Callable[[Bench], Tried], scratch: Path) -> Tried:
    with Bench(scratch) as bench:
        return work(bench)


def _end_with(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)
