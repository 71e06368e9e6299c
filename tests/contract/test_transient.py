"""A pass as a service of systemd, seen from the daemon's loop: its words, its end, and how it is stopped."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from installer.daemon.pass_log import PassLogReader, begin_pass_log
from installer.daemon.pass_starter import PassService
from installer.daemon.transient import UNIT_EXISTS, TransientService
from installer.errors import SystemdError
from installer.host.bus import SystemBus
from installer.host.files import RootedFiles
from installer.host.priority import NICE
from installer.model.daemon import Job
from installer.model.paths import OUR_RUNTIME, PASS_LOG
from tests.lib.event_loop import Scene
from tests.lib.rules import rule
from tests.lib.throwaway.host import ThrowawayHost

NAME = "contract-pass.service"
SAY = f'say() {{ echo "$1" >>{PASS_LOG}; }};'
DEAF = "trap '' TERM; say deaf; sleep 1000 & wait; wait; wait"


class Played:
    """A loop with a service on a booted host."""

    def __init__(self, host: ThrowawayHost) -> None:
        self.host, self.files, self.scene = host, RootedFiles(host.root), Scene()
        self.bus = SystemBus(self.files)
        self.service = TransientService(self.bus, NAME)

    def begin(self, script: str) -> PassLogReader:
        log = begin_pass_log(self.files, "install")
        self.service.start(("/bin/sh", "-c", SAY + script), "a pass", {"WORD": "a b"}, 600)
        return log

    def start(self, script: str, deadline: float = 60.0, grace: float = 60.0) -> PassService:
        return self.follow(self.begin(script), deadline, grace)

    def follow(self, log: PassLogReader, deadline: float = 60.0, grace: float = 60.0) -> PassService:
        scene = self.scene
        job = Job((), scene.lines.append, scene.ends.append, deadline, grace)
        return PassService(scene.loop, self.service, log, job)

    def until_it_says(self, word: str) -> None:
        assert self.scene.until(lambda: word in self.scene.lines)

    def until_its_end(self) -> int:
        assert self.scene.until(lambda: bool(self.scene.ends))
        (code,) = self.scene.ends
        return code

    def is_gone(self) -> bool:
        return self.host.show(NAME, "LoadState") == "not-found"


@pytest.fixture
def played(throwaway: ThrowawayHost) -> Iterator[Played]:
    made = Played(throwaway)
    yield made
    throwaway.systemctl("stop", NAME, check=False)
    made.bus.close()  # which kept it loaded
    assert made.scene.until(made.is_gone)
    made.files.remove_tree(OUR_RUNTIME)
    assert not made.scene.failures


@pytest.mark.parametrize(("code", "fails"), [(3, False), (75, False), (5, True)])
def test_a_pass_that_had_to_wait_is_no_failed_unit(played: Played, code: int, fails: bool) -> None:
    """In the node's journal, and for whoever watches for failed units."""
    said = f"{NAME}: Failed with result"
    before = played.host.journal(NAME).count(said)
    played.start(f"say waiting; exit {code}")
    assert played.until_its_end() == code
    assert (played.host.journal(NAME).count(said) > before) is fails


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("say one; say two", 0),
        ("say one; say two; exit 5", 5),
        ("say one; say two; kill -KILL $$", 137),
        ("say one; say two; rm -r " + OUR_RUNTIME, 0),
        ("say one; say two; systemctl daemon-reload; systemctl daemon-reexec; exit 6", 6),
    ],
)
def test_all_that_it_says_and_how_it_ends_is_told(played: Played, script: str, code: int) -> None:
    played.start(script)
    assert played.until_its_end() == code
    assert played.scene.lines == ["one", "two"]
    assert played.scene.until(played.is_gone)


def test_a_program_that_cannot_be_run_is_an_end(played: Played) -> None:
    log = begin_pass_log(played.files, "install")
    played.service.start(("/bin/is-not-there",), "a pass", {}, 600)
    played.follow(log)
    assert played.until_its_end() == 203  # EXIT_EXEC: systemd.exec(5)
    assert played.scene.lines == []


def test_it_has_a_root_a_journal_an_environment_a_bound_and_leaves_nothing_behind(played: Played) -> None:
    bound = f"$(systemctl show --property=MemoryMax --value {NAME})"
    played.start(f'sleep 4711 & say "$WORD"; say $PWD; say "{bound}"; say $(nice); echo for people')
    assert played.until_its_end() == 0
    assert played.scene.lines == ["a b", "/", str(1 << 30), str(NICE)]
    assert played.scene.until(lambda: "for people" in played.host.journal(NAME))
    assert "sleep 4711" not in played.host.run("ps", "ax").stdout


@rule("R9")
def test_what_does_not_end_in_time_is_stopped_and_then_killed(played: Played) -> None:
    run = played.start("trap 'say asked; exit 3' TERM; say there; sleep 1000 & wait", deadline=1.0)
    assert played.until_its_end() == 3
    assert played.scene.lines == ["there", "asked"]
    assert run.overdue
    played.scene.ends.clear()
    assert played.scene.until(played.is_gone)
    run = played.start(DEAF)
    played.until_it_says("deaf")
    run.stop(grace=0.5)
    assert played.until_its_end() == 137
    assert not run.overdue


@rule("R10")
def test_there_is_one_at_a_time(played: Played) -> None:
    played.start("say there; while [ ! -e /run/go ]; do sleep 0.05; done; say done")
    played.until_it_says("there")
    other = Played(played.host)
    with pytest.raises(SystemdError) as caught:
        other.service.start(("/bin/true",), "another", {}, 600)
    assert caught.value.name == UNIT_EXISTS
    played.files.write("/run/go", b"", 0o600)
    assert played.until_its_end() == 0
    played.files.remove("/run/go")
    assert played.scene.until(played.is_gone)
    other.service.start(("/bin/true",), "another", {}, 600)
    other.bus.close()


@rule("R11")
@pytest.mark.parametrize("meanwhile", [False, True])
def test_a_daemon_that_comes_back_reads_all_of_it(played: Played, meanwhile: bool) -> None:
    """Of a pass that is at work, and of one that has ended while there was no daemon."""
    earlier = Played(played.host)
    earlier.begin("say one; while [ ! -e /run/go ]; do sleep 0.05; done; say two; exit 7")
    if not meanwhile:
        assert played.service.attach()
    played.files.write("/run/go", b"", 0o600)
    earlier.bus.close()  # as when its process ends
    if meanwhile:
        assert played.scene.until(played.is_gone)
        assert not played.service.attach()
    log = PassLogReader(played.files)
    assert log.action == "install"
    played.follow(log)
    assert played.until_its_end() == (1 if meanwhile else 7)
    assert played.scene.lines == ["one", "two"]
    played.files.remove("/run/go")


@rule("R15")
def test_it_is_followed_though_the_bus_daemon_restarts(played: Played) -> None:
    played.start("say one; while [ ! -e /run/go ]; do sleep 0.05; done; say two")
    played.until_it_says("one")
    played.host.systemctl("kill", "--signal=KILL", "dbus.service")
    played.files.write("/run/go", b"", 0o600)
    played.until_its_end()  # how is not known: with the connection systemd has forgotten it
    assert played.scene.lines == ["one", "two"]
    played.files.remove("/run/go")


def test_a_log_that_cannot_be_written_costs_the_words_alone(played: Played) -> None:
    played.files.make_directory(PASS_LOG)
    try:
        played.start("exit 5")
        assert played.until_its_end() == 5
        assert played.scene.lines == []
    finally:
        played.files.remove_tree(PASS_LOG)
