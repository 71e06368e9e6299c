"""`run` on a real host that gives it no process, no room, no bus."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.host.daemon import SOON, within
from tests.host.node import GUARD, PROXY, Node
from tests.host.watched import MODE_FILE, daemon
from tests.lib.rules import rule
from tests.lib.throwaway.kubelet import UNIT


def test_where_no_process_can_be_started_it_waits_and_says_so(node: Node, tmp_path: Path) -> None:
    node.run("install")
    with daemon(node, tmp_path) as running, node.restarts(kubelet=False, proxy=False):
        running.settle()
        with no_more_processes(running.process.pid):
            node.path(GUARD).unlink()
            running.reach("failed")
            assert not running.ready_file.exists()
            assert "can't start new thread" in running.messages("state")[-1]
        within(SOON, node.path(GUARD).exists)
        running.settle()


@contextmanager
def no_more_processes(pid: int) -> Iterator[None]:
    """The pids cgroup of this process is full."""
    old = Path("/sys/fs/cgroup/pids")
    group = (old if old.is_dir() else Path("/sys/fs/cgroup")) / f"cri-resmgr-installer-test-{pid}"
    home = (group.parent / "cgroup.procs").open("w")
    group.mkdir()
    try:
        (group / "cgroup.procs").write_text(str(pid))
        (group / "pids.max").write_text((group / "pids.current").read_text())
        yield
    finally:
        with home:
            home.write(str(pid))
        group.rmdir()


def test_without_room_for_its_own_state_it_settles_all_the_same(node: Node, tmp_path: Path) -> None:
    node.run("install")
    node.host.run("mkdir", "-p", Path(MODE_FILE).parent.as_posix())
    node.host.run("mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", Path(MODE_FILE).parent.as_posix())
    try:
        node.host.run("sh", "-c", f"head -c 4096 /dev/zero >{Path(MODE_FILE).parent}/full")
        with daemon(node, tmp_path) as running:
            running.settle()
            assert [message for message in running.messages("warning") if "No space left" in message]
    finally:
        node.host.run("umount", Path(MODE_FILE).parent.as_posix())


@rule("R15")
def test_a_lost_bus_is_found_again(node: Node, tmp_path: Path) -> None:
    node.run("install")
    with daemon(node, tmp_path) as running:
        running.settle()
        node.host.systemctl("restart", "dbus.service")
        node.host.systemctl("stop", PROXY)
        within(SOON, lambda: node.host.systemctl("is-active", PROXY, check=False) == "active")
        running.settle()
        node.host.systemctl("stop", UNIT)  # which nothing but a signal of systemd's tells
        running.reach("unwell")
        node.host.systemctl("start", UNIT)
        running.settle()
