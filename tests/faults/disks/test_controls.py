"""What cri-resmgr sets in the kernel beside containers' CPUs and memory comes back, wherever a run ends."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from installer.errors import InstallerError, StepFailedError
from installer.inputs.load import Consent, Request
from installer.inputs.settings import KubeletSettings, Settings
from installer.model import paths
from installer.model.containers import CgroupState, CpuResources
from installer.model.event import Event
from installer.model.host import RunningContainer, UnitState
from installer.model.names import Mode
from installer.node.reconcile import inspect, reconcile
from tests.faults.disks.crash import build
from tests.faults.disks.node import Node, bare_node, program
from tests.lib.sysfs import (
    RESCTRL,
    UNCORE,
    Killed,
    SysKernel,
    blkio,
    lay,
    make_group,
    read_all,
)

NONE = "policy: {Active: none}\n"
CLASSES = NONE + "cpu: {classes: {turbo: {minFreq: 3100000, maxFreq: 3400000, uncoreMaxFreq: 3000000}}}\n"
GROUPS = NONE + "rdt: {partitions: {all: {classes: {gold: {l3Allocation: '60%'}}}}}\n"
THROTTLED = NONE + "blockio: {Classes: {slow: [{Weight: 80, ThrottleReadBps: 1M}]}}\n"
ALL = CLASSES + "".join(text.removeprefix(NONE) for text in (GROUPS, THROTTLED))
CONTAINERS = {"aaaa": 100, "bbbb": 200}


@dataclass
class World:
    """A node, its /sys, and a proxy that does to it what the real one does (read in v0.9.2)."""

    directory: Path
    containers: Mapping[str, int] = field(default_factory=lambda: CONTAINERS)
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.root = self.directory / "node"
        self.root.mkdir()
        build(bare_node(), self.root)
        lay(self.root, self.containers)
        self.kernel = SysKernel(self.root)
        self.node = Node(self.root, self.kernel)
        self.node.fake.cri.running = tuple(_running(one) for one in self.containers)
        self.before = read_all(self.root)
        start = self.node.systemd.on_job[paths.PROXY_UNIT]

        def job(method: str, unit: UnitState) -> tuple[str, UnitState]:
            """What a start sets is set also if the start fails later."""
            kill_at, self.kernel.kill_at = self.kernel.kill_at, 0
            if method != "stop":
                self._start()
            result = start(method, unit)
            if method != "stop" and result[0] == "done":
                self._write_cache()
            self.kernel.kill_at = kill_at
            return result

        self.node.systemd.on_job[paths.PROXY_UNIT] = job

    # -- the proxy ------------------------------------------------------------

    def _config(self) -> dict[str, Any]:
        return yaml.safe_load(self.node.read(paths.FALLBACK_CONFIG) or b"") or {}

    def _put(self, path: str, value: str) -> None:
        self.kernel.put(self.root / path.removeprefix("/"), value)

    def _start(self) -> None:
        config = self._config()
        for limits in config.get("cpu", {}).get("classes", {}).values():
            for cpu in (0, 1):
                place = f"sys/devices/system/cpu/cpu{cpu}/cpufreq"
                self._put(f"{place}/scaling_max_freq", str(limits["maxFreq"]))
                self._put(f"{place}/scaling_min_freq", str(limits["minFreq"]))
            self._put(f"{UNCORE}/max_freq_khz", str(limits["uncoreMaxFreq"]))
        self._groups(config.get("rdt", {}))
        for (rule,) in config.get("blockio", {}).get("Classes", {}).values():
            for one in self.containers:
                self._put(f"{blkio(one)}/blkio.weight", str(rule["Weight"]))
                self._put(f"{blkio(one)}/blkio.throttle.read_bps_device", "8:0 1000000")

    def _groups(self, rdt: Mapping[str, Any]) -> None:
        """Mode Full is the default: a group for each class, and one that monitors for each container."""
        root = self.root / RESCTRL
        groups = [
            f"cri-resmgr.{name}" for each in rdt.get("partitions", {}).values() for name in each["classes"]
        ]
        for found in root.glob("cri-resmgr.*"):
            if found.name not in groups:
                self.kernel.rmdir(str(found))
        for name in groups:
            make_group(root / name)
            (root / "schemata").write_text("MB:0=100\nL3:0=00fff\n")
        place = root / groups[0] if groups else root
        for one, task in self.containers.items():
            self._put(f"{place.relative_to(self.root)}/tasks", str(task))
            make_group(place / "mon_groups" / f"cri-resmgr.{one}")

    def _write_cache(self) -> None:
        config = self._config()
        classes = {"turbo": "0,1"} if "cpu" in config else {}
        found = {
            "Version": "1",
            "PolicyName": "none",
            "PolicyJSON": {"CPUClassAssignments": json.dumps(classes)},
            "Containers": {one: {"ID": one, "BlockIOClass": "Burstable"} for one in self.containers},
        }
        (self.root / paths.PROXY_CACHE[1:]).write_text(json.dumps(found))

    # -- the program ----------------------------------------------------------

    def run(self, config: str | None, *, works: bool = True, without_record: bool = False) -> bool:
        """Installs with a configuration, or removes; whether anything changed."""
        self.events.clear()
        return reconcile(
            self._request(config, works, without_record), self.node.fake.host, self.events.append
        ).changed

    def _request(self, config: str | None, works: bool = True, without_record: bool = False) -> Request:
        settings = Settings(kubelet=KubeletSettings(settle_seconds=1))
        if config is None:
            return Request(Mode.REMOVE, settings, None, consent=Consent(without_record=without_record))
        payload = self.directory / f"payload-{works}"
        binary = payload / "opt/intel/bin/cri-resmgr"
        binary.parent.mkdir(parents=True, exist_ok=True)
        binary.write_bytes(program("one", works=works))
        binary.chmod(0o755)
        configs = self.directory / "configs"
        configs.mkdir(exist_ok=True)
        (configs / "fallback.cfg").write_text(config)
        return Request(Mode.INSTALL, settings, payload, configs)

    def planned(self, config: str | None) -> tuple[str, ...]:
        return inspect(self._request(config), self.node.fake.host).plan.resets

    def killed_at(self, change: int, act: Callable[[], object]) -> bool:
        """Whether the act was killed at its change of this number."""
        self.kernel.changes, self.kernel.kill_at = 0, change
        try:
            act()
        except Killed:
            return True
        except InstallerError:
            pass
        finally:
            self.kernel.kill_at = 0
        return False

    def read(self, path: str) -> str:
        return (self.root / path.removeprefix("/")).read_text().strip()

    def differences(self) -> dict[str, tuple[str | None, str | None]]:
        now = read_all(self.root)
        return {
            path: (self.before.get(path), now.get(path))
            for path in sorted(now.keys() | self.before.keys())
            if now.get(path) != self.before.get(path)
        }


def _running(identifier: str) -> RunningContainer:
    cgroup = CgroupState("0-3", "0", "0-3", "0", shares=512, blkio=blkio(identifier))
    created = CpuResources("", "", 512)
    return RunningContainer(identifier, "app", identifier, "default", False, created=created, cgroup=cgroup)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_removal_brings_everything_back(world: World) -> None:
    world.run(ALL)
    assert len(world.differences()) > 10, "the proxy has set it"
    world.run(None)
    assert world.differences() == {}
    assert not [event for event in world.events if event.kind == "warning"]


def test_the_plan_of_a_removal_says_what_is_restored(world: World) -> None:
    world.run(ALL)
    planned = "\n".join(world.planned(None))
    assert f"remove the resctrl group /{RESCTRL}/cri-resmgr.gold" in planned
    assert "scaling_min_freq: 3100000 -> 1200000" in planned
    assert "restore blkio.throttle.read_bps_device of 8:0 of default/aaaa/app:" in planned
    assert "restore" not in "\n".join(world.planned(ALL)), "nothing is restored while it is in use"


def test_groups_of_the_default_mode_go_without_any_configuration(world: World) -> None:
    world.run(NONE)
    assert (world.root / RESCTRL / "mon_groups/cri-resmgr.aaaa").is_dir()
    world.run(None)
    assert world.differences() == {}


@pytest.mark.parametrize("config", [ALL, CLASSES, GROUPS, THROTTLED], ids=["all", "cpu", "rdt", "blockio"])
def test_a_removal_that_is_killed_anywhere_is_finished_by_the_next(tmp_path: Path, config: str) -> None:
    for change in range(1, 200):
        directory = tmp_path / str(change)
        directory.mkdir()
        world = World(directory)
        world.run(config)
        killed = world.killed_at(change, lambda world=world: world.run(None))  # type: ignore[misc]
        if not killed:
            break
        world.run(None)
        assert world.differences() == {}, f"killed at change {change}"
    assert 10 < change < 199


def test_the_rollback_of_a_first_installation_brings_everything_back(tmp_path: Path) -> None:
    for change in range(1, 200):
        directory = tmp_path / str(change)
        directory.mkdir()
        world = World(directory)
        killed = world.killed_at(change, lambda world=world: world.run(ALL, works=False))  # type: ignore[misc]
        if not killed:
            break
        world.run(None)
        assert world.differences() == {}, f"killed at change {change}"
    assert 10 < change < 199
    assert world.differences() == {}


@pytest.mark.parametrize("config", [CLASSES, GROUPS, THROTTLED], ids=["cpu", "rdt", "blockio"])
def test_a_configuration_that_uses_it_no_longer_brings_it_back(tmp_path: Path, config: str) -> None:
    for change in range(1, 200):
        directory = tmp_path / str(change)
        directory.mkdir()
        world = World(directory, containers=CONTAINERS if config == THROTTLED else {})
        world.run(config)
        assert world.differences()
        killed = world.killed_at(change, lambda world=world: world.run(NONE))  # type: ignore[misc]
        if killed:
            world.run(NONE)
        left = [path for path in world.differences() if "mon_groups" not in path]
        assert left == [], f"killed at change {change}"
        assert not world.run(NONE), "nothing is left to do"
        if not killed:
            break
    assert 5 < change < 199


def test_a_rollback_to_what_used_nothing_brings_it_back(world: World) -> None:
    world.run(NONE)
    with pytest.raises(InstallerError):
        world.run(ALL, works=False)
    assert not [path for path in world.differences() if "mon_groups" not in path and "tasks" not in path]


def test_without_an_original_the_hardware_says_it_and_only_for_cpus_with_a_class(world: World) -> None:
    world.run(CLASSES)
    (world.root / paths.RECORD[1:]).unlink()
    world.run(None, without_record=True)
    cpu = "sys/devices/system/cpu/cpu"
    assert world.read(f"{cpu}0/cpufreq/scaling_min_freq") == "800000"
    assert world.read(f"{cpu}0/cpufreq/scaling_max_freq") == "3500000"
    assert world.read(f"{cpu}2/cpufreq/scaling_min_freq") == "1200000", "it has no class"
    said = [event.message for event in world.events if event.kind == "controls.returned"]
    assert len([text for text in said if "original unknown" in text]) == 4, said


def test_a_cpu_that_was_offline_before_gets_the_hardwares_limits(world: World) -> None:
    """Its limits could not be kept. It came online under the proxy, which gave it its class."""
    online = world.root / "sys/devices/system/cpu/cpu1/cpufreq"
    offline, put = online.rename(world.directory / "offline"), world._put
    world._put = lambda path, value: None if "/cpu1/" in path else put(path, value)  # type: ignore[method-assign]
    world.run(CLASSES)
    offline.rename(online)
    for limit, khz in (("max", "3400000"), ("min", "3100000")):
        put(f"sys/devices/system/cpu/cpu1/cpufreq/scaling_{limit}_freq", khz)
    world.run(None)
    assert world.read("sys/devices/system/cpu/cpu0/cpufreq/scaling_min_freq") == "1200000"
    assert world.read("sys/devices/system/cpu/cpu1/cpufreq/scaling_min_freq") == "800000"
    assert world.read("sys/devices/system/cpu/cpu1/cpufreq/scaling_max_freq") == "3500000"


@pytest.mark.parametrize("machine_id", ["", "f" * 32])
def test_a_machine_that_was_renamed_keeps_its_originals_and_another_has_its_own(
    world: World, machine_id: str
) -> None:
    """`machine_id`: another machine's, with a copy of the disk."""
    world.run(CLASSES)
    here = world.node.fake.identity
    found = machine_id or here.machine_id
    world.node.fake.identity = replace(here, hostname="another-name", machine_id=found)
    world.run(None)
    limit = world.read("sys/devices/system/cpu/cpu0/cpufreq/scaling_min_freq")
    assert limit == ("800000" if machine_id else "1200000")


def test_what_was_set_before_us_is_no_original(world: World) -> None:
    """A program that kept none has installed this configuration."""
    world.run(CLASSES)
    record = world.root / paths.RECORD[1:]
    found = json.loads(record.read_text())
    found.pop("controls")
    found.pop("checksum")
    record.write_text(json.dumps(found))
    world.run(CLASSES.replace("3100000", "3000000"))
    world.run(None)
    assert world.read("sys/devices/system/cpu/cpu0/cpufreq/scaling_min_freq") == "800000"


def test_what_cannot_come_back_is_named_and_stops_nothing(world: World) -> None:
    """A CPU that went offline has no limits."""
    world.run(ALL)
    gone = "sys/devices/system/cpu/cpu1/cpufreq"
    shutil.rmtree(world.root / gone)
    world.run(None)
    warnings = [event.message for event in world.events if event.data.get("code") == "controls"]
    problems = [text for text in warnings if "could not be restored" in text]
    assert len(problems) == 2, problems
    assert all(f"/{gone}/scaling_" in problem for problem in problems)
    assert not (world.root / paths.RECORD[1:]).exists(), "all else is removed"
    assert {path.rpartition("/")[0] for path in world.differences()} == {gone}


def test_a_kernel_that_answers_with_errors_stops_no_removal(world: World) -> None:
    world.run(ALL)
    files = world.node.fake.files
    read = files.read

    def sick(path: str, limit: int = 1 << 20) -> bytes | None:
        if path.startswith("/sys/"):
            raise OSError(errno.EBUSY, "Device or resource busy", path)
        return read(path, limit)

    files.read = sick  # type: ignore[method-assign]
    world.run(None)
    assert not (world.root / paths.RECORD[1:]).exists()
    assert not list((world.root / RESCTRL).glob("**/cri-resmgr.*")), "a group goes without a question"


def test_a_runtime_that_does_not_answer_keeps_nothing_else_from_coming_back(world: World) -> None:
    world.run(ALL)
    cri, listed = world.node.fake.cri, iter([world.node.fake.cri.running])

    def containers(_endpoint: str, _timeout: float = 10.0) -> tuple[RunningContainer, ...]:
        for found in listed:
            return found  # while the plan is made
        raise StepFailedError("no answer")

    cri.containers = containers  # type: ignore[method-assign, assignment]
    world.run(None)
    assert {path for path in world.differences() if "/blkio/" not in path} == set()
    said = [event.message for event in world.events if event.data.get("code") == "controls"]
    assert "block I/O of the containers could not be restored: no answer" in said


def test_what_a_container_was_created_with_stays(world: World) -> None:
    rates = {"8:0": "5000000", "8:16": "7000000"}  # the proxy has ended the second one
    own = {"blkio.throttle.read_bps_device": rates, "blkio.weight": {"": "300"}}
    first, second = world.node.fake.cri.running
    world.node.fake.cri.running = (first, _created_with(second, own))
    world.run(THROTTLED)
    world.run(None)
    assert world.read(f"{blkio('bbbb')}/blkio.throttle.read_bps_device") == "8:0 5000000\n8:16 7000000"
    assert world.read(f"{blkio('bbbb')}/blkio.weight") == "300"
    assert world.read(f"{blkio('aaaa')}/blkio.throttle.read_bps_device") == ""


def _created_with(container: RunningContainer, own: Mapping[str, Mapping[str, str]]) -> RunningContainer:
    return replace(container, created_io=own)


def test_a_run_that_changes_nothing_reads_nothing_of_it(world: World, mocker: Any) -> None:
    world.run(ALL)
    spies = [mocker.spy(world.node.fake.files, name) for name in ("read", "list", "state", "status")]
    assert not world.run(ALL)
    asked = [call.args[0] for spy in spies for call in spy.call_args_list]
    assert asked
    assert not [path for path in asked if path.startswith("/sys/")]
