"""How each runtime tells what a container was created with: cases as data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from installer.host.cgroups import Cgroups
from installer.host.cri import build_container
from installer.host.files import RootedFiles
from installer.host.protobuf import decode, encode
from installer.model.containers import CgroupState, CpuResources
from installer.model.host import RunningContainer

CASES = sorted((Path(__file__).parents[1] / "cases/runtimes").glob("*.yaml"))


def told(info: object) -> RunningContainer:
    """The container of which a verbose ContainerStatus says this."""
    if isinstance(info, dict):  # its process is not there
        info = {key: value for key, value in info.items() if key != "pid"}
    nowhere = Cgroups(RootedFiles(Path("/nowhere")))
    answer = encode(2, encode(1, b"info") + encode(2, json.dumps(info).encode()))
    container = build_container(decode(encode(1, b"aa")), decode(answer), nowhere)
    assert container is not None
    return container


@pytest.mark.parametrize("path", CASES, ids=[path.stem for path in CASES])
def test_what_a_runtime_says_of_a_creation(path: Path) -> None:
    case: dict[str, Any] = yaml.safe_load(path.read_text())
    assert case.keys() <= {"shows", "info", "created", "creation"}
    container = told(case["info"])
    created = case.get("created")
    assert container.created == (None if created is None else CpuResources(**created))
    assert container.creation == case.get("creation")


def test_block_io_of_a_creation() -> None:
    """As the OCI runtime specification has it, in the files and lines of cgroup v1."""
    spec = {
        "weight": 300,
        "weightDevice": [{"major": 8, "minor": 0, "weight": 200}],
        "throttleWriteIOPSDevice": [{"major": 8, "minor": 16, "rate": 1000}],
    }
    found = told({"runtimeSpec": {"linux": {"resources": {"blockIO": spec}}}}).created_io
    assert found == {
        "blkio.weight": {"": "300"},
        "blkio.bfq.weight": {"": "300"},
        "blkio.weight_device": {"8:0": "200"},
        "blkio.bfq.weight_device": {"8:0": "200"},
        "blkio.throttle.write_iops_device": {"8:16": "1000"},
    }
    assert told({"runtimeSpec": {"linux": {"resources": {"blockIO": [7]}}}}).created_io == {}


@pytest.mark.parametrize(
    "info", [{}, [], 7, {"config": None}, {"config": []}, {"runtimeSpec": 7, "sandboxID": "b"}]
)
def test_what_is_no_description_is_not_known(info: object) -> None:
    assert (told(info).created, told(info).creation) == (None, None)


def test_a_container_that_ends_while_its_cgroup_is_read_has_ended() -> None:
    class Ends(Cgroups):
        alive = True

        def runs(self, pid: int) -> bool:
            return self.alive

        def state(self, pid: int, identifier: str) -> CgroupState | None:
            self.alive = False
            return CgroupState("", "", "", "")

    answer = encode(2, encode(1, b"info") + encode(2, b'{"pid": 7}'))
    cgroups = Ends(RootedFiles(Path("/nowhere")))
    assert build_container(decode(encode(1, b"aa")), decode(answer), cgroups) is None
