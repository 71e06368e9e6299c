"""The test ground itself: are hosts and stand-ins what the other tests take them for?"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.host.node import DROP_IN, Node
from tests.lib.throwaway import keeper
from tests.lib.throwaway.containers import (
    Mount,
    container_pid,
    create_container,
    cri_version,
    listens,
    reach,
)
from tests.lib.throwaway.furnish import write
from tests.lib.throwaway.host import HostError, ThrowawayHost
from tests.lib.throwaway.kubelet import (
    FLAVOURS,
    healthz,
    install_kubelet,
    lay_kubelet,
    running_endpoint,
    runtime_of,
    wait_healthy,
)
from tests.lib.throwaway.payload import build_payload, lay_payload
from tests.lib.throwaway.proxy import PID_FILE, PROXY, RELAY, ready, serves, start_proxy, until
from tests.lib.throwaway.snapshot import difference, snapshot
from tests.lib.throwaway.standins.http2 import PREFACE, SETTINGS, CallError, Connection, frame

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]


def traces(name: str) -> list[str]:
    """What is left of a host on this machine."""
    found = [str(root / name) for root in keeper.cgroup_roots() if (root / name).exists()]
    found += [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if keeper.PREFIX in line]
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            # A dead process that its new parent has yet to take notice of is none.
            dead = (path / "stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
            if not dead and f"/{name}" in (path / "cgroup").read_text():
                found.append(str(path))
    return found


def test_many_keepers_remove_what_another_left_behind_at_once() -> None:
    """A killed suite leaves hosts behind, which every worker of the next one removes at its start."""
    with subprocess.Popen(["sleep", "infinity"]) as owner:
        name = f"{keeper.PREFIX}-{owner.pid}-{keeper.start_time(owner.pid)}"
        left = [root / name for root in keeper.cgroup_roots()]
        for number in range(50):
            for directory in left:
                (directory / f"{number}" / "below").mkdir(parents=True)
        owner.kill()
    command = [sys.executable, "-c", "from tests.lib.throwaway import keeper; keeper.remove_orphans()"]
    keepers = [subprocess.Popen(command, cwd=ROOT) for _ in range(4)]
    assert [process.wait() for process in keepers] == [0, 0, 0, 0]
    assert [directory for directory in left if directory.exists()] == []


# -- the host ---------------------------------------------------------------


def test_a_host_boots_in_seconds_with_systemd_bus_and_runtime(host: ThrowawayHost) -> None:
    assert host.systemctl("is-system-running") == "running"
    assert (host.root / "run/dbus/system_bus_socket").is_socket()
    assert host.run("busctl", "status").returncode == 0
    assert cri_version(host, host.runtime_socket).startswith("containerd ")


def test_a_host_is_somebody_else(host: ThrowawayHost) -> None:
    own = Path("/etc/machine-id")
    assert not own.exists() or (host.root / "etc/machine-id").read_text() != own.read_text()
    assert host.run("hostname").stdout.strip() != socket.gethostname()
    assert not (host.root / "opt/intel").exists()
    assert os.listdir(host.root / "usr/local/bin") == []
    assert not (host.root / "etc/systemd/system/kubelet.service.d").exists()


def test_a_failing_command_raises_with_what_it_said(host: ThrowawayHost) -> None:
    with pytest.raises(HostError, match="exit code 7\nsaid"):
        host.run("sh", "-c", "echo said; exit 7")
    assert host.run("cat", input="words").stdout == "words"


def test_the_disk_outlives_a_reboot_and_run_does_not(host: ThrowawayHost) -> None:
    write(host.root / "etc/kept", "kept")
    write(host.root / "run/gone", "gone")
    leader = host.leader
    host.reboot()
    assert host.leader != leader
    assert (host.root / "etc/kept").read_text() == "kept"
    assert not (host.root / "run/gone").exists()


def test_a_host_that_does_not_shut_down_says_what_still_runs() -> None:
    with ThrowawayHost() as host, pytest.raises(HostError, match="/lib/systemd/systemd"):
        host.poweroff(timeout=0.0)


def test_a_host_shuts_down_while_it_is_looked_into() -> None:
    with ThrowawayHost() as host, ThreadPoolExecutor() as pool:
        looks = [pool.submit(host.run, "sleep", "infinity", check=False) for _ in range(4)]
        host.run("sh", "-c", "until [ $(pgrep -c sleep) = 4 ]; do :; done")
        host.poweroff()
        assert all(look.result().returncode for look in looks)


def test_the_disk_outlives_a_power_cut(host: ThrowawayHost) -> None:
    write(host.root / "etc/kept", "kept")
    host.kill()
    with pytest.raises(HostError, match="not running"):
        _ = host.leader
    assert (host.disk / "etc/kept").read_text() == "kept"
    host.boot()
    assert (host.root / "etc/kept").read_text() == "kept"


def test_two_hosts_do_not_meet(payload: Path) -> None:
    def boot(_: int) -> ThrowawayHost:
        return ThrowawayHost().__enter__()

    with ThreadPoolExecutor() as pool:
        one, two = pool.map(boot, range(2))
    with one, two:
        for host in (one, two):
            install_kubelet(host, "kubeadm")
            start_proxy(host, payload)
        pid = two.show(PROXY, "MainPID")
        one.systemctl("stop", PROXY, "kubelet.service")
        one.systemctl("stop", "containerd.service")
        assert two.show(PROXY, "MainPID") == pid
        assert two.systemctl("is-active", "kubelet.service", "containerd.service") == "active\nactive"
        assert healthz(two) == "ok"
        assert healthz(one) == ""


def test_nothing_is_left_of_a_stopped_host() -> None:
    with ThrowawayHost() as host:
        create_container(host, host.runtime_socket, "one")
        assert traces(host.name) != []
    assert traces(host.name) == []


def test_nothing_is_left_of_a_host_that_failed_to_boot() -> None:
    host = ThrowawayHost(boot=False)
    with host:
        (host.disk / "etc/systemd/system/default.target").unlink()
        write(
            host.disk / "etc/systemd/system/default.target",
            "[Unit]\nWants=broken.service\nAfter=broken.service\n",
        )
        write(
            host.disk / "etc/systemd/system/broken.service", "[Service]\nType=oneshot\nExecStart=/bin/false\n"
        )
        with pytest.raises(HostError, match=r"degraded(.|\n)*broken\.service"):
            host.boot()
    assert traces(host.name) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_when_the_driver_is_killed(number: signal.Signals) -> None:
    script = (
        "import signal, time; from tests.lib.throwaway.host import ThrowawayHost\n"
        # Whoever runs the tests in the background of a shell has it ignored.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "with ThrowawayHost() as host:\n  print(host.name, flush=True); time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT
    ) as driver:
        assert driver.stdout is not None
        name = driver.stdout.readline().strip()
        assert traces(name) != []
        driver.send_signal(number)
        driver.wait(60)
    until(lambda: traces(name) == [])


def test_a_killed_keeper_takes_the_host_along_and_the_next_one_tidies_up() -> None:
    host = ThrowawayHost().__enter__()
    os.kill(int(host.name.split("-")[2]), signal.SIGKILL)
    until(lambda: not [trace for trace in traces(host.name) if trace.startswith("/proc/")])
    with pytest.raises(HostError, match="did not end cleanly"):
        host.stop()
    with ThrowawayHost(boot=False):
        assert traces(host.name) == []


# -- containers -------------------------------------------------------------


@pytest.mark.parametrize("runtime", ["containerd", "crio"])
def test_containers_run_without_a_registry(runtime: str) -> None:
    with ThrowawayHost(runtime) as host:
        write(host.root / "etc/mounted", "seen")
        mounts = [Mount("/host", "/etc", readonly=True)]
        identity = create_container(host, host.runtime_socket, "one", mounts, cpuset="0")
        pid = container_pid(host, identity)
        assert pid is not None
        assert (host.root / f"proc/{pid}/root/host/mounted").read_text() == "seen"
        assert "\nCpus_allowed_list:\t0\n" in (host.root / f"proc/{pid}/status").read_text()


# -- kubelet ----------------------------------------------------------------


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_kubelet_is_healthy_on_its_own_runtime(flavour: str) -> None:
    with ThrowawayHost(runtime_of(flavour)) as host:
        install_kubelet(host, flavour)
        used = running_endpoint(host).removeprefix("unix://").replace("/var/run/", "/run/")
        assert used == host.runtime_socket.replace("/var/run/", "/run/")
        assert host.show("kubelet.service", "NRestarts") == "0"
        assert host.systemctl("is-enabled", "kubelet.service") == "enabled"


def test_kubelet_comes_up_at_boot_and_the_snapshot_stays_the_same(host: ThrowawayHost) -> None:
    install_kubelet(host, "kubeadm")
    before = snapshot(host)
    assert difference(before, snapshot(host)) == []
    host.reboot()
    wait_healthy(host)
    assert difference(before, snapshot(host)) == []


def test_the_snapshot_sees_content_mode_owner_link_and_enablement(host: ThrowawayHost) -> None:
    install_kubelet(host, "kubeadm")
    before = snapshot(host)
    etc = host.root / "etc"
    size = (etc / "default/kubelet").stat().st_size
    (etc / "default/kubelet").write_text("#" * size)
    (etc / "hosts").chmod(0o600)
    os.chown(etc / "passwd", 1, 0)
    (etc / "mtab.new").symlink_to("nowhere")
    host.systemctl("disable", "kubelet.service")
    found = [line.split()[1] for line in difference(before, snapshot(host))]
    assert [name for name in found if not name.startswith("kubelet:")] == [
        "/etc/default/kubelet:",
        "/etc/hosts:",
        "/etc/mtab.new:",
        "/etc/passwd:",
        "/etc/systemd/system/multi-user.target.wants/kubelet.service:",
        "unit:kubelet.service:",
    ]
    assert "kubelet:UnitFileState:" in found


def test_kubelet_exits_on_a_dead_endpoint_at_once_and_on_a_silent_one_after_five_seconds(
    host: ThrowawayHost,
) -> None:
    lay_kubelet(host, "plain-absent")

    def seconds(path: str) -> float:
        begun = time.monotonic()
        argument = f"--container-runtime-endpoint=unix://{path}"
        assert host.run("/usr/bin/kubelet", argument, check=False).returncode == 1
        return time.monotonic() - begun

    # Once in a few tries is enough: a busy machine may be late.
    assert any(seconds("/run/nothing.sock") < 4.5 for _again in range(5))
    silent = socket.socket(socket.AF_UNIX)
    silent.bind(reach(host, "/run/silent.sock"))
    assert any(seconds("/run/silent.sock") < 4.5 for _again in range(5))
    silent.listen()
    assert seconds("/run/silent.sock") > 4.5
    silent.close()


def test_kubelet_faults(host: ThrowawayHost) -> None:
    install_kubelet(host, "plain-one-word")
    write(host.root / "etc/standin-kubelet.json", '{"healthz": false}')
    assert healthz(host) == "failed"
    write(host.root / "etc/standin-kubelet.json", '{"exitOnRelay": true}')
    assert healthz(host) == "ok"
    done = host.run("/usr/bin/kubelet", f"--container-runtime-endpoint=unix://{RELAY}", check=False)
    assert done.returncode == 1
    assert "this one is broken" in done.stderr


# -- cri-resmgr -------------------------------------------------------------


def test_the_proxy_listens_then_serves_then_writes_its_pid(host: ThrowawayHost, payload: Path) -> None:
    write(host.root / "etc/standin-cri-resmgr.json", '{"serveDelaySeconds": 3, "pidDelaySeconds": 3}')
    lay_payload(host, payload)
    write(host.disk / "etc/cri-resmgr/fallback.cfg", "")
    host.systemctl("daemon-reload")
    host.systemctl("start", "--no-block", PROXY)
    listening = until(lambda: listens(host, RELAY))
    assert not serves(host)
    serving = until(lambda: serves(host))
    assert not ready(host)
    written = until(lambda: ready(host))
    assert listening < serving < written
    pid = int((host.root / PID_FILE[1:]).read_text())
    assert pid == int(host.show(PROXY, "MainPID"))
    assert (host.root / f"proc/{pid}/comm").read_text() == "cri-resmgr\n"


def test_containers_and_many_calls_go_through_the_proxy(host: ThrowawayHost, payload: Path) -> None:
    start_proxy(host, payload)
    assert container_pid(host, create_container(host, RELAY, "one")) is not None
    with ThreadPoolExecutor(20) as pool:
        answers = set(pool.map(lambda _: cri_version(host, RELAY), range(200)))
    assert len(answers) == 1


def test_the_relay_fails_each_call_while_the_runtime_is_away(host: ThrowawayHost, payload: Path) -> None:
    """HTTP/2 is served all the same: `Connection.frame` reads the SETTINGS."""
    start_proxy(host, payload)
    host.systemctl("stop", "containerd")
    connection = Connection.to(reach(host, RELAY), 60.0)
    connection.socket.sendall(PREFACE + frame(SETTINGS, 0, 0))
    assert connection.frame()[0] == SETTINGS
    connection.close()
    with pytest.raises(CallError):
        cri_version(host, RELAY)
    host.systemctl("start", "containerd")
    until(lambda: serves(host))
    assert host.show(PROXY, "NRestarts") == "0"


def test_a_start_of_the_proxy_lasts_as_long_as_its_containers_call_for(
    host: ThrowawayHost, payload: Path
) -> None:
    write(host.root / "etc/standin-cri-resmgr.json", '{"containers": 40}')
    began = time.monotonic()
    start_proxy(host, payload, "policy:\n  Active: topology-aware\n  ReservedResources: {CPU: 750m}\n")
    assert time.monotonic() - began > 40 * 0.018


@pytest.mark.parametrize("fault", ["exit", "hang", "listen-only"])
def test_a_payload_may_be_broken_by_itself(host: ThrowawayHost, tmp_path: Path, fault: str) -> None:
    lay_payload(host, build_payload(tmp_path / "broken", fault=fault))
    write(host.disk / "etc/cri-resmgr/fallback.cfg", "")
    host.systemctl("daemon-reload")
    host.systemctl("start", PROXY)
    if fault == "exit":
        until(lambda: host.systemctl("is-failed", PROXY, check=False) == "failed")
        assert host.show(PROXY, "ExecMainStatus") == "1"
        return
    until(lambda: "synchronizing cache with runtime" in host.journal(PROXY))
    assert host.systemctl("is-active", PROXY) == "active"
    assert listens(host, RELAY) == (fault == "listen-only")
    assert not serves(host)
    assert not ready(host)
    # What the host's file says goes before what was baked in.
    write(host.root / "etc/standin-cri-resmgr.json", '{"startup": ""}')
    host.systemctl("restart", PROXY)
    until(lambda: ready(host))


def test_the_proxy_waits_for_a_runtime_that_is_not_there_yet(host: ThrowawayHost, payload: Path) -> None:
    host.systemctl("stop", "containerd.service")
    (host.root / "run/containerd/containerd.sock").unlink(missing_ok=True)
    lay_payload(host, payload)
    write(host.disk / "etc/cri-resmgr/fallback.cfg", "")
    host.systemctl("daemon-reload")
    host.systemctl("start", PROXY)
    until(lambda: "waiting for image services" in host.journal(PROXY))
    host.systemctl("start", "containerd.service")
    until(lambda: serves(host))
    assert host.show(PROXY, "NRestarts") == "0"


def test_kubelet_works_through_the_proxy(host: ThrowawayHost, payload: Path) -> None:
    install_kubelet(host, "kubeadm")
    start_proxy(host, payload)
    write(
        host.root / "etc/default/kubelet", f"KUBELET_EXTRA_ARGS=--container-runtime-endpoint=unix://{RELAY}\n"
    )
    host.systemctl("restart", "kubelet.service")
    wait_healthy(host)
    assert running_endpoint(host) == f"unix://{RELAY}"


def test_what_systemd_dislikes_in_a_unit_file_of_ours_is_seen(host: ThrowawayHost, tmp_path: Path) -> None:
    node = Node(host, tmp_path)
    assert not node.complaints()
    write(node.path(DROP_IN), "[Service]\nNoSuchKey=1\n")
    host.systemctl("daemon-reload")
    assert all("NoSuchKey" in line for line in node.complaints())
    assert node.complaints()
