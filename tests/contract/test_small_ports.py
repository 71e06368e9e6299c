"""Clock, lock, healthz, processes, journal: fake and real keep the same small promises."""

from __future__ import annotations

import re
import socket
import time
from pathlib import Path
from uuid import uuid4

import pytest

from installer.errors import BusyHostError, UnservableHostError
from installer.host.chase import opened
from installer.host.ports import Host
from installer.host.real import build_host
from installer.model.host import Health
from tests.lib.fakes import FakeHost
from tests.lib.rules import rule
from tests.lib.throwaway.host import ThrowawayHost
from tests.lib.throwaway.kubelet import executable


@pytest.fixture(params=["fake", "real"])
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Host:
    if request.param == "fake":
        return FakeHost(tmp_path).host
    bus = tmp_path / "run/dbus/system_bus_socket"  # below a root that has none, there is no host to lock
    bus.parent.mkdir(parents=True)
    bus.touch()
    return build_host(tmp_path)


def test_below_a_root_without_a_system_bus_nothing_is_made(tmp_path: Path) -> None:
    with pytest.raises(UnservableHostError, match="no system bus"), build_host(tmp_path).lock():
        pass
    assert list(tmp_path.iterdir()) == []


def test_the_wall_clock_is_utc_with_seconds(host: Host) -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", host.clock.now())


def test_sleeping_takes_as_long_as_it_says(host: Host) -> None:
    before = host.clock.monotonic()
    host.clock.sleep(0.01)
    host.clock.sleep(-1)
    host.clock.sleep_through(0.01)
    assert host.clock.monotonic() - before >= 0.02
    host.clock.check()


@rule("R10")
def test_the_lock_is_for_one(host: Host) -> None:
    with host.lock():
        with pytest.raises(BusyHostError), host.lock():
            pass
        with pytest.raises(BusyHostError), host.lock():
            pass
    with host.lock():
        pass


@rule("R10")
def test_the_lock_goes_with_an_error(host: Host) -> None:
    with pytest.raises(RuntimeError), host.lock():
        raise RuntimeError
    with host.lock():
        pass


def test_no_url_is_healthy(host: Host) -> None:
    assert host.healthz.ask("", 0) is Health.OK


def test_a_process_that_is_not_there(host: Host) -> None:
    assert host.processes.get(4_194_305) is None


def test_a_kubelet_that_is_not_there_has_no_version(host: Host) -> None:
    assert host.kubelet_version("/usr/bin/kubelet") == ""


def test_the_version_of_a_kubelet(throwaway: ThrowawayHost) -> None:
    host, place = build_host(throwaway.root), throwaway.root / "usr/bin/kubelet"
    place.write_bytes(executable())
    place.chmod(0o755)
    said = throwaway.run("/usr/bin/kubelet", "--version").stdout
    assert said == f"Kubernetes v{host.kubelet_version('/usr/bin/kubelet')}\n"
    assert host.kubelet_version("/bin/true") == "", "it says nothing"
    assert host.kubelet_version("/usr/bin") == ""
    place.chmod(0o775)
    assert host.kubelet_version("/usr/bin/kubelet") == "", "others may write it"
    place.chmod(0o755)
    place.write_text("#!/bin/sh\ntouch /ran\necho Kubernetes v1.36.2\n")
    assert host.kubelet_version("/usr/bin/kubelet") == "", "a script"
    assert not (throwaway.root / "ran").exists()
    place.unlink()


def test_a_journal_that_cannot_be_read_is_a_reason_in_brackets(tmp_path: Path) -> None:
    (reason,) = build_host(tmp_path).journal.tail("kubelet.service")
    assert reason.startswith("[")
    assert reason.endswith("]")


def test_a_host_without_a_journal_takes_an_entry_and_says_that_it_has_none(tmp_path: Path) -> None:
    journal = build_host(tmp_path).journal
    journal.write({"MESSAGE": "into the void"})
    assert journal.entries(("MESSAGE=x",), 1).fault
    assert list(tmp_path.iterdir()) == []


def test_a_long_entry_is_cut_rather_than_lost(tmp_path: Path) -> None:
    place = tmp_path / "run/systemd/journal/socket"
    place.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journald:
        with opened(tmp_path, "/run/systemd/journal", follow=True) as (directory, _):
            journald.bind(f"{directory}/socket")
        journald.settimeout(60)
        build_host(tmp_path).journal.write({"MESSAGE": "long " * 100_000, "PRIORITY": "5"})
        taken = journald.recv(1 << 20)
    assert taken.startswith(b"MESSAGE=long long ")
    assert taken.endswith(b"...\nPRIORITY=5\n")


@pytest.mark.parametrize(
    ("text", "read_back"),
    [
        ("one line", "one line"),
        ("two\nlines", "two\nlines"),
        ("x" * 16_000, "x" * 16_000),
        ("a\u2028b", "a\u2028b"),
        ("not UTF-8: \udcff", "not UTF-8: ?"),
    ],
)
def test_what_was_written_to_a_real_journal_is_read_back(
    throwaway: ThrowawayHost, text: str, read_back: str
) -> None:
    """With another character for each byte that is no text."""
    journal = build_host(throwaway.root).journal
    mark = uuid4().hex
    for number in range(3):
        journal.write({"MESSAGE": f"entry {number}", "MESSAGE_ID": mark, "TEST_TEXT": text, "TEST_EMPTY": ""})
    deadline = time.monotonic() + 60
    while len((read := journal.entries((f"MESSAGE_ID={mark}",), 2)).entries) < 2 or "2" not in str(read):
        assert time.monotonic() < deadline, read
    assert [fields["MESSAGE"] for fields in read.entries] == ["entry 1", "entry 2"]
    last = read.entries[-1]
    assert last["__REALTIME_TIMESTAMP"].isdecimal()
    assert last.get("TEST_TEXT", "") == read_back
    assert "TEST_EMPTY" not in last


def test_the_journal_of_a_real_host(throwaway: ThrowawayHost) -> None:
    throwaway.sync_journal()
    lines = build_host(throwaway.root).journal.tail("containerd.service", 3)
    assert len(lines) == 3
    assert "containerd" in lines[-1]


def test_what_a_unit_has_said_since_then(throwaway: ThrowawayHost) -> None:
    journal = build_host(throwaway.root).journal
    before = journal.cursor()
    talk = "seq 5000; echo one word"
    throwaway.run("systemd-run", "--wait", "--unit=talks", "-pLogRateLimitIntervalSec=0", "sh", "-c", talk)
    journal.sync()  # journald takes a unit's output from a stream, in its own time
    assert journal.since("talks.service", before).count("one word") == 1
    after = journal.cursor()
    assert "one word" not in journal.since("talks.service", after)
    assert journal.since("talks.service", "") == ()


def test_a_journald_that_hangs_does_not_keep_anybody(throwaway: ThrowawayHost) -> None:
    throwaway.systemctl("kill", "--signal=STOP", "systemd-journald")
    try:
        build_host(throwaway.root).journal.sync()
    finally:
        throwaway.systemctl("kill", "--signal=CONT", "systemd-journald")
    build_host(throwaway.root).journal.sync()


def test_what_journald_has_not_taken_yet_can_be_read_after_a_sync(tmp_path: Path) -> None:
    """As of the real one, above."""
    fake = FakeHost(tmp_path)
    before = fake.journal.cursor()
    fake.journal.unsaid.append(("talks.service", "one word"))
    assert fake.journal.since("talks.service", before) == ()
    fake.journal.sync()
    assert fake.journal.since("talks.service", before) == ("one word",)


def test_a_journal_that_cannot_be_read_has_no_end_and_no_lines(tmp_path: Path) -> None:
    for journal in (build_host(tmp_path).journal, FakeHost(tmp_path).host.journal):
        journal.sync()
        assert journal.since("talks.service", "") == ()
    assert build_host(tmp_path).journal.cursor() == ""
    assert build_host(tmp_path).journal.since("talks.service", "s=1") == ()


def test_the_healthz_and_processes_of_a_real_host(throwaway: ThrowawayHost) -> None:
    host = build_host(throwaway.root)
    assert host.healthz.ask("http://127.0.0.1:10248/healthz", 1) is Health.UNWELL
    process = host.processes.get(1)
    assert process
    assert "systemd" in process.exe
