"""Hostile settings, configs, kubelets, records, manifests' values and answers of a relay: no traceback, only
exits of the contract.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from installer.errors import UnservableHostError
from installer.inputs.load import Request
from installer.inputs.settings import KubeletSettings, Settings
from installer.model.event import Event, silent
from installer.model.names import Mode
from installer.node.reconcile import reconcile
from tests.faults.inputs import kubelet, manifests, record, settings, version
from tests.faults.inputs.trial import Trial, try_some
from tests.lib.rules import rule

TRIALS = [trial for module in (settings, kubelet, record, version) for trial in module.TRIALS]
EXAMPLES = 1_000
FEWER = {"the record, removal": 100}


@pytest.mark.parametrize("trial", TRIALS, ids=[trial.name for trial in TRIALS])
def test_every_run_ends_as_the_contract_says(trial: Trial, tmp_path: Path) -> None:
    assert not try_some(trial, FEWER.get(trial.name, EXAMPLES), tmp_path)


@pytest.mark.parametrize("trial", manifests.TRIALS, ids=[trial.name for trial in manifests.TRIALS])
def test_every_rendering_ends_as_the_contract_says(trial: Trial, tmp_path: Path) -> None:
    assert not try_some(trial, EXAMPLES, tmp_path, always=4)


@rule("R6")
def test_originals_without_a_usable_record_are_kept_and_named(tmp_path: Path) -> None:
    first, root = record.install(tmp_path), tmp_path / "root"
    node = first.lay(root, first.record[:-100])
    request = Request(Mode.REMOVE, Settings(kubelet=KubeletSettings(settle_seconds=1)), first.payload)
    events: list[Event] = []
    with pytest.raises(UnservableHostError, match="original") as caught:
        reconcile(request, node.fake.host, events.append)
    kept = [line.strip() for line in caught.value.message.splitlines() if "/edited/original." in line]
    assert [node.read(path) for path in kept] == [b"policy:\n  Active: topology-aware\n"]
    assert any(event.kind == "edit.kept" and kept[0] in event.message for event in events)
    assert node.read("/var/lib/cri-resmgr-installer/edited/record.json") == first.record[:-100]
    reconcile(request, node.fake.host, silent)  # nothing of ours is left
    assert node.read(kept[0]) is not None
