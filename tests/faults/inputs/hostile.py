"""Hostile input, by the thousand: whatever an operator or a node hands us, a run ends as the contract says.

Everything goes in where the command line puts it in. A trial holds when the input is taken, or refused
with an error of ours that people and machines can read; and, where it says so, when what was made of it
holds exactly what was put in.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.faults import Report
from tests.faults.inputs import kubelet, manifests, record, settings, version
from tests.faults.inputs.trial import try_out

TRIALS = (*settings.TRIALS, *kubelet.TRIALS, *record.TRIALS, *manifests.TRIALS, *version.TRIALS)


def run(report: Report, amount: int) -> None:
    """Tries so many examples of each trial, chosen at random."""
    for trial in TRIALS:
        with tempfile.TemporaryDirectory(prefix="hostile-") as directory:
            report(trial.name, len(trial.always) + amount, try_out(trial, amount, Path(directory)))
