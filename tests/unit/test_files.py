"""R5: atomic and durable writes, links resolved below the root, nothing left behind."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from pathlib import Path
from threading import Thread

import pytest

from installer.errors import InstallerError, UnservableHostError
from installer.host.disk import Kernel
from installer.host.files import KEPT_BYTES, RootedFiles
from installer.host.ports import Unwritable
from installer.model.host import ABSENT, HostPath, Identity, Kind
from installer.model.paths import TEMPORARY
from tests.lib.rules import rule

UID, GID = os.geteuid(), os.getegid()


@pytest.fixture
def files(tmp_path: Path) -> RootedFiles:
    (tmp_path / "etc").mkdir()
    return RootedFiles(tmp_path)


def write(
    files: RootedFiles, path: str, content: bytes | Path | HostPath, mode: int = 0o644, digest: str = ""
) -> None:
    files.write(path, content, mode, UID, GID, digest)


# -- where a path is ------------------------------------------------------------


@pytest.mark.parametrize(
    ("links", "path", "expected"),
    [
        ({}, "/etc/x", "/etc/x"),
        ({"var": "/etc"}, "/var/x", "/etc/x"),
        ({"var": "etc"}, "/var/x", "/etc/x"),
        ({"a": "/b", "b": "/etc"}, "/a/x", "/etc/x"),
        ({"etc/up": "../etc"}, "/etc/up/up/x", "/etc/x"),
        ({}, "//etc/./x", "/etc/x"),
        ({}, "/etc/../etc/x", "/etc/x"),
        ({}, "/etc", "/etc"),
        ({"etc/y": "/elsewhere"}, "/etc/y", "/elsewhere"),
    ],
)
def test_a_path_is_found_below_the_root(
    files: RootedFiles, links: dict[str, str], path: str, expected: str
) -> None:
    (files.root / "etc/x").touch()
    (files.root / "elsewhere").touch()
    for link, target in links.items():
        (files.root / link).symlink_to(target)
    with files.opened(path) as place:
        assert place.readlink() == Path(f"{files.root}{expected}")


def test_what_is_opened_stays_the_same_whatever_happens_to_its_path(files: RootedFiles) -> None:
    (files.root / "etc/x").write_text("old")
    with files.opened("/etc/x") as place:
        write(files, "/etc/x", b"new")
        assert place.read_text() == "old"


def test_what_is_not_there_cannot_be_opened(files: RootedFiles) -> None:
    (files.root / "etc/dangling").symlink_to("/nowhere")
    for path in ("/nowhere", "/nowhere/x", "/etc/dangling"):
        with pytest.raises(FileNotFoundError), files.opened(path):
            pass


@rule("R5")
@pytest.mark.parametrize("target", ["../..", "../../../etc", "/../etc"])
def test_a_link_out_of_the_root_is_refused(files: RootedFiles, target: str) -> None:
    (files.root / "out").symlink_to(target)
    with pytest.raises(UnservableHostError, match="leads out"):
        files.status("/out/passwd")
    assert files.state("/out/passwd").kind is Kind.OUTSIDE
    assert not files.state("/out/passwd").exists


def test_a_loop_is_refused(files: RootedFiles) -> None:
    (files.root / "a").symlink_to("/b")
    (files.root / "b").symlink_to("/a")
    with pytest.raises(UnservableHostError, match="too many"):
        files.status("/a/x")


def test_the_root_itself_is_followed_as_it_is(files: RootedFiles) -> None:
    write(files, "/etc/x", b"here")
    assert RootedFiles(Path(f"/proc/self/root{files.root}")).read("/etc/x") == b"here"
    assert RootedFiles(Path("/")).read(f"{files.root}/etc/x") == b"here"


# -- reading --------------------------------------------------------------------


def test_state_of_a_file(files: RootedFiles) -> None:
    write(files, "/etc/x", b"content", 0o640)
    state = files.state("/etc/x")
    assert (state.kind, state.mode, state.uid, state.gid, state.size) == (Kind.FILE, 0o640, UID, GID, 7)
    assert state.content == b"content"
    assert state.digest == hashlib.sha256(b"content").hexdigest()


def test_state_follows_no_link(files: RootedFiles) -> None:
    (files.root / "etc/x").symlink_to("/etc/passwd")
    state = files.state("/etc/x")
    assert (state.kind, state.target) == (Kind.SYMLINK, "/etc/passwd")


def test_state_of_what_is_no_file(files: RootedFiles) -> None:
    os.mkfifo(files.root / "etc/pipe")
    assert files.state("/etc/pipe").kind is Kind.OTHER
    assert files.state("/etc").kind is Kind.DIRECTORY
    assert files.state("/nope") == ABSENT
    assert files.state("/no/such/parent") == ABSENT
    write(files, "/etc/x", b"")
    assert files.state("/etc/x/below") == ABSENT


def test_a_large_file_of_known_identity_is_not_read(files: RootedFiles) -> None:
    write(files, "/etc/large", b"x" * (KEPT_BYTES + 1))
    first = files.state("/etc/large")
    assert first.content is None
    assert first.digest == hashlib.sha256(b"x" * (KEPT_BYTES + 1)).hexdigest()
    asked: list[tuple[str, Identity]] = []

    def known(path: str, identity: Identity) -> str:
        asked.append((path, identity))
        return "remembered"

    assert files.state("/etc/large", known).digest == "remembered"
    assert asked == [("/etc/large", first.identity)]


def test_reading(files: RootedFiles) -> None:
    write(files, "/etc/x", b"0123456789")
    (files.root / "link").symlink_to("/etc/x")
    os.mkfifo(files.root / "pipe")
    assert files.read("/link") == b"0123456789"
    assert files.read("/etc/x", limit=4) == b"0123"
    assert files.read("/etc") is None
    assert files.read("/pipe") is None
    assert files.read("/etc/nope") is None
    assert files.list("/etc") == ("x",)
    assert files.list("/nope") == files.list("/etc/x") == ()


# -- writing --------------------------------------------------------------------


@rule("R5")
@pytest.mark.parametrize("mask", [0o000, 0o077])
def test_mode_and_owner_whatever_the_umask(files: RootedFiles, mask: int) -> None:
    before = os.umask(mask)
    try:
        write(files, "/etc/x", b"1", 0o755)
        assert files.make_directory("/a/b", 0o750) == ("/a", "/a/b")
    finally:
        os.umask(before)
    status = (files.root / "etc/x").stat()
    assert (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid) == (0o755, UID, GID)
    assert stat.S_IMODE((files.root / "a/b").stat().st_mode) == 0o750


@rule("R6")
def test_extended_attributes_are_seen_and_given(tmp_path: Path) -> None:
    """With a kernel that keeps them itself: not every file system takes some."""
    given: list[tuple[str, bytes]] = []

    class Keeping(Kernel):
        def attribute(self, place: str | int, name: str, value: bytes) -> None:
            given.append((name, value))

    files = RootedFiles(tmp_path, Keeping())
    files.write("/x", b"", 0o644, UID, GID, attributes=[("user.x", "00ff"), ("user.y", "no hex")])
    assert given == [("user.x", b"\0\xff")]
    (tmp_path / "y").touch()
    try:
        os.setxattr(tmp_path / "y", "user.y", b"\1")
    except OSError:
        return
    assert ("user.y", "01") in files.state("/y").attributes


def test_an_attribute_that_is_refused_does_not_keep_the_file_from_being_written(tmp_path: Path) -> None:
    class Refusing(Kernel):
        def attribute(self, place: str | int, name: str, value: bytes) -> None:
            raise OSError(errno.EOPNOTSUPP, "not here")

    files = RootedFiles(tmp_path, Refusing())
    files.write("/x", b"1", 0o644, UID, GID, attributes=[("user.x", "00")])
    assert files.read("/x") == b"1"


@rule("R5")
def test_a_write_replaces_a_link_and_not_its_target(files: RootedFiles) -> None:
    write(files, "/etc/target", b"theirs")
    (files.root / "etc/x").symlink_to("/etc/target")
    write(files, "/etc/x", b"ours")
    assert files.state("/etc/x").content == b"ours"
    assert files.read("/etc/target") == b"theirs"


@rule("R5")
def test_a_running_program_can_be_replaced(files: RootedFiles, tmp_path: Path) -> None:
    write(files, "/etc/x", b"old")
    with open(files.root / "etc/x", "rb") as still_open:
        write(files, "/etc/x", b"new")
        assert still_open.read() == b"old"


def test_a_copy_is_checked(files: RootedFiles, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"s" * 3_000_000)
    digest = hashlib.sha256(b"s" * 3_000_000).hexdigest()
    write(files, "/etc/x", source, digest=digest)
    assert files.state("/etc/x").digest == digest
    with pytest.raises(InstallerError, match="/etc/x"):
        write(files, "/etc/x", source, digest="0" * 64)
    assert files.state("/etc/x").digest == digest
    assert files.list("/etc") == ("x",)


def test_a_file_of_the_host_is_copied_but_no_link_to_one(files: RootedFiles, tmp_path: Path) -> None:
    write(files, "/etc/kept", b"kept")
    write(files, "/etc/x", HostPath("/etc/kept"))
    assert files.read("/etc/x") == b"kept"
    (files.root / "etc/link").symlink_to(tmp_path / "etc/kept")
    with pytest.raises(InstallerError, match="/etc/link is not a file"):
        write(files, "/etc/x", HostPath("/etc/link"))


@rule("R5")
def test_a_failed_write_leaves_no_trace(files: RootedFiles) -> None:
    (files.root / "etc/x").mkdir()
    for written in (True, False):
        with pytest.raises(OSError, match="x") as caught:
            write(files, "/etc/x", b"") if written else files.link("/etc/x", "/t", UID, GID)
        assert caught.value.filename2 == str(files.root / "etc/x")
    with pytest.raises(FileNotFoundError, match=f"'{files.root}/etc/nope'"):
        write(files, "/etc/nope/x", b"")
    assert files.list("/etc") == ("x",)


@rule("R5")
@pytest.mark.parametrize("left", ["file", "link"])
@pytest.mark.parametrize("then", ["write", "link"])
def test_what_a_killed_write_left_is_cleared(files: RootedFiles, left: str, then: str) -> None:
    temporary = files.root / f"etc/.x{TEMPORARY}"
    if left == "file":
        temporary.write_text("half")
    else:
        temporary.symlink_to("/nowhere")
    if then == "write":
        write(files, "/etc/x", b"whole")
    else:
        files.link("/etc/x", "/t", UID, GID)
    assert files.list("/etc") == ("x",)


def keep_writing(files: RootedFiles, byte: bytes, lost: list[OSError]) -> None:
    for _ in range(80):
        try:
            write(files, "/etc/x", byte * 100_000)
        except OSError as error:
            lost.append(error)


@rule("R5")
def test_two_writers_of_one_path_never_mix(files: RootedFiles) -> None:
    """As the daemons of a rolling update may be. One of them may have to leave it to the other."""
    write(files, "/etc/x", b"0" * 100_000)
    lost: list[OSError] = []
    writers = [Thread(target=keep_writing, args=(files, byte, lost)) for byte in (b"1", b"2")]
    for writer in writers:
        writer.start()
    seen = set()
    while any(writer.is_alive() for writer in writers):
        content = files.read("/etc/x") or b""
        assert len(content) == 100_000
        seen |= set(content)
    assert seen & set(b"12")
    assert len(set(files.read("/etc/x") or b"")) == 1
    assert all(isinstance(error, (BlockingIOError, FileExistsError)) for error in lost)
    assert files.list("/etc") == ("x",)


def test_link_and_remove(files: RootedFiles) -> None:
    write(files, "/etc/x", b"")
    files.link("/etc/x", "/dev/null", UID, GID)
    assert os.readlink(files.root / "etc/x") == "/dev/null"
    files.remove("/etc/x")
    files.remove("/etc/x")
    files.remove("/no/such/parent")
    assert files.state("/etc/x") == ABSENT


# -- directories ----------------------------------------------------------------


def test_directories_come_and_go(files: RootedFiles) -> None:
    assert files.missing_directories("/etc/a/b") == ("/etc/a", "/etc/a/b")
    assert files.make_directory("/etc/a/b") == ("/etc/a", "/etc/a/b")
    assert files.make_directory("/etc/a/b") == ()
    assert not files.remove_empty_directory("/etc/a")
    assert files.remove_empty_directory("/etc/a/b")
    assert files.remove_empty_directory("/etc/a")
    assert not files.remove_empty_directory("/etc/a")


def test_directories_through_an_absolute_link(files: RootedFiles) -> None:
    (files.root / "run").mkdir()
    (files.root / "var").symlink_to("/run")
    assert files.make_directory("/var/ours") == ("/var/ours",)
    assert (files.root / "run/ours").is_dir()


def test_what_stands_where_a_directory_should_be(files: RootedFiles) -> None:
    write(files, "/etc/x", b"")
    (files.root / "etc/dangling").symlink_to("/nowhere")
    for path in ("/etc/x/y", "/etc/dangling/y"):
        with pytest.raises(UnservableHostError, match="in the way"):
            files.make_directory(path)


@rule("R6")
def test_a_tree_goes_and_what_it_links_to_stays(files: RootedFiles, tmp_path: Path) -> None:
    files.make_directory("/etc/tree/deep/deeper")
    files.make_directory("/keep")
    write(files, "/keep/x", b"")
    write(files, "/etc/tree/deep/file", b"")
    (files.root / "etc/tree/deep/link").symlink_to(files.root / "keep")
    os.mkfifo(files.root / "etc/tree/pipe")
    files.remove_tree("/etc/tree")
    files.remove_tree("/etc/tree")
    assert files.state("/etc/tree") == ABSENT
    assert files.list("/keep") == ("x",)
    (files.root / "etc/link").symlink_to(files.root / "keep")
    files.remove_tree("/etc/link")
    assert files.list("/keep") == ("x",)
    files.remove_tree("/keep/x")
    assert files.list("/keep") == ()


def test_space_and_permission_are_asked_of_the_nearest_parent(files: RootedFiles) -> None:
    assert files.free_bytes("/etc/not/yet/there") > 0
    assert RootedFiles(Path("/")).free_bytes("/proc/not/yet/there") == 0  # no file system to write to
    assert files.unwritable("/etc/not/yet/there") is None
    write(files, "/etc/x", b"")
    assert files.unwritable("/etc/x/y") is Unwritable.NO_DIRECTORY
    os.mknod(files.root / "etc/s", stat.S_IFSOCK)  # which cannot be opened
    assert files.unwritable("/etc/s/y") is Unwritable.NO_DIRECTORY


def test_a_read_only_mount_says_so() -> None:
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    places = [line.split()[1] for line in mounts if "ro" in line.split()[3].split(",")]
    directory = next((place for place in places if os.path.isdir(place)), None)
    if directory is None:
        pytest.skip("nothing is mounted read-only here")
    assert RootedFiles(Path("/")).unwritable(directory) is Unwritable.READ_ONLY
