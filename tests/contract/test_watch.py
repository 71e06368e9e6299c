"""The main loop on the real kernel: what it tells of directories, and what becomes of its children."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from gi.repository import GLib

from installer.daemon.watch import EventLoop, WatchSpec, find_directories
from installer.host.command import run
from installer.model.daemon import Job
from tests.lib.event_loop import SOON, Scene
from tests.lib.hung_mount import hung_mount
from tests.lib.own_process import remove_sources, sources, tidied
from tests.lib.rules import rule


@pytest.fixture
def scene() -> Iterator[Scene]:
    remove_sources(sources())  # of whoever has used this process's loop before, and would begin more
    with tidied():
        made = Scene()
        yield made
        made.loop.watch({}, made.changed)
    assert not made.failures


# -- directories ----------------------------------------------------------------------


def test_what_comes_changes_and_goes_in_a_directory_is_told(tmp_path: Path, scene: Scene) -> None:
    scene.loop.watch(
        find_directories([WatchSpec(tmp_path, "/etc"), WatchSpec(tmp_path, "/nowhere")]), scene.changed
    )
    assert scene.hears_nothing()
    (tmp_path / "etc").mkdir()
    scene.loop.watch(find_directories([WatchSpec(tmp_path, "/etc")]), scene.changed)
    file, other = tmp_path / "etc/x", tmp_path / "etc/y"
    changes: tuple[Callable[[], object], ...] = (
        file.touch,
        lambda: file.write_text("x"),
        lambda: file.chmod(0o600),
        lambda: file.rename(other),
        other.unlink,
        (tmp_path / "etc").rmdir,
    )
    for change in changes:
        change()
        assert scene.hears()


def test_a_change_is_told_at_once(tmp_path: Path, scene: Scene) -> None:
    scene.loop.watch(find_directories([WatchSpec(tmp_path, "/")]), scene.changed)

    def told_at_once(change: Callable[[], None]) -> bool:
        started = time.monotonic()
        change()
        assert scene.until(lambda: scene.told > 0)
        took = time.monotonic() - started
        assert scene.hears()
        return took < 0.4

    # Once is enough: a busy machine may be late, and GLib's own limit, 0.8 s, is never early.
    for _again in range(20):
        created, deleted = told_at_once((tmp_path / "x").touch), told_at_once((tmp_path / "x").unlink)
        if created and deleted:
            return
    pytest.fail("each change arrives late")


def test_a_directory_that_no_descriptor_is_left_for_is_not_gone(tmp_path: Path) -> None:
    free = os.open("/", os.O_RDONLY)
    os.close(free)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, hard))
    try:
        with pytest.raises(OSError, match="Too many open files") as raised:
            find_directories([WatchSpec(tmp_path, "/nowhere"), WatchSpec(tmp_path, "/")])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert raised.value.errno == errno.EMFILE


def test_other_names_and_other_directories_are_not_told(tmp_path: Path, scene: Scene) -> None:
    for directory in ("a", "b"):
        (tmp_path / directory).mkdir()
    scene.loop.watch(
        find_directories([WatchSpec(tmp_path, "/a", frozenset("x")), WatchSpec(tmp_path, "/b")]),
        scene.changed,
    )
    (tmp_path / "a/y").touch()
    assert scene.hears_nothing()
    specs = [WatchSpec(tmp_path, "/a", frozenset("x")), WatchSpec(tmp_path, "/a", frozenset("z"))]
    scene.loop.watch(find_directories(specs), scene.changed)
    (tmp_path / "b/x").touch()
    assert scene.hears_nothing()
    for name in "xz":
        (tmp_path / "a" / name).touch()
        assert scene.hears()


def test_a_directory_that_replaces_another_is_watched_from_the_next_call_on(
    tmp_path: Path, scene: Scene
) -> None:
    specs = [WatchSpec(tmp_path, "/etc", frozenset({"d"})), WatchSpec(tmp_path, "/etc/d", frozenset("x"))]
    (tmp_path / "etc/d").mkdir(parents=True)
    scene.loop.watch(find_directories(specs), scene.changed)
    for turn in range(3):
        (tmp_path / "etc/d").rename(tmp_path / f"etc/old{turn}")
        (tmp_path / "etc/d").mkdir()
        assert scene.hears()
        scene.loop.watch(find_directories(specs), scene.changed)
        assert scene.hears_nothing()
        (tmp_path / f"etc/old{turn}/x").touch()
        assert scene.hears_nothing()
        (tmp_path / "etc/d/x").touch()
        assert scene.hears()


def test_links_are_followed_below_the_root(tmp_path: Path, scene: Scene) -> None:
    root = tmp_path / "root"
    (root / "run/ours").mkdir(parents=True)
    (root / "var").mkdir()
    (root / "var/run").symlink_to("/run")  # below the root, whatever /run is outside
    (root / "out").symlink_to("../..")
    scene.loop.watch(
        find_directories([WatchSpec(root, "/var/run/ours"), WatchSpec(root, "/out")]), scene.changed
    )
    (tmp_path / "outside").touch()
    assert scene.hears_nothing()
    (root / "run/ours/x").touch()
    assert scene.hears()


# -- callbacks ------------------------------------------------------------------------


@rule("R15")
def test_whatever_a_callback_raises_the_loop_works_on() -> None:
    scene = Scene()

    def fail(*_: object) -> None:
        raise ValueError("a bug")

    scene.loop.on_signal(signal.SIGUSR1, fail)
    scene.loop.after(0.0, fail)
    scene.loop.start(Job((sys.executable, "-c", "print(1); print(2)"), fail, fail, 60, 60))
    assert scene.until(lambda: len(scene.failures) == 4)
    for count in (5, 6):  # the signal's source is still there
        os.kill(os.getpid(), signal.SIGUSR1)
        assert scene.until(lambda count=count: len(scene.failures) == count)  # type: ignore[misc]
    assert scene.loop.guarded(fail, "instead")() == "instead"


@rule("R15")
def test_a_share_that_is_unmounted_and_then_hangs_keeps_back_no_signal_and_no_child(
    scene: Scene, tmp_path: Path
) -> None:
    """As with autofs whose server is gone: GLib looks every four seconds whether the directory is back."""
    heard, ended = list[str](), list[int]()
    scene.loop.on_signal(signal.SIGUSR1, lambda: heard.append("signal"))
    share = tmp_path / "share"
    with ExitStack() as stack:
        try:
            stack.enter_context(hung_mount(share))
        except OSError as error:
            pytest.skip(f"this machine mounts nothing: {error}")
        subprocess.run(["mount", "-t", "tmpfs", "share", share], check=True)
        (share / "configs").mkdir()
        scene.loop.watch(find_directories([WatchSpec(tmp_path, "/share/configs")]), scene.changed)
        subprocess.run(["umount", share], check=True)
        assert scene.until(lambda: any(map(_hangs_in_fuse, Path("/proc/self/task").iterdir())))
        os.kill(os.getpid(), signal.SIGUSR1)
        assert scene.until(lambda: heard == ["signal"])
        scene.loop.start(Job(("true",), heard.append, ended.append, SOON, 2.0))
        assert scene.until(lambda: ended == [0])


def _hangs_in_fuse(task: Path) -> bool:
    try:
        return "fuse" in (task / "wchan").read_text()
    except (FileNotFoundError, ProcessLookupError):  # the thread has just ended
        return False


# -- children ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "end"),
    [("", 0), ("sys.exit(5)", 5), ("os.kill(os.getpid(), signal.SIGKILL)", 137)],
)
def test_a_child_tells_its_lines_and_its_end(scene: Scene, code: str, end: int) -> None:
    scene.start(f"print('one'); print('two', end='', flush=True); {code}")
    assert scene.until(scene.ended)
    assert (scene.lines, scene.ends) == (["one", "two"], [end])


def test_the_end_is_told_also_while_a_grandchild_holds_the_pipe(scene: Scene) -> None:
    scene.start(
        "grandchild = os.fork()\nif grandchild: print(grandchild, flush=True); os._exit(0)\ntime.sleep(600)"
    )
    assert scene.until(scene.ended)
    (grandchild,) = map(int, scene.lines)
    os.kill(grandchild, signal.SIGKILL)  # which has lived until now


@rule("R15")
def test_children_whose_last_output_and_end_fall_together_leave_no_source(scene: Scene) -> None:
    """Whichever of the two the loop takes first; with a source left over it would spin for ever, and the
    next child's lines, on the same descriptor, would be the old one's."""
    for number in range(60):
        self_lines: list[str] = []
        ends: list[int] = []
        code = "import os; os.write(1, b'x\\n' * 50)"
        scene.loop.start(Job((sys.executable, "-S", "-c", code), self_lines.append, ends.append, 60, 60))
        if number % 2:  # both are pending when the loop looks
            time.sleep(0.05)
        assert scene.until(lambda ends=ends: bool(ends))  # type: ignore[misc]
        assert (self_lines, ends) == (["x"] * 50, [0])
        if number == 9:
            few = len(sources())
    spent = time.process_time()
    scene.rest(1.0)
    assert time.process_time() - spent < 0.3
    assert len(sources()) <= few + 2


def test_timers_go_off_once_in_their_order_and_a_cancelled_one_never(scene: Scene) -> None:
    seen: list[object] = []
    cancelled = scene.loop.after(0.02, lambda: seen.append("cancelled"))
    scene.loop.after(0.02, lambda: seen.append("first"))
    for number in range(50):
        scene.loop.after(0.03 + number / 1000, lambda number=number: seen.append(number))  # type: ignore[misc]
    scene.loop.cancel(cancelled)
    assert scene.until(lambda: len(seen) == 51)
    scene.rest()
    assert seen == ["first", *range(50)]
    scene.loop.cancel(cancelled)


def test_timers_cost_no_memory_whether_they_go_off_or_not(scene: Scene) -> None:
    gone: list[int] = []

    def again() -> None:
        gone.append(1)
        for _ in range(100):
            scene.loop.cancel(scene.loop.after(60.0, again))
        scene.loop.after(0.0, again)

    again()
    assert scene.until(lambda: len(gone) > 50)
    few, before = len(sources()), resident()
    assert scene.until(lambda: len(gone) > 350)
    assert len(sources()) <= few + 1
    assert resident() - before < 1024


@rule("R15")
def test_a_failure_that_cannot_be_reported_ends_no_other_timer() -> None:
    """As where there is no memory."""

    def fail(_error: Exception | None = None) -> None:
        raise MemoryError

    loop, seen = EventLoop(fail), list[int]()
    loop.after(0.0, fail)
    loop.after(0.02, lambda: seen.append(1))
    loop.after(0.04, loop.quit)
    with tidied():
        GLib.timeout_add(10_000, loop.quit)  # no timer of the loop's
        loop.run()
    assert seen


def test_a_timer_of_another_thread_is_never_overlooked(scene: Scene) -> None:
    """It is set while the loop, which has just called one, finds out when the next one is due."""
    came, missed = threading.Event(), list[int]()

    def send() -> None:
        for number in range(3000):
            came.clear()
            scene.loop.after(0.0, came.set)
            if not came.wait(10.0):
                missed.append(number)
                break
        scene.loop.after(0.0, scene.loop.quit)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threading.Thread(target=send).start()
        scene.loop.run()
    finally:
        sys.setswitchinterval(before)
    assert missed == []


def resident() -> int:
    """KiB of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") >> 10


STUBBORN = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up', flush=True)\ntime.sleep(60)"


@rule("R15")
def test_a_child_that_does_not_end_in_time_is_asked_and_then_killed(scene: Scene) -> None:
    argv = ("sh", "-c", "trap '' TERM; echo up; sleep 600")  # a shell is up long before the deadline
    started = time.monotonic()
    child = scene.loop.start(Job(argv, scene.lines.append, scene.ends.append, 3.0, 0.5))
    assert scene.until(scene.ended)
    assert time.monotonic() - started > 3.4
    assert (scene.lines, scene.ends, child.overdue) == (["up"], [137], True)


def test_a_child_that_ends_when_asked_is_not_killed(scene: Scene) -> None:
    child = scene.start("print('up', flush=True)\ntime.sleep(60)")
    assert scene.until(lambda: bool(scene.lines))
    child.stop()
    assert scene.until(scene.ended)
    assert (scene.ends, child.overdue) == ([143], False)


def test_a_child_is_asked_once(scene: Scene) -> None:
    """An installation takes a second SIGTERM as an order to end at once."""
    code = (
        "asked = []\nsignal.signal(signal.SIGTERM, lambda *_: asked.append(1))\nprint('up', flush=True)\n"
        "while not asked: time.sleep(0.05)\n"
        "end = time.monotonic() + 1\nwhile time.monotonic() < end: time.sleep(0.05)\nsys.exit(len(asked))"
    )
    child = scene.start(code)
    assert scene.until(lambda: bool(scene.lines))
    for _ in range(3):
        child.stop()
        scene.rest(0.1)
    assert scene.until(scene.ended)
    assert scene.ends == [1]


def test_a_stopped_child_is_continued_so_that_it_can_end(scene: Scene) -> None:
    child = scene.start("print(os.getpid(), flush=True)\ntime.sleep(60)")
    assert scene.until(lambda: bool(scene.lines))
    os.kill(int(scene.lines[0]), signal.SIGSTOP)
    child.stop()
    assert scene.until(scene.ended)
    assert scene.ends == [143]


def test_what_a_killed_child_has_started_in_its_group_goes_with_it(scene: Scene) -> None:
    child = scene.start(f"print(os.fork(), flush=True)\n{STUBBORN}")
    assert scene.until(lambda: scene.lines.count("up") == 2)
    grandchild = next(int(line) for line in scene.lines if line not in ("up", "0"))
    child.kill()
    assert scene.until(scene.ended)

    def is_gone() -> bool:
        try:
            return "(zombie)" in Path(f"/proc/{grandchild}/status").read_text()
        except FileNotFoundError:
            return True

    assert scene.until(is_gone)


LIMITED = """
import sys
from pathlib import Path
from installer.daemon.watch import EventLoop, WatchSpec, find_directories
loop = EventLoop(print)
loop.watch(find_directories(WatchSpec(Path("/"), path) for path in sys.argv[1:]), lambda: None)
print(loop.sees)
"""


@pytest.mark.parametrize(
    ("limit", "sees"),
    [("", True), ("max_inotify_instances", False), ("max_inotify_watches", False)],
)
def test_it_knows_where_the_kernel_has_no_watch_left(tmp_path: Path, limit: str, sees: bool) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to("a")
    lower = f"echo 0 > /proc/sys/user/{limit}; " if limit else ""
    where = [str(tmp_path), str(tmp_path / "a"), str(tmp_path / "link"), str(tmp_path / "missing")]
    argv = ["unshare", "--user", "--map-root-user", "sh", "-c", f'{lower}exec "$@"', "sh"]
    done = run((*argv, sys.executable, "-c", LIMITED, *where), SOON)
    if "unshare failed" in done.output:
        pytest.skip("this machine gives nobody a user namespace of his own")
    assert done.lines == (str(sees),)


REMOUNTED = """
import subprocess, sys
from pathlib import Path
from installer.daemon.watch import EventLoop, WatchSpec, find_directories
def find():
    return find_directories([WatchSpec(Path(sys.argv[1]), "/")])
def run(*argv):
    subprocess.run(argv, check=True)
loop = EventLoop(print)
run("mount", "-t", "tmpfs", "x", sys.argv[1])
before = find()
loop.watch(before, loop.quit)
print(loop.sees)
Path("/proc/sys/user/max_inotify_watches").write_text("0")
run("umount", sys.argv[1])
run("mount", "-t", "tmpfs", "x", sys.argv[1])
loop.run()
loop.watch(find(), loop.quit)
print(loop.sees, "the same" if find() == before else "another")
"""


def test_a_watch_that_a_mount_has_taken_along_is_not_counted(tmp_path: Path) -> None:
    argv = ["unshare", "--user", "--map-root-user", "--mount", sys.executable, "-c", REMOUNTED, str(tmp_path)]
    done = run(argv, SOON)
    if "unshare failed" in done.output:
        pytest.skip("this machine gives nobody a user namespace of his own")
    if done.lines[-1:] and done.lines[-1].endswith("another"):
        pytest.skip("this kernel has given the new mount another number")
    assert done.lines == ("True", "False the same")


@rule("R15")
def test_without_descriptors_nothing_is_known_of_the_watches(tmp_path: Path, scene: Scene) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for specs in ([], [WatchSpec(tmp_path, "/")]):
        found = find_directories(specs)
        scene.loop.watch(found, scene.changed)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        try:
            scene.loop.watch(found, scene.changed)
            sees = scene.loop.sees
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert not sees
        assert scene.loop.sees


def test_a_directory_that_has_gone_is_not_missed(tmp_path: Path) -> None:
    scene = Scene()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    scene.loop.watch(find_directories([WatchSpec(tmp_path, "/a"), WatchSpec(tmp_path, "/b")]), scene.changed)
    assert scene.loop.sees
    (tmp_path / "b").rmdir()
    assert scene.hears()
    assert scene.loop.sees
    scene.loop.watch({}, scene.changed)
