"""What the Systemd port promises, asked of the fake and of a booted host's systemd."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

import pytest

from installer.errors import NO_SUCH_UNIT, TIMEOUT, UNIT_MASKED, SystemdError
from installer.host.files import RootedFiles
from installer.host.ports import Systemd
from installer.host.systemd import BusSystemd
from installer.model.host import ExecLine, UnitDetail, UnitState
from installer.model.paths import UNIT_VARIABLE
from tests.lib.fakes import FakeSystemd, failed, timed_out
from tests.lib.rules import rule
from tests.lib.throwaway.host import ThrowawayHost

ABSENT = "contract-absent.service"
DIRECTORY = "/etc/systemd/system"


class World(Protocol):
    """A system manager and the means to give it units; each returns the unit's name."""

    systemd: Systemd

    def steady(self) -> str: ...
    def failing(self) -> str: ...
    def endless(self) -> str: ...
    def masked(self) -> str: ...
    def link(self, name: str, *, wanted: bool) -> None: ...
    def change(self, name: str) -> None: ...


class FakeWorld:
    def __init__(self) -> None:
        self.fake = FakeSystemd()
        self.systemd: Systemd = self.fake

    def steady(self) -> str:
        name = "steady.service"
        self.fake.relations = {(name, "Names"): (name,), (name, "After"): ("basic.target",)}
        self.fake.units[name] = UnitState(
            name,
            "loaded",
            unit_file_state="disabled",
            environment=(f"{UNIT_VARIABLE}=one",),
            fragment_path=f"{DIRECTORY}/{name}",
        )
        self.fake.details[name] = UnitDetail(
            exec_start=(ExecLine("/bin/sleep", ("/bin/sleep", "$SECONDS")),),
            exec_start_pre=(ExecLine("/bin/true", ("/bin/true",)),),
            environment_files=(("/etc/one", True), ("/etc/two", True)),
            timeout_start_usec=7_000_000,
        )
        return name

    def failing(self) -> str:
        name = "failing.service"
        self.fake.units[name] = UnitState(name, "loaded")
        self.fake.on_job[name] = lambda _method, unit: ("failed", failed(unit))
        return name

    def endless(self) -> str:
        name = "endless.service"
        self.fake.units[name] = UnitState(name, "loaded")
        self.fake.errors["restart", name] = timed_out(name)
        return name

    def masked(self) -> str:
        name = "masked.service"
        self.fake.units[name] = UnitState(name, "masked")
        return name

    def link(self, name: str, *, wanted: bool) -> None:
        state = "enabled" if wanted else "disabled"
        self.fake.units[name] = replace(self.fake.units[name], unit_file_state=state)

    def change(self, name: str) -> None:
        self.fake.units[name] = replace(self.fake.units[name], need_daemon_reload=True)
        self.fake.on_disk[name] = lambda unit: replace(unit, environment=(f"{UNIT_VARIABLE}=two",))


class RealWorld:
    numbers = itertools.count()

    def __init__(self, host: ThrowawayHost) -> None:
        self.host = host
        self.files = RootedFiles(host.root)
        self.systemd: Systemd = BusSystemd(self.files)
        self.made: list[str] = []

    def _make(self, kind: str, text: str) -> str:
        name = f"contract-{kind}-{next(self.numbers)}.service"
        self.files.write(f"{DIRECTORY}/{name}", text.encode(), 0o644)
        self.made.append(name)
        self.host.systemctl("daemon-reload")
        return name

    def steady(self) -> str:
        self.files.write("/etc/one", b"SECONDS=1000\n", 0o644)
        return self._make(
            "steady",
            f"[Service]\nType=exec\nExecStartPre=/bin/true\nExecStart=/bin/sleep $SECONDS\n"
            f"EnvironmentFile=-/etc/one\nEnvironmentFile=-/etc/two\nTimeoutStartSec=7\n"
            f"Environment={UNIT_VARIABLE}=one\n[Install]\nWantedBy=multi-user.target\n",
        )

    def failing(self) -> str:
        return self._make("failing", "[Service]\nType=exec\nExecStart=/bin/is-not-there\n")

    def endless(self) -> str:
        return self._make("endless", "[Service]\nType=oneshot\nExecStart=/bin/sleep 1000\n")

    def masked(self) -> str:
        name = f"contract-masked-{next(self.numbers)}.service"
        self.files.link(f"{DIRECTORY}/{name}", "/dev/null")
        self.made.append(name)
        self.host.systemctl("daemon-reload")
        return name

    def link(self, name: str, *, wanted: bool) -> None:
        self.host.systemctl("enable" if wanted else "disable", "--no-reload", name)

    def change(self, name: str) -> None:
        text = (self.files.read(f"{DIRECTORY}/{name}") or b"").decode()
        self.files.write(f"{DIRECTORY}/{name}", text.replace("=one\n", "=two\n").encode(), 0o644)

    def clear(self) -> None:
        for name in self.made:
            self.host.systemctl("kill", "--signal=KILL", name, check=False)
            self.host.systemctl("disable", "--no-reload", name, check=False)
            self.files.remove(f"{DIRECTORY}/{name}")
        self.host.systemctl("daemon-reload")


@pytest.fixture(params=["fake", "real"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    if request.param == "fake":
        yield FakeWorld()
        return
    real = RealWorld(request.getfixturevalue("throwaway"))
    yield real
    real.clear()


def test_an_absent_unit_is_not_found(world: World) -> None:
    assert world.systemd.unit(ABSENT) == UnitState(ABSENT)
    assert not world.systemd.unit(ABSENT).exists


def test_an_absent_unit_does_not_restart(world: World) -> None:
    with pytest.raises(SystemdError) as caught:
        world.systemd.restart(ABSENT, timeout=60)
    assert caught.value.name == NO_SUCH_UNIT
    assert ABSENT in caught.value.message


def test_a_restart_starts_what_is_down(world: World) -> None:
    name = world.steady()
    assert world.systemd.unit(name).main_pid == 0
    assert world.systemd.restart(name, timeout=60) == "done"
    unit = world.systemd.unit(name)
    assert unit.running
    assert unit.came_up
    assert (unit.active_state, unit.sub_state, unit.result) == ("active", "running", "success")
    assert len(bytes.fromhex(unit.invocation_id)) == 16
    assert unit.loaded_digest == "one"
    assert unit.fragment_path == f"{DIRECTORY}/{name}"


def test_a_restart_gives_another_process(world: World) -> None:
    name = world.steady()
    world.systemd.restart(name, timeout=60)
    before = world.systemd.unit(name)
    assert world.systemd.restart(name, timeout=60) == "done"
    after = world.systemd.unit(name)
    assert after.running
    assert after.main_pid != before.main_pid
    assert after.invocation_id != before.invocation_id


def test_a_stop_leaves_no_process(world: World) -> None:
    name = world.steady()
    world.systemd.restart(name, timeout=60)
    assert world.systemd.stop(name, timeout=60) == "done"
    unit = world.systemd.unit(name)
    assert (unit.active_state, unit.main_pid) == ("inactive", 0)
    assert not unit.flapping


def test_an_absent_unit_is_stopped(world: World) -> None:
    assert world.systemd.stop(ABSENT, timeout=60) == "done"


def test_a_failed_start_says_so_and_can_be_forgotten(world: World) -> None:
    name = world.failing()
    assert world.systemd.restart(name, timeout=60) == "failed"
    unit = world.systemd.unit(name)
    assert (unit.active_state, unit.result, unit.main_pid) == ("failed", "exit-code", 0)
    assert unit.flapping
    assert not unit.came_up
    world.systemd.reset_failed(name)
    assert world.systemd.unit(name).active_state == "inactive"


@rule("R9")
def test_a_start_that_takes_too_long_is_an_error(world: World) -> None:
    name = world.endless()
    with pytest.raises(SystemdError) as caught:
        world.systemd.restart(name, timeout=0.3)
    assert caught.value.name == TIMEOUT
    assert name in caught.value.message


def test_a_masked_unit_is_refused(world: World) -> None:
    name = world.masked()
    assert world.systemd.unit(name).load_state == "masked"
    with pytest.raises(SystemdError) as caught:
        world.systemd.restart(name, timeout=60)
    assert caught.value.name == UNIT_MASKED


def test_a_link_that_enables_a_unit_shows_without_a_reload(world: World) -> None:
    name = world.steady()
    assert world.systemd.unit(name).unit_file_state == "disabled"
    world.link(name, wanted=True)
    assert world.systemd.unit(name).unit_file_state == "enabled"
    world.link(name, wanted=False)
    assert world.systemd.unit(name).unit_file_state == "disabled"


def test_what_a_unit_is_related_to(world: World) -> None:
    name = world.steady()
    assert world.systemd.related(name, "Names") == (name,)
    assert "basic.target" in world.systemd.related(name, "After")
    assert world.systemd.related(name, "Wants") == ()
    assert world.systemd.related(name, "NoSuchRelation") == ()
    assert world.systemd.related("absent.service", "After") == ()
    assert world.systemd.related("not a unit", "After") == ()


def test_a_changed_file_counts_after_a_reload(world: World) -> None:
    name = world.steady()
    world.systemd.restart(name, timeout=60)  # systemd forgets a unit that is down
    world.change(name)
    assert world.systemd.unit(name).need_daemon_reload
    assert world.systemd.unit(name).loaded_digest == "one"
    world.systemd.daemon_reload(timeout=60)
    assert not world.systemd.unit(name).need_daemon_reload
    assert world.systemd.unit(name).loaded_digest == "two"


@rule("R7")
def test_a_link_to_a_unit_is_no_change_of_its_files(world: World) -> None:
    name = world.steady()
    world.systemd.restart(name, timeout=60)
    world.link(name, wanted=True)
    assert not world.systemd.unit(name).need_daemon_reload
    world.change(name)
    assert world.systemd.unit(name).need_daemon_reload
    world.systemd.daemon_reload(timeout=60)
    world.link(name, wanted=False)
    assert not world.systemd.unit(name).need_daemon_reload


def test_detail_keeps_variables_and_order(world: World) -> None:
    assert world.systemd.detail(world.steady()) == UnitDetail(
        exec_start=(ExecLine("/bin/sleep", ("/bin/sleep", "$SECONDS")),),
        exec_start_pre=(ExecLine("/bin/true", ("/bin/true",)),),
        environment_files=(("/etc/one", True), ("/etc/two", True)),
        timeout_start_usec=7_000_000,
    )


def test_a_unit_without_a_process_cannot_be_signalled(world: World) -> None:
    name = world.steady()
    with pytest.raises(SystemdError):
        world.systemd.kill(name, 1)


def test_reset_failed_of_an_absent_unit_is_fine(world: World) -> None:
    world.systemd.reset_failed(ABSENT)
