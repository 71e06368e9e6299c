"""Hostile answers to the relay probe."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.inputs.trial import Trial, try_some
from tests.faults.inputs.version import TRIALS

EXAMPLES = 1_000


@pytest.mark.parametrize("trial", TRIALS, ids=[trial.name for trial in TRIALS])
def test_every_answer_is_one_or_is_none(trial: Trial, tmp_path: Path) -> None:
    assert not try_some(trial, EXAMPLES, tmp_path)
