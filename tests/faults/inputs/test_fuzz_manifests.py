"""Hostile values for the manifests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.inputs.manifests import TRIALS
from tests.faults.inputs.trial import Trial, try_some

EXAMPLES = 1_000
ALWAYS = 4


@pytest.mark.parametrize("trial", TRIALS, ids=[trial.name for trial in TRIALS])
def test_every_run_ends_as_the_contract_says(trial: Trial, tmp_path: Path) -> None:
    assert not try_some(trial, EXAMPLES, tmp_path, ALWAYS)
