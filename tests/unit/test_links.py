"""R6: the directory of a link by which somebody has enabled the proxy's unit goes with it, unless it was
there before us."""

from __future__ import annotations

from pathlib import Path

import pytest

from installer.inputs.load import Request
from installer.inputs.settings import KubeletSettings, Settings
from installer.model import paths
from installer.model.event import silent
from installer.model.names import Mode
from installer.node.reconcile import reconcile
from tests.faults.disks.crash import read_tree
from tests.faults.disks.node import lay_node
from tests.lib.rules import rule
from tests.lib.slownode import release


@rule("R6")
@pytest.mark.parametrize("kind", ["wants", "requires", "upholds"])
@pytest.mark.parametrize(
    "theirs", ["no directory", "an empty directory", "a link of another unit", "a unit of this name"]
)
@pytest.mark.parametrize("mended", [True, False])
def test_a_directory_of_links_is_after_a_removal_as_it_was_before_us(
    tmp_path: Path, kind: str, theirs: str, mended: bool
) -> None:
    node = lay_node(tmp_path / "node")
    release(tmp_path / "payload", "one")
    directory = node.fake.root / paths.LINKS[1:] / f"some.target.{kind}"
    if theirs != "no directory":
        directory.mkdir(0o750)
    if theirs == "a link of another unit":
        (directory / "other.service").symlink_to("/usr/lib/systemd/system/other.service")
    if theirs == "a unit of this name":
        node.fake.files.write(paths.PROXY_UNIT_FILE, b"[Service]\nExecStart=/bin/sleep infinity\n", 0o644)
        for other in ("first", "second"):
            (node.fake.root / paths.LINKS[1:] / f"{other}.target.wants").mkdir()
            (node.fake.root / paths.LINKS[1:] / f"{other}.target.wants" / paths.PROXY_UNIT).symlink_to(
                paths.PROXY_UNIT_FILE
            )
    before = read_tree(node.fake.root, ("/run",))
    asked = Request(Mode.INSTALL, Settings(kubelet=KubeletSettings(settle_seconds=1)), tmp_path / "payload")
    reconcile(asked, node.fake.host, silent)
    for _ in range(2):  # `systemctl add-wants`, and again after it was mended
        directory.mkdir(exist_ok=True)
        (directory / paths.PROXY_UNIT).symlink_to(paths.PROXY_UNIT_FILE)
        if mended:
            reconcile(asked, node.fake.host, silent)
            assert not (directory / paths.PROXY_UNIT).is_symlink()
        else:
            break
    reconcile(Request(Mode.REMOVE, asked.settings, None), node.fake.host, silent)
    assert read_tree(node.fake.root, ("/run",)) == before
