"""The guard, run as systemd would run it, by every sh of this machine, below a root of its own."""

from __future__ import annotations

import os
import resource
import shutil
import stat
import subprocess
import threading
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as limits

from installer.assets import unit_text
from installer.systemd_syntax.environment_file import parse_environment_file
from installer.systemd_syntax.unit_file import split_words
from tests.faults.inputs.texts import hostile_text
from tests.rules import rule

SOON = 10  # seconds: what does not wait is done by then, also on a machine with much else to do
BUDGET = "30"  # of what must not use it up
SHELLS = {"dash": ["dash"], "bash": ["bash", "--posix"], "busybox": ["busybox", "sh"]}
NAME = "cri-resmgr-kubelet-guard"
FLAG = "--container-runtime-endpoint=unix:///var/run/cri-resmgr/cri-resmgr.sock"
LISTENS = "0000000000000000: 00000002 00000000 00010000 0001 01 4711 /var/run/cri-resmgr/cri-resmgr.sock"
NASTY = [
    "", "plain", "--a=b --c d", "two  blanks", " blank in front", "blank behind ", "tab\there",
    "line\nfeed", "ends in line feed\n", "carriage\rreturn", "esc\x1b[31m", "bell\a and \x01 \x7f",
    "percent %n %%", "dollar $HOME ${HOME} $$ $(id)", "`id`", 'double "quotes"', "single 'quotes'",
    'both "it\'s"', "back\\\\slash", "back\\\\", "hash # semicolon ; star * ? [a-z] !",
    "ümläut ☃ 𐍈", '= =a= ~ {a,b} \\$x \\" \\`',
]  # fmt: skip


class Node:
    """A root directory with as much of a node as the guard looks at."""

    def __init__(self, root: Path, shell: list[str]) -> None:
        self.root = root
        self.shell = shell
        self.script = root / NAME
        self.script.write_text(unit_text(NAME))
        self.pid_file = root / "var/run/cri-resmgr.pid"
        self.binary = root / "opt/intel/bin/cri-resmgr"
        self.hold = root / "var/lib/cri-resmgr-installer/hold"
        self.run = root / "run/cri-resmgr-installer"
        self.composed = self.run / "kubelet.env"
        self.socket = root / "var/run/cri-resmgr/cri-resmgr.sock"
        for directory in ("proc/net", "var/run", "opt/intel/bin", "var/lib/cri-resmgr-installer", "run"):
            (root / directory).mkdir(parents=True, exist_ok=True)
        (root / ".cri-resmgr-guard-test-root").touch()
        (root / "proc/net/unix").write_text("Num RefCount Protocol Flags Type St Inode Path\n")
        self.binary.touch(mode=0o755)

    def serve(self, comm: str = "cri-resmgr", line: str = LISTENS, pid: str = "42\n") -> None:
        (self.root / "proc/42").mkdir(exist_ok=True)
        self.socket.parent.mkdir(exist_ok=True)
        if not self.socket.exists():
            os.mknod(self.socket, stat.S_IFSOCK | 0o600)
        (self.root / "proc/42/comm").write_text(f"{comm}\n")
        (self.root / "proc/net/unix").write_text(f"Num RefCount Protocol Flags Type St Inode Path\n{line}\n")
        self.pid_file.write_text(pid)

    def guard(
        self, verb: str, base: str | bytes | None = None, complains: bool = False, **more: str
    ) -> subprocess.CompletedProcess[str]:
        """`base` is the variable's value, `complains`: the shell may say something."""
        environment = {
            "PATH": os.environ["PATH"],
            "CRI_RESMGR_GUARD_ROOT": str(self.root),
            "CRI_RESMGR_GUARD_VARIABLE": "ARGS",
            "CRI_RESMGR_GUARD_FLAG": FLAG,
            "CRI_RESMGR_GUARD_SECONDS": BUDGET,
            **more,
        }
        if base is not None:
            environment[environment["CRI_RESMGR_GUARD_VARIABLE"]] = os.fsdecode(base)
        done = subprocess.run(
            [*self.shell, str(self.script), verb],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=60,
        )
        assert complains or done.stderr == ""
        return done

    def composed_value(self, variable: str = "ARGS") -> str:
        found = parse_environment_file(self.composed.read_bytes().decode())
        assert list(found) == [variable]
        return found[variable]


@pytest.fixture(params=sorted(SHELLS))
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Node:
    shell = SHELLS[request.param]
    if not shutil.which(shell[0]):
        pytest.skip(f"no {shell[0]} here")
    return Node(tmp_path, shell)


@pytest.fixture
def dash(tmp_path: Path) -> Node:
    """For what waits: one shell is enough for that."""
    shell = next((shell for shell in SHELLS.values() if shutil.which(shell[0])), ["sh"])
    return Node(tmp_path, shell)


def elapsed(began: float) -> float:
    return time.monotonic() - began


def test_compose_puts_the_flag_behind_the_value(node: Node) -> None:
    node.serve()
    done = node.guard("compose", "--v=2")
    assert done.returncode == 0
    assert done.stdout.startswith(f"{NAME}: relay: ready, waited ")
    assert done.stdout.count("\n") == 1
    assert node.composed.read_text() == f'ARGS="--v=2 {FLAG}"\n'
    assert stat.S_IMODE(node.composed.stat().st_mode) == 0o600
    assert stat.S_IMODE(node.run.stat().st_mode) == 0o755
    assert sorted(path.name for path in node.run.iterdir()) == ["kubelet.env", "relay-start"]


def test_compose_of_a_variable_that_is_not_set(node: Node) -> None:
    node.serve()
    node.guard("compose")
    assert node.composed_value() == FLAG


@pytest.mark.parametrize("value", NASTY)
def test_nasty_values_round_trip(node: Node, value: str) -> None:
    node.serve()
    done = node.guard("compose", value)
    assert done.returncode == 0, done.stdout
    assert node.composed_value() == (f"{value} {FLAG}" if value else FLAG)


@pytest.mark.parametrize(
    "value", ['--a="b', "it's", "--a=b\\", "x\\\\\\", '"it\\"', "'\"", '"\'" "', "a 'b\\' c"]
)
def test_a_value_that_would_swallow_the_flag(node: Node, value: str) -> None:
    node.serve()
    done = node.guard("compose", value)
    assert "base endpoint: the value of ARGS" in done.stdout
    assert not node.composed.exists()


@rule("R12")
@limits(max_examples=60, derandomize=True, suppress_health_check=list(HealthCheck))
@given(value=hostile_text.map(lambda text: text.replace("\0", "").encode("utf-8", "surrogatepass")))
def test_no_value_of_the_base_breaks_out(dash: Node, value: bytes) -> None:
    """Behind it stands our flag, as the last word, or there is no file."""
    dash.serve()
    dash.guard("compose", value)
    if dash.composed.exists():
        composed = dash.composed_value().encode()
        assert composed == value + (b" " if value else b"") + FLAG.encode()
        assert split_words(composed.decode())[-1] == FLAG
    else:
        assert not closed_and_utf8(value)


def closed_and_utf8(value: bytes) -> bool:
    """Whether a word that follows on it would be one."""
    try:
        return split_words(f"{value.decode()} x")[-1] == "x"
    except ValueError:
        return False


@pytest.mark.parametrize("value", ['"it\'s"', "'\"'", '"a\\"b"', "\\'", '\\"', "a\\ b", "'a\\'b'"])
def test_a_value_with_closed_quotes(node: Node, value: str) -> None:
    node.serve()
    assert "relay: ready" in node.guard("compose", value).stdout
    assert node.composed_value() == f"{value} {FLAG}"


@pytest.mark.parametrize(
    "value",
    [
        b"\xff",
        b"a\xc3",
        b"\xc0\x80",
        b"\xe0\x80\x80",
        b"\xed\xa0\x80",
        b"\xf4\x90\x80\x80",
        b"\xf5",
        b"\x80",
        b"\xc3(",
    ],
)
def test_a_value_that_is_not_utf_8(node: Node, value: bytes) -> None:
    """systemd would drop the file without a word."""
    node.serve()
    done = node.guard("compose", b"--label=" + value)
    assert "is not UTF-8" in done.stdout
    assert not node.composed.exists()


@pytest.mark.parametrize("variable", ["guard_root", "guard_run", "value", "KUBELET_EXTRA_ARGS"])
def test_the_variable_may_have_any_name(node: Node, variable: str) -> None:
    node.serve()
    node.guard("compose", "--v=2", CRI_RESMGR_GUARD_VARIABLE=variable)
    assert node.composed_value(variable) == f"--v=2 {FLAG}"


@pytest.mark.parametrize("variable", ["", "1A", "A-B", "A;id", "A}", "$(id)", "ä"])
def test_no_variable_no_file(node: Node, variable: str) -> None:
    node.serve()
    done = node.guard("compose", "x", CRI_RESMGR_GUARD_VARIABLE=variable)
    assert done.returncode == 1
    assert "base endpoint" in done.stdout
    assert not node.composed.exists()


@pytest.mark.parametrize(
    ("line", "ready"),
    [
        (LISTENS, True),
        (LISTENS.replace("/var/run", "/run"), True),
        (LISTENS.replace("00010000", "00000000"), False),
        (LISTENS.replace(" /var", " @/var"), False),
        (LISTENS.replace(".sock", ".sock.old"), False),
        (LISTENS.replace("/var/run", "/tmp/run"), False),
        (LISTENS.replace(" /var", " /tmp/x /var"), False),
        (LISTENS.replace("01 4711", "01  4711"), True),
    ],
)
def test_ready_needs_the_listening_relay(node: Node, line: str, ready: bool) -> None:
    node.serve(line=line)
    node.binary.unlink()  # nothing to wait for
    node.guard("compose")
    assert node.composed.exists() is ready


@pytest.mark.parametrize(
    ("comm", "pid", "ready"),
    [
        ("cri-resmgr", "42", True),
        ("cri-resmgr-agen", "42\n", False),
        ("sh", "42\n", False),
        ("cri-resmgr", "43\n", False),
        ("cri-resmgr", "\n", False),
        ("cri-resmgr", "../42\n", False),
    ],
)
def test_ready_needs_the_live_process_of_the_pid_file(node: Node, comm: str, pid: str, ready: bool) -> None:
    node.serve(comm, pid=pid)
    node.binary.unlink()  # nothing to wait for
    node.guard("compose")
    assert node.composed.exists() is ready


@rule("R12")
def test_ready_needs_the_socket_file(node: Node) -> None:
    """Where somebody has deleted it, the proxy still listens, and nobody can connect."""
    node.serve()
    node.socket.unlink()
    node.binary.unlink()  # nothing to wait for
    node.guard("compose")
    assert not node.composed.exists()


@rule("R12")
def test_compose_waits_for_the_relay(dash: Node) -> None:
    later = threading.Timer(0.3, dash.serve)
    later.start()
    done = dash.guard("compose", "--v=2")
    later.join()
    assert "relay: ready, waited " in done.stdout
    assert dash.composed_value() == f"--v=2 {FLAG}"


@rule("R12")
def test_compose_gives_up_in_time_and_takes_the_old_file_away(dash: Node) -> None:
    dash.run.mkdir()
    dash.composed.write_text("ARGS=old\n")
    began = time.monotonic()
    done = dash.guard("compose", "--v=2", CRI_RESMGR_GUARD_SECONDS="1")
    assert 0.9 < elapsed(began) < SOON
    assert done.returncode == 0
    assert "base endpoint: the relay is not ready, waited " in done.stdout
    assert not dash.composed.exists()


@rule("R12")
def test_compose_has_what_the_start_of_the_proxy_left_of_the_budget(dash: Node) -> None:
    dash.run.mkdir()
    began = time.monotonic()
    (dash.run / "proxy-start").write_text(f"{int(uptime() * 100) - 2950}\nwaited\n")
    dash.guard("compose")
    assert 0.4 < elapsed(began) < SOON


@rule("R12")
def test_compose_does_not_wait_for_a_proxy_that_has_had_its_time(dash: Node) -> None:
    """Kubelet's start has waited for the proxy's start job, which a frozen one uses up and more."""
    dash.run.mkdir()
    (dash.run / "proxy-start").write_text(f"{int(uptime() * 100) - 3100}\n")
    began = time.monotonic()
    assert "base endpoint: the relay is not ready" in dash.guard("compose").stdout
    assert elapsed(began) < SOON


@rule("R12")
def test_compose_takes_less_time_where_the_start_of_the_proxy_was_given_up(dash: Node) -> None:
    """await-relay hangs, and kubelet's start may have waited since before the mark."""
    dash.run.mkdir()
    (dash.run / "proxy-start").write_text(f"{int(uptime() * 100) - 2000}\n")
    began = time.monotonic()
    dash.guard("compose")
    assert elapsed(began) < SOON


@rule("R12")
@pytest.mark.parametrize("start", ["99999999999999"])
def test_compose_has_the_whole_budget_otherwise(dash: Node, start: str) -> None:
    dash.run.mkdir()
    (dash.run / "proxy-start").write_text(start)
    began = time.monotonic()
    dash.guard("compose", CRI_RESMGR_GUARD_SECONDS="1")
    assert elapsed(began) > 0.9


@rule("R12")
def test_compose_goes_without_at_once_on_hold(node: Node) -> None:
    node.serve()
    node.hold.write_text("paused by the operator\nmore\n")
    began = time.monotonic()
    done = node.guard("compose", "--v=2")
    assert elapsed(began) < SOON
    assert done.stdout == f"{NAME}: base endpoint: held: paused by the operator\n"
    assert done.returncode == 0
    assert not node.composed.exists()


def test_a_hold_without_a_line_end_or_a_reason_holds(node: Node) -> None:
    node.serve()
    for content in ("", "one line without an end"):
        node.hold.write_text(content)
        assert f"held: {content or 'no reason given'}" in node.guard("compose").stdout


@rule("R12")
def test_compose_does_not_wait_for_what_is_not_there(node: Node) -> None:
    node.binary.unlink()
    began = time.monotonic()
    done = node.guard("compose")
    assert elapsed(began) < SOON
    assert "cri-resmgr is not installed" in done.stdout


@pytest.mark.parametrize("seconds", ["", "-1", "015", "x", "1000000"])
def test_a_deadline_that_is_none_is_said(node: Node, seconds: str) -> None:
    node.serve()
    done = node.guard("compose", CRI_RESMGR_GUARD_SECONDS=seconds)
    assert "using 15" in done.stdout
    assert node.composed.exists()


@rule("R12")
def test_compose_that_cannot_write_leaves_nothing(node: Node) -> None:
    node.serve()
    node.run.write_text("a file in the way")
    assert node.guard("reset").returncode == 0
    done = node.guard("compose", complains=True)
    assert done.returncode == 1
    assert "base endpoint" in done.stdout


def test_reset_removes_what_was_composed(node: Node) -> None:
    assert node.guard("reset").returncode == 0
    node.run.mkdir()
    for used in (False, True):
        node.composed.write_text("ARGS=old\n")
        if used:
            assert node.guard("retire").returncode == 0
        assert node.guard("reset").returncode == 0
        assert list(node.run.iterdir()) == []


@rule("R12")
def test_what_was_composed_is_for_one_start(node: Node) -> None:
    assert node.guard("retire").returncode == 0
    node.serve()
    node.guard("compose")
    assert node.guard("retire").returncode == 0
    assert not node.composed.exists()
    assert sorted(path.name for path in node.run.iterdir()) == ["kubelet.env.used", "relay-start"]


def fail_on_relay(node: Node, result: str = "exit-code", lived: float = 5) -> str:
    """Kubelet starts on the relay, and ends so many seconds later."""
    assert "relay: ready" in node.guard("compose").stdout
    node.guard("retire")
    (node.run / "relay-start").write_text(f"{int((uptime() - lived) * 100)}\n")
    done = node.guard("ended", SERVICE_RESULT=result)
    assert done.returncode == 0
    return done.stdout


@rule("R12")
def test_a_relay_that_kubelet_did_not_survive_twice_is_left(node: Node) -> None:
    node.serve()
    assert "1 in a row" in fail_on_relay(node)
    assert "2 in a row" in fail_on_relay(node, "signal")
    for _again in range(2):
        done = node.guard("compose", "--v=2")
        assert "base endpoint: kubelet failed on the relay 2 times in a row" in done.stdout
        assert not node.composed.exists()
        assert node.guard("ended", SERVICE_RESULT="exit-code").stdout == ""
    (node.run / "relay-failures").unlink()
    node.guard("compose")
    assert node.composed.exists()


@rule("R12")
def test_a_kubelet_that_lived_or_was_restarted_by_order_has_not_failed(node: Node) -> None:
    node.serve()
    for _again in range(5):
        assert fail_on_relay(node, "success", lived=0) == ""
        assert fail_on_relay(node, "", lived=0) == ""
    assert "1 in a row" in fail_on_relay(node)
    assert fail_on_relay(node, "success") == ""
    assert fail_on_relay(node, "exit-code", lived=60) == ""
    assert "1 in a row" in fail_on_relay(node), "the count has ended in between"


@rule("R12")
@pytest.mark.parametrize("content", ["", "x\n", "-3\n", "100\n", "9" * 30])
def test_a_count_of_failures_that_is_none_is_not_believed(node: Node, content: str) -> None:
    node.serve()
    node.run.mkdir()
    (node.run / "relay-failures").write_text(content)
    assert "relay: ready" in node.guard("compose").stdout
    (node.run / "relay-start").write_text(content)
    assert node.guard("ended", SERVICE_RESULT="exit-code").returncode == 0


@rule("R12")
@pytest.mark.parametrize(
    "piece", ["a", "\\\\", '\\"', '"a b" ', "'\"' ", "ä", "𐍈", "$(id) ", "--a=b\n"], ids=repr
)
def test_a_long_value_takes_no_long_time(node: Node, piece: str) -> None:
    node.serve()
    value = piece * (32_768 // len(piece.encode()))
    # Of the processor, not of the clock: the machine may have other work.
    began = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    assert "relay: ready" in node.guard("compose", value).stdout
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - began < 3
    assert node.composed_value() == f"{value} {FLAG}"


@rule("R12")
def test_a_value_that_is_too_long_is_left_alone(node: Node) -> None:
    node.serve()
    done = node.guard("compose", "a" * 32_769)
    assert "base endpoint: the value of ARGS is longer than 32768 bytes" in done.stdout
    assert not node.composed.exists()


def test_mark_start(node: Node) -> None:
    node.pid_file.write_text("42\n")
    before = uptime()
    assert node.guard("mark-start").returncode == 0
    assert not node.pid_file.exists()
    noted = int((node.run / "proxy-start").read_text()) / 100
    assert before - 0.02 <= noted <= uptime()


def test_await_relay_returns_as_soon_as_it_serves(dash: Node) -> None:
    (dash.root / "proc/42").mkdir()
    later = threading.Timer(0.3, dash.serve)
    later.start()
    began = time.monotonic()
    done = dash.guard("await-relay", MAINPID="42")
    later.join()
    assert (done.returncode, done.stdout) == (0, "")
    assert elapsed(began) < SOON


def test_await_relay_notes_that_it_is_done(node: Node) -> None:
    """However that ends: compose has the rest of the budget then."""
    node.guard("mark-start")
    began = (node.run / "proxy-start").read_text()
    assert node.guard("await-relay", MAINPID="41").returncode == 1
    assert (node.run / "proxy-start").read_text() == f"{began}waited\n"
    node.serve()
    node.guard("mark-start")
    assert "waited" not in (node.run / "proxy-start").read_text()


@rule("R12")
def test_await_relay_gives_up_at_once_when_the_process_is_gone(dash: Node) -> None:
    (dash.root / "proc/41").mkdir()
    later = threading.Timer(0.3, (dash.root / "proc/41").rmdir)
    later.start()
    began = time.monotonic()
    done = dash.guard("await-relay", MAINPID="41")
    later.join()
    assert done.returncode == 1
    assert "the proxy has exited" in done.stdout
    assert elapsed(began) < SOON


def test_await_relay_does_not_keep_a_held_kubelet_waiting(dash: Node) -> None:
    (dash.root / "proc/41").mkdir()
    later = threading.Timer(0.3, dash.hold.touch)
    later.start()
    began = time.monotonic()
    done = dash.guard("await-relay", MAINPID="41")
    later.join()
    assert done.returncode == 0
    assert "held on its base endpoint" in done.stdout
    assert elapsed(began) < SOON


@rule("R12")
def test_await_relay_waits_two_thirds_of_the_budget_and_never_ends_a_proxy_that_lives(dash: Node) -> None:
    (dash.root / "proc/41").mkdir()
    began = time.monotonic()
    done = dash.guard("await-relay", MAINPID="41", CRI_RESMGR_GUARD_SECONDS="1")
    assert done.returncode == 0
    assert "the relay is not ready" in done.stdout
    assert 0.6 < elapsed(began) < SOON


def test_await_relay_counts_from_the_mark(dash: Node) -> None:
    dash.run.mkdir()
    began = time.monotonic()
    (dash.run / "proxy-start").write_text(f"{int(uptime() * 100) - 1950}\n")
    assert dash.guard("await-relay").returncode == 0
    assert 0.4 < elapsed(began) < SOON  # of two thirds of the budget, half a second is left


def test_unknown_verb(node: Node) -> None:
    assert node.guard("").returncode == 2


def test_another_root_has_to_say_that_it_is_one(node: Node) -> None:
    """So that a stray variable in a node's environment leads nowhere."""
    (node.root / ".cri-resmgr-guard-test-root").unlink()
    node.run.mkdir()
    node.composed.write_text("ARGS=old\n")
    if Path("/run/cri-resmgr-installer").exists():
        pytest.skip("this machine is a node")
    assert node.guard("reset").returncode == 0
    assert node.composed.exists()


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="needs shellcheck")
def test_shellcheck(tmp_path: Path) -> None:
    script = tmp_path / NAME
    script.write_text(unit_text(NAME))
    done = subprocess.run(["shellcheck", str(script)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")


def uptime() -> float:
    return float(Path("/proc/uptime").read_text().split()[0])


CACHE = b'{"Version":"1","Containers":{"0":{"Id":"aa"}},"PolicyJSON":{}}'


@rule("R12")
@pytest.mark.parametrize(
    ("content", "torn"),
    [(CACHE, False), (CACHE + b"\n", False), (b"", False), (CACHE[:-9], True), (b"\0" * 4096, True)],
    ids=["whole", "with-a-newline", "empty", "cut-short", "zeros"],
)
def test_a_cache_that_no_start_can_read_is_set_aside_at_the_first_start_since_boot(
    node: Node, content: bytes, torn: bool
) -> None:
    cache = node.root / "var/lib/cri-resmgr/cache"
    cache.parent.mkdir()
    cache.write_bytes(content)
    kept = cache.with_name("cache.torn")
    said = node.guard("mark-start").stdout
    assert (cache.exists(), kept.exists(), "is torn" in said) == (not torn, torn, torn)
    assert not torn or kept.read_bytes() == content
    cache.write_bytes(b"\0")
    node.guard("mark-start")
    assert cache.exists()  # containers may run by now: the installer decides
