"""Who may write on the way to our files, or into a file that our unit reads, is root on the node."""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from installer.errors import UnservableHostError
from installer.inputs.load import Request
from installer.inputs.settings import KubeletSettings, Settings
from installer.model import paths
from installer.model.event import Event, silent
from installer.model.names import Mode
from installer.model.plan import Finding, Severity
from installer.node.reconcile import inspect, reconcile
from tests.faults.disks.node import KUBELET, Node, lay_node
from tests.lib.slownode import release

DROP_IN = paths.drop_in("/etc/systemd/system", KUBELET)
THEIRS = "LD_PRELOAD=/tmp/evil.so\nPATH=/tmp\nCRI_RESMGR_GUARD_ROOT=/tmp\n"


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
def payload(tmp_path: Path) -> Path:
    release(tmp_path / "payload", "one")
    return tmp_path / "payload"


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return lay_node(tmp_path / "node")


def request(payload: Path, mode: Mode = Mode.INSTALL) -> Request:
    return Request(mode, Settings(kubelet=KubeletSettings(settle_seconds=1)), payload)


def findings(node: Node, payload: Path, mode: Mode = Mode.INSTALL) -> dict[str, Finding]:
    return {each.code: each for each in inspect(request(payload, mode), node.fake.host).plan.findings}


def wide(mode: int) -> Callable[[Path], None]:
    return lambda place: place.chmod(mode)


def linked(place: Path) -> None:
    """The directory is a link to one that others may write."""
    target = place.parent / "elsewhere"
    place.rename(target) if place.is_dir() else target.mkdir()
    place.symlink_to(target.name)
    target.chmod(0o777)


@pytest.mark.parametrize(
    "directory",
    [
        "/",
        "/etc",
        posixpath.dirname(paths.FALLBACK_CONFIG),
        posixpath.dirname(paths.PROXY_ENVIRONMENT),
        posixpath.dirname(DROP_IN),
        posixpath.dirname(paths.BINARY),
        posixpath.dirname(paths.RELAY_SOCKET),
        paths.OUR_STATE,
        paths.OBJECTS,
        paths.PROXY_STATE[0],
    ],
)
@pytest.mark.parametrize(
    ("expose", "installed"),
    [(wide(0o777), True), *((each, False) for each in (wide(0o1777), wide(0o775), wide(0o757), linked))],
)
def test_a_directory_on_the_way_to_our_files_that_others_may_write_is_refused(
    node: Node, payload: Path, directory: str, expose: Callable[[Path], None], installed: bool
) -> None:
    if installed:
        reconcile(request(payload), node.fake.host, silent)
    place = node.fake.root / directory[1:]
    if not place.is_dir():
        place = node.fake.root / directory.replace("/var/run", "/run")[1:]
        place.unlink(missing_ok=True)
        place.mkdir(parents=True)
    if expose is linked and directory == "/":
        pytest.skip("no link can be there")
    expose(place)
    found = findings(node, payload)["directory-exposed"]
    assert "may be written by others than root" in found.message
    before = node.systemd.unit(KUBELET).main_pid
    with pytest.raises(UnservableHostError, match="may be written by others than root"):
        reconcile(request(payload), node.fake.host, silent)
    assert node.systemd.unit(KUBELET).main_pid == before
    if installed:
        reconcile(request(payload, Mode.REMOVE), node.fake.host, silent)
        assert not node.on_relay


@pytest.mark.parametrize("mode", [0o1777, 0o775, 0o757])
@pytest.mark.parametrize("installed", [True, False])
def test_our_directory_below_run_is_closed_again(
    node: Node, payload: Path, mode: int, installed: bool
) -> None:
    place = node.fake.root / paths.OUR_RUNTIME[1:]
    if installed:
        reconcile(request(payload), node.fake.host, silent)
        (node.fake.root / paths.FALLBACK_CONFIG[1:]).unlink(missing_ok=True)
    place.mkdir(exist_ok=True)
    (place / "hold-not").write_text("root's\n")
    for name in ("proxy.env", "theirs/of") if os.geteuid() == 0 else ():
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text("LD_PRELOAD=/tmp/evil.so\n")
        os.chown(place / name.split("/")[0], 1000, 1000)
    place.chmod(mode)
    found = findings(node, payload).get("directory-exposed")
    assert found is None or (found.severity is Severity.WARN and "the next run ends that" in found.hint)
    assert stat.S_IMODE(place.stat().st_mode) == mode, "a plan writes nothing"
    said: list[Event] = []
    reconcile(request(payload), node.fake.host, said.append)
    codes = [each.data["code"] for each in said if "only root may now" in each.message]
    assert codes == ["directory-exposed"]
    assert stat.S_IMODE(place.stat().st_mode) == 0o755
    assert not (place / "theirs").exists()
    assert not (place / "proxy.env").exists()
    assert (place / "hold-not").exists()
    assert node.on_relay


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a directory away")
def test_so_is_one_that_belongs_to_somebody_else(node: Node, payload: Path) -> None:
    os.chown(node.fake.root / "etc/cri-resmgr", 1000, 0)
    found = findings(node, payload)["directory-exposed"]
    assert "/etc/cri-resmgr belongs to user 1000, not to root" in found.message
    assert "chown root /etc/cri-resmgr" in found.hint


@pytest.mark.parametrize("given", [False, True])
def test_the_unit_reads_the_extra_options_that_are_ours_and_no_others(
    node: Node, payload: Path, tmp_path: Path, given: bool
) -> None:
    node.fake.files.write(paths.EXTRA_OPTIONS, THEIRS.encode(), 0o644)
    asked = request(payload)
    if given:
        (tmp_path / "configs").mkdir()
        (tmp_path / "configs/EXTRA_OPTIONS.cfg").write_text('EXTRA_OPTIONS="--metrics-interval=10s"\n')
        asked = Request(asked.mode, asked.settings, payload, tmp_path / "configs")
    assert ("extra-options-foreign" in findings(node, payload)) is True
    reconcile(asked, node.fake.host, silent)
    process = node.process(paths.PROXY_UNIT)
    assert process is not None
    assert "LD_PRELOAD" not in process.environ
    assert process.environ["EXTRA_OPTIONS"] == ("--metrics-interval=10s" if given else "")
    said = [each.code for each in inspect(asked, node.fake.host).plan.findings]
    assert ("extra-options-foreign" in said) is not given
    reconcile(request(payload, Mode.REMOVE), node.fake.host, silent)
    assert node.read(paths.EXTRA_OPTIONS) == THEIRS.encode()
