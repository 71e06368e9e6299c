"""The smaller adapters: run, clock, identity, processes, healthz, validator, wire format."""

from __future__ import annotations

import contextlib
import http.server
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from pytest_mock import MockerFixture

from installer.errors import (
    InterruptedRunError,
    RolledBackError,
    StepFailedError,
    UnservableHostError,
)
from installer.host import clock as clock_module
from installer.host.chase import opened
from installer.host.clock import SystemClock
from installer.host.command import run
from installer.host.files import RootedFiles
from installer.host.healthz import HostHealthz
from installer.host.machine import host_identity
from installer.host.process import ProcProcesses
from installer.host.protobuf import decode, encode, integer, mapping, messages, text
from installer.host.validator import BinaryValidator
from installer.model.host import Health, Machine
from installer.model.paths import OUR_RUNTIME
from tests.host.daemon import SOON, within
from tests.lib.releases import elf
from tests.lib.rules import rule

HERE = Path("/")

# -- start-up ------------------------------------------------------------------

HEAVY = ("pydbus", "gi", "psutil", "subprocess", "grpc", "ctypes")


def test_building_a_host_imports_nothing_heavy() -> None:
    code = "import sys; from installer.host.real import build_host; from pathlib import Path; "
    code += f"build_host(Path('/nowhere')); print(*(set({HEAVY!r}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


# -- run ------------------------------------------------------------------------


def test_run_gives_output_and_code() -> None:
    finished = run(("sh", "-c", "echo out; echo err >&2; exit 3"), 5)
    assert (finished.code, finished.lines) == (3, ("out", "err"))
    assert finished.failure == "`sh -c 'echo out; echo err >&2; exit 3'`: exit code 3: err"


def test_run_has_no_stdin_and_a_clean_environment() -> None:
    assert run(("sh", "-c", "cat; env"), 5).output.count("=") == 3  # PATH, LC_ALL and sh's own PWD


@rule("R9")
def test_run_ends_at_its_deadline_with_all_it_started() -> None:
    started = time.monotonic()
    finished = run(("sh", "-c", "sleep 54321 & echo $!; sleep 54321"), 2)
    assert time.monotonic() - started < 60
    assert finished.code is None
    assert "did not end in time" in finished.failure
    # Killed before `run` returned; that the kernel has buried it is another's wait.
    within(SOON, lambda: not _alive(int(finished.output)))


@rule("R9")
def test_run_does_not_wait_for_what_even_sigkill_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a system call that hangs. Its debugger, which has not taken note of its end, keeps it here."""
    monkeypatch.setattr("installer.host.command._REAP_SECONDS", 0.2)
    kept = """
import ctypes, os, time
c = ctypes.CDLL(None, use_errno=True)
c.prctl(0x59616D61, ctypes.c_ulong(-1), 0, 0, 0)  # PR_SET_PTRACER
if os.fork():
    time.sleep(60)
os.setsid()
if c.ptrace(0x4206, os.getppid(), 0, 0) == 0:  # PTRACE_SEIZE
    print(os.getpid(), flush=True)
time.sleep(60)
"""
    started = time.monotonic()
    finished = run((sys.executable, "-c", kept), 3)
    took = time.monotonic() - started
    os.kill(int(finished.output), signal.SIGKILL)
    assert finished.code is None
    assert took < 30


def test_run_does_not_wait_for_a_left_over_child() -> None:
    started = time.monotonic()
    assert run(("sh", "-c", "sleep 54321 & exit 0"), 600).code == 0
    assert time.monotonic() - started < 60


def test_the_last_words_count_however_late_we_look(tmp_path: Path, mocker: MockerFixture) -> None:
    """A process that speaks and ends just after a look at its output, and before a look at itself."""
    fifo, ended = tmp_path / "fifo", subprocess.Popen.wait
    os.mkfifo(fifo)

    def poll(process: subprocess.Popen[bytes]) -> int:
        if fifo.exists():
            fifo.write_text("speak\n")
            fifo.unlink()
        return ended(process)

    mocker.patch.object(subprocess.Popen, "poll", poll)
    finished = run(("sh", "-c", f"read word <{fifo}; echo last words"), 60)
    assert (finished.code, finished.output) == (0, "last words\n")


def test_run_keeps_the_end_of_a_long_output_in_time() -> None:
    finished = run(("sh", "-c", "head -c 200000000 /dev/zero; echo end"), 5, keep=16 << 20)
    assert finished.code == 0
    assert len(finished.output) == 16 << 20
    assert finished.output.endswith("end\n")


def test_run_kills_what_has_said_its_word() -> None:
    started = time.monotonic()
    finished = run(("sh", "-c", "echo the word is out >&2; sleep 54321"), 600, until="word is")
    assert finished.seen
    assert time.monotonic() - started < 60


def test_run_of_what_is_not_there() -> None:
    finished = run(("/is/not/there",), 5)
    assert (finished.code, finished.output) == (127, "No such file or directory")


def _alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


# -- clock ----------------------------------------------------------------------


@pytest.fixture
def handlers(mocker: MockerFixture) -> Iterator[None]:
    mocker.patch.object(clock_module, "_stop", clock_module._StopRequest())
    before = {number: signal.getsignal(number) for number in clock_module._SIGNALS}
    clock_module.install_signal_handlers()
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_sleep_at_once(number: signal.Signals) -> None:
    clock = SystemClock()
    clock.check()
    timer = threading.Timer(0.1, os.kill, (os.getpid(), number))
    timer.start()
    started = time.monotonic()
    with pytest.raises(InterruptedRunError) as caught:
        clock.sleep(600)
    timer.join()
    assert time.monotonic() - started < 60
    assert caught.value.exit_code == 128 + number
    assert signal.getsignal(number) is signal.SIG_DFL
    with pytest.raises(InterruptedRunError):
        clock.check()


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize(
    ("wrapper", "number"), [(("nohup",), signal.SIGHUP), ((), signal.SIGTSTP)], ids=["nohup", "Ctrl-Z"]
)
def test_neither_a_lost_terminal_under_nohup_nor_ctrl_z_keeps_a_run_from_its_end(
    wrapper: tuple[str, ...], number: signal.Signals
) -> None:
    code = (
        "import os; from installer.host import clock; clock.install_signal_handlers(); "
        f"clock.ignore_suspension(); os.kill(os.getpid(), {number:d}); clock.SystemClock().sleep(0); "
        "print('done')"
    )
    # Not in a session of its own: the kernel stops nothing there.
    argv = (*wrapper, sys.executable, "-c", code)
    run_of_ours = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, process_group=0)
    try:
        said, _ = run_of_ours.communicate(timeout=SOON)
    finally:
        run_of_ours.kill()
    assert (said, run_of_ours.returncode) == (b"done\n", 0)


def test_a_sleep_without_a_signal() -> None:
    clock = SystemClock()
    before = clock.monotonic()
    clock.sleep(0.05)
    assert clock.monotonic() - before >= 0.05


# -- identity, processes --------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "machine"),
    [(elf(62), "x86_64"), (elf(183), "aarch64"), (elf(21), "ppc64le"), (elf(22, little=False), "s390x")],
)
def test_identity_is_the_hosts(tmp_path: Path, header: bytes, machine: str) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "bin").symlink_to("/usr/bin")
    (tmp_path / "usr/bin/sh").symlink_to("dash")
    (tmp_path / "usr/bin/dash").write_bytes(header)
    (tmp_path / "etc/machine-id").write_text("0123456789abcdef0123456789abcdef\n")
    (tmp_path / "etc/hostname").write_text("# a name\nnode-7\n")
    (tmp_path / "sys/devices/system/cpu").mkdir(parents=True)
    (tmp_path / "sys/devices/system/cpu/present").write_text("0-3\n")
    found = Machine(machine, "0123456789abcdef0123456789abcdef", "node-7", cpus="0-3")
    assert host_identity(RootedFiles(tmp_path)) == found


def test_identity_of_a_bare_root(tmp_path: Path) -> None:
    identity = host_identity(RootedFiles(tmp_path))
    assert (identity.architecture, identity.machine_id) == (os.uname().machine, "")
    assert identity.hostname


def test_a_file_of_what_ends_while_it_is_read_is_absent(mocker: MockerFixture) -> None:
    @contextlib.contextmanager
    def then_it_ends(root: Path, path: str, *, follow: bool) -> Iterator[tuple[str, os.stat_result]]:
        with opened(root, path, follow=follow) as found:
            process.kill()
            process.wait()
            yield found

    with subprocess.Popen(["sleep", "60"]) as process:
        mocker.patch("installer.host.files.opened", then_it_ends)
        assert RootedFiles(HERE).read(f"/proc/{process.pid}/cgroup") is None


def test_a_process_testifies() -> None:
    environment = {"CRI_RESMGR_INSTALLER_GENERATION": "abc", "NASTY": 'a=b "c" \n$d'}
    environment["PATH"] = os.environ["PATH"]
    with subprocess.Popen(
        ["cat"], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        # Popen returns in the middle of execve(2), before there are arguments to be seen.
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("runs\n")
        process.stdin.flush()
        assert process.stdout.readline() == "runs\n"
        state = ProcProcesses(HERE).get(process.pid)
        assert state
        assert (state.argv, state.generation) == (("cat",), "abc")
        assert state.environ["NASTY"] == environment["NASTY"]
        assert state.exe.endswith("/cat")
        # No age is asserted but in comparison: how fast this machine is does not matter.
        elder = ProcProcesses(HERE).get(os.getpid())
        assert elder
        assert 0 <= state.age < elder.age
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert ProcProcesses(HERE).get(process.pid) is None  # a zombie
    assert ProcProcesses(HERE).get(process.pid) is None
    assert psutil.Process().ppid() == os.getppid()  # others of this process use it, too


# -- healthz --------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/healthz?x=1" else 500)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{serving.server_port}"
        serving.shutdown()


@pytest.fixture
def own_namespace(tmp_path: Path) -> Path:
    """A root whose first process is this one: no namespace has to be entered."""
    (tmp_path / "proc/1/ns").mkdir(parents=True)
    (tmp_path / "proc/1/ns/net").symlink_to("/proc/self/ns/net")
    (tmp_path / f"proc/{os.getpid()}").symlink_to("/proc/self")
    return tmp_path


def test_healthz(server: str, own_namespace: Path) -> None:
    healthz = HostHealthz(own_namespace)
    assert healthz.ask("", 0) is Health.OK
    assert healthz.ask(f"{server}/healthz?x=1", os.getpid()) is Health.OK
    assert healthz.ask(f"{server}/other", os.getpid()) is Health.UNWELL


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::1", "::"])
def test_healthz_is_believed_of_the_process_that_listens_there_alone(
    own_namespace: Path, address: str
) -> None:
    """Any user of a node may take the port while kubelet is away, and say anything."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    kubelet = subprocess.Popen(["/bin/sleep", "600"])
    try:
        (own_namespace / f"proc/{kubelet.pid}").symlink_to(f"/proc/{kubelet.pid}")
        healthz = HostHealthz(own_namespace)
        with socket.create_server((address, 0), family=family, dualstack_ipv6=address == "::") as held:
            host = "[::1]" if address == "::1" else "127.0.0.1"
            url = f"http://{host}:{held.getsockname()[1]}/healthz"
            assert healthz.ask(url, kubelet.pid) is Health.FOREIGN
            assert healthz.ask(url, os.getpid(), 0.2) is Health.UNWELL, "it listens, and does not answer"
        assert healthz.ask(url, kubelet.pid) is Health.UNWELL, "nobody listens"
    finally:
        kubelet.kill()
        kubelet.wait()
    assert healthz.ask(url, kubelet.pid) is Health.UNWELL, "it has ended"


_BINDS = "import socket, sys; s = socket.create_server(('::', int(sys.argv[1])), family=socket.AF_INET6)"


@pytest.mark.parametrize("own", ["127.0.0.1", "0.0.0.0"])
def test_who_has_the_address_itself_counts_before_a_socket_for_any(own_namespace: Path, own: str) -> None:
    """Somebody's socket for IPv6 alone gets nothing of what is sent to kubelet."""
    with socket.create_server((own, 0)) as kubelets:
        port = str(kubelets.getsockname()[1])
        program = [sys.executable, "-c", f"{_BINDS}; print(flush=True); input()", port]
        with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as theirs:
            assert theirs.stdout
            assert theirs.stdout.readline() == b"\n"
            (own_namespace / f"proc/{theirs.pid}").symlink_to(f"/proc/{theirs.pid}")
            url = f"http://127.0.0.1:{port}/healthz"
            healthz = HostHealthz(own_namespace)
            assert healthz.ask(url, os.getpid(), 0.2) is Health.UNWELL, "it listens, and does not answer"
            assert healthz.ask(url, theirs.pid, 0.2) is Health.FOREIGN
            theirs.kill()


@rule("R9")
def test_healthz_of_nobody_and_of_the_silent(own_namespace: Path) -> None:
    healthz = HostHealthz(own_namespace)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        started = time.monotonic()
        assert healthz.ask(f"http://127.0.0.1:{port}/healthz", os.getpid(), 0.2) is Health.UNWELL
        assert time.monotonic() - started < 60
    assert healthz.ask(f"http://127.0.0.1:{port}/healthz", os.getpid(), 0.2) is Health.UNWELL


# -- validator ------------------------------------------------------------------


def program(tmp_path: Path, body: str) -> Path:
    place = tmp_path / "cri-resmgr"
    place.write_text(
        f"#!/bin/sh\nfor word; do case $word in --fallback-config=*) f=${{word#*=}};; esac; done\n{body}"
    )
    place.chmod(0o755)
    return place


def test_validator(tmp_path: Path) -> None:
    binary = program(
        tmp_path,
        'if grep -q bad "$f"; then echo "I: [ x ] hi"; echo "F: [ x ] $f: unknown policy" >&2; exit 1; fi\n'
        'echo "I: [ x ] waiting for image services to become available..." >&2; sleep 54321',
    )
    validator = BinaryValidator(RootedFiles(tmp_path))
    assert validator.validate(binary, b"good") == ""
    assert validator.validate(binary, b"bad") == "F: [ x ] fallback.cfg: unknown policy"


def test_the_cause_comes_first_whatever_is_said_around_it(tmp_path: Path) -> None:
    """As cri-resmgr's logger does, which writes another head where it thinks that nobody keeps a journal."""
    lines = ("W: [ x ] noise", "F: [ x ] $f: the cause", "I: [ x ] shutting down")
    said = "; ".join(f'echo "{line}"' for line in lines)
    binary = program(tmp_path, f'[ -z "$JOURNAL_STREAM" ] || {{ {said}; }}; exit 1')
    said = BinaryValidator(RootedFiles(tmp_path)).validate(binary, b"")
    assert said == "F: [ x ] fallback.cfg: the cause"
    binary = program(tmp_path, 'echo noise; echo "??? F1121 23:00:00.5 1 x.go:7] the cause"; exit 1')
    assert BinaryValidator(RootedFiles(tmp_path)).validate(binary, b"").endswith("the cause")


def test_a_complaint_of_megabytes_is_cut(tmp_path: Path) -> None:
    endless = program(tmp_path, "head -c 3000000 /dev/zero | tr '\\0' x; exit 1")
    complaint = BinaryValidator(RootedFiles(tmp_path)).validate(endless, b"")
    assert complaint.startswith("xxx")
    assert len(complaint) <= 4096


@rule("R8")
def test_a_deadline_that_passes_blames_nothing(tmp_path: Path) -> None:
    binary = program(tmp_path, 'echo "W: [ x ] noise"; sleep 54321')
    with pytest.raises(RolledBackError, match=r"could not be checked now: .* within 0.5 s") as failure:
        BinaryValidator(RootedFiles(tmp_path), seconds=0.5).validate(binary, b"")
    assert not failure.value.remembered
    assert not list(tmp_path.rglob("check"))


def test_what_the_validator_has_started_dies_with_us_and_its_directory_goes_later(tmp_path: Path) -> None:
    binary = program(
        tmp_path, 'echo $$ >"${0%/*}/pid.new"; mv "${0%/*}/pid.new" "${0%/*}/pid"; exec sleep 54321'
    )
    files = RootedFiles(tmp_path / "root")
    files.root.mkdir()
    code = "from installer.host.validator import BinaryValidator as V; from pathlib import Path; "
    code += "from installer.host.files import RootedFiles; "
    code += f"V(RootedFiles(Path({str(files.root)!r}))).validate(Path({str(binary)!r}), b'')"
    with subprocess.Popen([sys.executable, "-c", code]) as killed:
        within(SOON, (tmp_path / "pid").exists)
        killed.kill()
    started = Path("/proc", (tmp_path / "pid").read_text().strip())
    within(SOON, lambda: not started.exists())
    # Below what a removal takes along, and the next boot.
    assert [str(path.relative_to(files.root)) for path in files.root.rglob("check")] == [
        f"{OUR_RUNTIME[1:]}/check"
    ]
    binary.write_text("#!/bin/sh\nexit 1\n")
    assert BinaryValidator(files).validate(binary, b"")
    assert files.list(OUR_RUNTIME) == ()


def test_the_validator_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    validator = BinaryValidator(RootedFiles(tmp_path / "root"))
    assert validator.validate(program(tmp_path, "echo 'F: no'; touch ${f%/*}/x; exit 1"), b"") == "F: no"
    assert not list((tmp_path / "root").iterdir())


def test_the_validator_without_a_place_says_so(tmp_path: Path) -> None:
    (tmp_path / "run").touch()
    with pytest.raises(UnservableHostError, match="/run is in the way"):
        BinaryValidator(RootedFiles(tmp_path)).validate(tmp_path / "x", b"")


def test_validator_of_what_does_not_run(tmp_path: Path) -> None:
    (tmp_path / "not-a-program").write_bytes(elf(22, little=False))
    (tmp_path / "not-a-program").chmod(0o755)
    assert "rror" in BinaryValidator(RootedFiles(tmp_path)).validate(tmp_path / "not-a-program", b"")


def test_see_containers_runs_it_alone_until_it_serves(tmp_path: Path) -> None:
    """With the policy none, on the proxy's own state and the runtime, at a relay that nobody knows."""
    binary = program(
        tmp_path,
        "for word; do case $word in --relay-dir=*) d=${word#*=};; --force-config=*) f=${word#*=};; "
        "--runtime-socket=*) r=${word#*=};; --relay-socket=*) s=${word#*=};; esac; done\n"
        'cat "$f" "$r" >"$d/cache"; echo "$s" >"$d/relay"; echo "I: up and running"; sleep 60',
    )
    (tmp_path / "state").mkdir()
    (tmp_path / "runtime.sock").write_text("the runtime\n")
    files = RootedFiles(tmp_path)
    with files.opened("/state") as state:
        said = BinaryValidator(files).see_containers(binary, state, tmp_path / "runtime.sock", 30.0)
    assert said == ""
    assert (tmp_path / "state/cache").read_text() == "policy:\n  Active: none\nthe runtime\n"
    assert "/var/run/cri-resmgr/" not in (tmp_path / "state/relay").read_text()
    assert not (tmp_path / "run/cri-resmgr-installer").exists()


def test_see_containers_of_a_program_that_refuses_or_hangs(tmp_path: Path) -> None:
    refuses = program(tmp_path, "echo 'F: torn'; exit 1")
    assert (
        BinaryValidator(RootedFiles(tmp_path)).see_containers(refuses, tmp_path, tmp_path, 30.0) == "F: torn"
    )
    hangs = program(tmp_path, "sleep 60")
    with pytest.raises(StepFailedError, match="has not read the running containers") as failure:
        BinaryValidator(RootedFiles(tmp_path)).see_containers(hangs, tmp_path, tmp_path, 0.2)
    assert failure.value.interfered


# -- wire format, sockets -------------------------------------------------------


def test_protobuf_round_trip() -> None:
    entry = encode(1, b"key") + encode(2, b"value")
    data = encode(1, 300) + encode(2, "größe".encode()) + encode(3, entry) + encode(3, encode(1, b"empty"))
    fields = decode(data)
    assert (integer(fields, 1), text(fields, 2)) == (300, "größe")
    assert mapping(fields, 3) == {"key": "value", "empty": ""}
    assert len(messages(fields, 3)) == 2
    assert (integer(fields, 9), text(fields, 9), mapping(fields, 9)) == (0, "", {})


@pytest.mark.parametrize(
    "data", [b"\x08", b"\x0a\x05abc", b"\x0b", b"\xff\xff", b"\x08" + b"\x80" * 10 + b"\x01"]
)
def test_protobuf_of_what_is_none(data: bytes) -> None:
    with pytest.raises(ValueError, match="protobuf"):
        decode(data)


def test_a_socket_with_a_long_path_is_reached(tmp_path: Path) -> None:
    directory = tmp_path / ("d" * 120)
    directory.mkdir()
    with (
        socket.socket(socket.AF_UNIX) as server,
        socket.socket(socket.AF_UNIX) as client,
    ):
        with contextlib.chdir(directory):
            server.bind("s")
        server.listen()
        with RootedFiles(tmp_path).opened(f"/{directory.name}/s") as place:
            client.connect(str(place))
