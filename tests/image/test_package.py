"""What `hack/package` makes: the same bytes twice, and a package for a fresh host without a network."""

from __future__ import annotations

import gzip
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.host.node import PROXY, Node
from tests.image import images
from tests.lib.cache import locked
from tests.lib.throwaway.host import HostError, ThrowawayHost
from tests.lib.throwaway.payload import build_payload
from tests.lib.throwaway.snapshot import difference, snapshot
from tests.lib.tree import tree

TOP = Path(__file__).parents[2]
SETTINGS = "kubelet: {settleSeconds: 1, restartsPerHour: 100}\n"
COMMAND = ("cri-resmgr-installer", "--payload", "/root/payload", "--config", "/root/settings.yaml")

pytestmark = [pytest.mark.host, pytest.mark.long]


def package(output: Path, *options: str) -> dict[str, str]:
    """The digests by name."""
    argv = [str(TOP / "hack/package"), "--output", str(output), *options]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stderr
    lines = (output / "SHA256SUMS").read_text().splitlines()
    return {name: digest for digest, name in map(str.split, lines)}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("dist")
    package(output)
    return output


def test_it_makes_the_same_bytes_twice(made: Path, tmp_path: Path) -> None:
    first = {name: digest for digest, name in map(str.split, (made / "SHA256SUMS").read_text().splitlines())}
    kinds = {re.sub(r"[_-]\d.*?(_amd64|-py3-none-any)?(?=\.[a-z])", "", name) for name in first}
    assert kinds == {
        "cri-resmgr-installer.deb",
        "cri-resmgr-installer.tgz",
        "cri_resmgr_installer.tar.gz",
        "cri_resmgr_installer.whl",
        "gardener-extension-cri-resmgr.tgz",
    }
    assert package(tmp_path) == first


def test_the_commands_for_a_cluster_need_neither_gi_nor_pydbus(made: Path, tmp_path: Path) -> None:
    """As `pipx install 'cri-resmgr-installer[operator]'` has them: a venv that sees no other packages."""
    subprocess.run(["python3", "-m", "venv", tmp_path / "venv"], check=True)
    (wheel,) = made.glob("*.whl")
    asked = (f"cri-resmgr-installer[operator] @ file://{wheel}", "--constraint", "image/constraints.txt")
    pip = (str(tmp_path / "venv/bin/python"), "-m", "pip", "--quiet", "install")
    subprocess.run([*pip, *asked], cwd=TOP, check=True, timeout=900)

    def run(*argv: str) -> subprocess.CompletedProcess[str]:
        command = [str(tmp_path / "venv/bin/cri-resmgr-installer"), *argv]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    for verb in ("report", "rollout status", "uninstall --dry-run"):
        done = run(*verb.split(), "--kubeconfig", "/nowhere")
        assert (done.returncode, "kubeconfig: /nowhere" in done.stderr) == (2, True), done.stderr
    assert "kind: DaemonSet" in run("manifests", "--image", "a/b:1").stdout


def test_the_package_ships_each_page_with_its_pictures(made: Path, tmp_path: Path) -> None:
    """None that a page shows is missing, and none of ours is left out."""
    (deb,) = made.glob("*.deb")
    subprocess.run(["dpkg-deb", "--extract", deb, tmp_path], check=True, timeout=120)
    shipped = tmp_path / "usr/share/doc/cri-resmgr-installer"
    pages = [*shipped.glob("*.md.gz"), *(shipped / "docs").glob("*.md.gz")]
    assert {page.name for page in pages} >= {"README.md.gz", "runbooks.md.gz", "start.md.gz"}
    pictures = set[Path]()
    for page in pages:
        text = gzip.decompress(page.read_bytes()).decode()
        pictures |= {(page.parent / name).resolve() for name in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text)}
    assert len(pictures) == len([*(TOP / "docs").glob("*.svg")])
    assert [picture for picture in sorted(pictures) if not picture.is_file()] == []


@pytest.fixture(scope="module")
def system() -> Path:
    """A node's, with what the packages need of the distribution."""
    return tree(more=("apt", "python3-jinja2", "python3-psutil", "python3-venv"))


@pytest.fixture(scope="module")
def node(system: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with ThrowawayHost(image=system) as host:
        yield Node(host, tmp_path_factory.mktemp("node"))


def test_a_node_without_a_network_is_installed_and_left_by_the_wheel(
    made: Path, system: Path, tmp_path: Path
) -> None:
    """With its libraries from a directory, which a machine with a network has filled; PyGObject is the
    distribution's. The commands for a cluster find their client there too."""
    (wheel,) = made.glob("*.whl")
    wheels = tmp_path / "wheels"
    pip = (sys.executable, "-m", "pip", "--quiet", "download", "--dest", str(wheels))
    asked = (f"cri-resmgr-installer[operator] @ file://{wheel}", "--constraint", "image/constraints.txt")
    subprocess.run([*pip, *asked], cwd=TOP, check=True, timeout=900)
    with ThrowawayHost(image=system) as host:
        node = Node(host, tmp_path)
        shutil.copytree(wheels, host.root / "root/wheels")
        (host.root / "root/settings.yaml").write_text(SETTINGS)
        build_payload(host.root / "root/payload")
        assert "default" not in host.run("ip", "route").stdout
        host.run("python3", "-m", "venv", "--system-site-packages", "/root/venv", timeout=300)
        offline = ("--no-index", "--find-links", "/root/wheels", "cri-resmgr-installer[operator]")
        host.run("/root/venv/bin/pip", "--quiet", "install", *offline, timeout=600)
        command = ("/root/venv/bin/cri-resmgr-installer", *COMMAND[1:])

        host.run(*command, "install", timeout=300)
        assert "converged and healthy" in host.run(*command, "status").stdout
        assert node.on_relay()
        said = host.run(command[0], "report", "--kubeconfig", "/nowhere", check=False)
        assert (said.returncode, "kubeconfig: /nowhere" in said.stderr) == (2, True), said.stderr
        assert "Do: " in host.run(command[0], "explain", "no-space").stdout

        host.run(*command, "remove", timeout=300)
        assert not node.on_relay()
        node.expect_untraced(allowed="/root")


def test_a_node_without_a_network_is_installed_and_left_by_the_package(made: Path, node: Node) -> None:
    host = node.host
    (deb,) = made.glob("*.deb")
    (host.root / "root" / deb.name).write_bytes(deb.read_bytes())
    (host.root / "root/settings.yaml").write_text(SETTINGS)
    build_payload(host.root / "root/payload")
    before = snapshot(host)
    assert "default" not in host.run("ip", "route").stdout
    host.run("apt-get", "install", "--yes", f"/root/{deb.name}", timeout=300)
    version = host.run("cri-resmgr-installer", "--version").stdout
    assert version.split()[1] == deb.name.split("_")[1]
    assert host.run("test", "-s", "/usr/share/man/man8/cri-resmgr-installer.8.gz", check=False)

    assert host.run(*COMMAND, "plan", check=False).returncode == 3
    host.run(*COMMAND, "install", timeout=300)
    assert "converged and healthy" in host.run(*COMMAND, "status").stdout
    assert node.on_relay()
    assert host.systemctl("is-active", PROXY) == "active"

    # Who takes the package away has to take it off the node first.
    with pytest.raises(HostError, match="run `cri-resmgr-installer remove` first"):
        host.run("apt-get", "remove", "--yes", "cri-resmgr-installer", timeout=300)
    assert "converged and healthy" in host.run(*COMMAND, "status").stdout

    host.run(*COMMAND, "remove", timeout=300)
    host.run("apt-get", "purge", "--yes", "cri-resmgr-installer", timeout=300)
    assert not (host.root / "usr/lib/cri-resmgr-installer").exists()
    # apt, dpkg and what they wake leave their own; nothing there has our name or is kubelet's.
    left = [line for line in difference(before, snapshot(host)) if re.search("cri-?res|kubelet", line)]
    assert not left, "\n".join(left)


def test_an_image_as_a_file_installs_a_node_that_has_no_python(tmp_path: Path) -> None:
    """With ctr alone, as docs/packages.md has it."""
    archive = tmp_path / "image.oci.tar"
    release = images.pack(images.payload("v0.9.2"), tmp_path / "payload.tar.gz")
    with locked():
        builder = images.environment()
        images.build("v0.9.2", images.base_image(), release, archive, builder)
    made = [package(tmp_path / name, "--only", "charts", "--image", str(archive)) for name in "ab"]
    assert made[0] == made[1]
    (text,) = re.findall(
        r"(?m)((?:^    ctr .*\n(?:^        .*\n)*)+)", (TOP / "docs/packages.md").read_text()
    )
    with ThrowawayHost() as host:
        node = Node(host, tmp_path)
        (host.root / "root/cri-resmgr-installer.oci.tar").write_bytes(
            (tmp_path / "a" / archive.name).read_bytes()
        )
        (host.root / "root/settings.yaml").write_text(SETTINGS)
        script = "set -e; cd /root\nIMAGE=localhost/cri-resmgr-installer:v0.9.2\n" + text
        said = host.run("sh", "-c", script, timeout=300).stdout
        assert said.splitlines()[-1] == "done", said
        assert node.on_relay()
        host.run("sh", "-c", script.replace(" install\n", " remove\n"), timeout=300)
        node.expect_untraced(allowed="/root")  # the archive and the settings
