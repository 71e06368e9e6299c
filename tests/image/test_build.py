"""hack/image: what it builds, that it builds the same again, and what it refuses."""

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from hack.image_files import Entry, lines, read_config, read_image
from hack.image_files import sizes as image_sizes
from tests.image.images import TOP, base_image, build, environment, image, pack, payload
from tests.image.servers import Registry, served, snapshots
from tests.image.world import OLD
from tests.lib.cache import BuildError, locked, run
from tests.lib.throwaway.payload import build_payload

pytestmark = pytest.mark.host

PROGRAM = "opt/cri-resmgr-installer/"
SNAPSHOT = "20261005T000000Z"


@pytest.fixture(scope="module")
def found() -> dict[str, Entry]:
    return read_image(image(OLD))


def test_it_holds_what_it_is_for_and_nothing_else(found: Mapping[str, Entry]) -> None:
    release = payload(OLD)
    binary = "opt/intel/bin/cri-resmgr"
    entry = found[f"payload/{binary}"]
    assert entry.content == hashlib.sha256((release / binary).read_bytes()).hexdigest()
    assert (entry.mode, entry.uid, entry.gid) == (0o755, 0, 0)
    assert "payload/SHA256SUMS" in found
    for place in ("var/lib/apt/lists/", "var/cache/apt/", "var/log/", "tmp/", "source", "wheel", "build"):
        assert not [path for path in found if path.startswith(place)]
    assert not [path for path in found if "site-packages/pip/" in path or "dist-packages/pip/" in path]
    assert not [path for path in found if path.startswith("usr/share/man/")]


def test_nothing_is_compiled_at_a_start(found: Mapping[str, Entry]) -> None:
    assert [path for path, entry in found.items() if entry.stale] == []
    sources = [path for path in found if path.startswith(PROGRAM) and path.endswith(".py")]
    compiled = [path for path in found if path.startswith(PROGRAM) and path.endswith(".pyc")]
    assert len(sources) == len(compiled) > 100


def test_it_is_not_larger_than_it_was(
    found: Mapping[str, Entry], record_property: Callable[[str, object], None]
) -> None:
    sizes = image_sizes(dict(found))
    record_property("image", ", ".join(f"{part} {size >> 20} MiB" for part, size in sizes.items()))
    assert sum(sizes.values()) < 170 << 20


def test_it_says_what_it_is_and_starts_the_program() -> None:
    config = read_config(image(OLD))["config"]
    assert isinstance(config, dict)
    assert config["Entrypoint"] == ["cri-resmgr-installer"]
    assert "CRI_RESMGR_INSTALLER_PAYLOAD=/payload" in config["Env"]
    assert "CRI_RESMGR_INSTALLER_HOST_ROOT=/host" in config["Env"]
    labels = {name.removeprefix("org.opencontainers.image."): text for name, text in config["Labels"].items()}
    assert labels["title"] == "cri-resmgr-installer"
    assert labels["licenses"] == "Apache-2.0"
    assert labels["version"][0].isdigit()
    assert labels["revision"]


def test_the_same_inputs_give_the_same_files(found: Mapping[str, Entry], tmp_path: Path) -> None:
    """Nothing is taken from the first build: not its layers, not its time. Where the machine is a Debian, the
    packages come from a snapshot of today, of which nothing else stays in the image."""
    builder = environment() | {"SOURCE_DATE_EPOCH": "1700000001", "no_proxy": "127.0.0.1"}
    archive, document = tmp_path / "again.tar", tmp_path / "sbom.json"
    release = pack(payload(OLD), tmp_path / "payload.tar.gz")
    asked: list[str] = []
    with locked(), snapshots(asked) as mirror:
        dated = ("--snapshot", SNAPSHOT, "--snapshot-mirror", mirror) if is_debian() else ()
        name = base_image()  # asks the store, which others change while it is not locked
        digest = run("buildah", "images", "--format", "{{.Digest}}", name, environment=builder).strip()
        base = f"{name}@{digest}"
        try:
            said = build("again", base, release, archive, builder, "--sbom", document, *dated)
        finally:
            forget("again", builder)
    assert "MiB unpacked" in said
    assert list(lines(read_image(archive))) == list(lines(dict(found)))
    sbom = json.loads(document.read_text())
    expect_sbom(sbom)
    labels = read_config(archive)["config"]["Labels"]
    assert labels["org.opencontainers.image.base.name"] == name
    assert labels["org.opencontainers.image.base.digest"] == digest
    (ours, parent) = sbom["packages"][:2]
    assert (parent["name"], parent["versionInfo"]) == (name, digest)
    (reference,) = parent["externalRefs"]
    url, version = quote(name.partition(":")[0], safe=""), quote(digest, safe="")
    assert re.match(rf"pkg:oci/[a-z-]+@{version}\?repository_url={url}&tag=", reference["referenceLocator"])
    if dated:
        assert labels["cri-resmgr-installer.snapshot"] == SNAPSHOT
        assert SNAPSHOT in ours["sourceInfo"]
        assert [path for path in asked if path.startswith(f"/archive/debian-security/{SNAPSHOT}/dists/")]
        assert [path for path in asked if f"/archive/debian/{SNAPSHOT}/pool/main/p/pygobject/" in path]


def test_a_snapshot_that_is_not_there_is_not_replaced_by_what_the_base_has(tmp_path: Path) -> None:
    """The build fails, and leaves nothing behind."""
    if not is_debian():
        pytest.skip("a snapshot is one of Debian's")
    builder = environment() | {"no_proxy": "127.0.0.1"}
    release, archive = pack(payload(OLD), tmp_path / "payload.tar.gz"), tmp_path / "none.tar"
    with locked(), snapshots([]) as mirror:
        before = run("buildah", "containers", "--quiet", environment=builder)
        dated = ("--snapshot", SNAPSHOT, "--snapshot-mirror", f"{mirror}/elsewhere")
        with pytest.raises(BuildError, match=f"elsewhere/debian/{SNAPSHOT} "):
            build("none", base_image(), release, archive, builder, *dated)
        assert run("buildah", "containers", "--quiet", environment=builder) == before
    assert not archive.exists()


def is_debian() -> bool:
    """Ubuntu's snapshots have other paths."""
    return "ID=debian" in Path("/etc/os-release").read_text().splitlines()


def expect_sbom(document: Mapping[str, Any]) -> None:
    """By https://spdx.github.io/spdx-spec/v2.3/: what has to be there, and the versions that we know of."""
    packages = {each["SPDXID"]: each for each in document["packages"]}
    assert len(packages) == len(document["packages"]) > 50
    for identifier, package in packages.items():
        assert re.fullmatch(r"SPDXRef-[A-Za-z0-9.-]+", identifier)
        assert package["name"]
        assert package["versionInfo"]
        assert package["downloadLocation"]
    related = {each["relatedSpdxElement"] for each in document["relationships"]}
    assert related == set(packages)
    places = [each["referenceLocator"] for package in packages.values() for each in package["externalRefs"]]
    pinned = re.findall(r"(?m)^(\S+)==(\S+)", (TOP / "image/requirements.txt").read_text())
    assert {f"pkg:pypi/{name}@{version}" for name, version in pinned} <= set(places)
    assert [place for place in places if "/python3-gi@" in place]
    assert packages["SPDXRef-payload"]["versionInfo"] == OLD
    assert packages["SPDXRef-payload"]["checksums"]


def test_no_program_gives_another_users_rights(found: Mapping[str, Entry]) -> None:
    assert [path for path, entry in found.items() if entry.kind == "file" and entry.mode & 0o6000] == []


def forget(tag: str, builder: Mapping[str, str]) -> None:
    name = f"localhost/cri-resmgr-installer:{tag}"
    subprocess.run(["buildah", "rmi", name], env=os.environ | dict(builder), capture_output=True, check=False)


def hack_image(*argv: str | Path, path: str = "") -> subprocess.CompletedProcess[str]:
    environment = os.environ | ({"PATH": path} if path else {})
    words = [str(TOP / "hack/image"), *(str(word) for word in argv)]
    return subprocess.run(
        words, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment, check=False
    )


def test_it_explains_itself() -> None:
    done = hack_image("--help")
    assert done.returncode == 0
    assert "--payload FILE|URL" in done.stdout


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ((), "no payload"),
        (("--payload", "https://example.org/release.tar.gz"), "a URL needs --sha256"),
        (("--payload", "/nowhere/release.tar.gz"), "no such file: /nowhere/release.tar.gz"),
        (("--payload", "/etc/passwd", "--sha256", "abc"), "not a sha256: abc"),
        (("--payload", "/etc/passwd", "--engine", "kaniko"), "not an engine: kaniko"),
        (("--payload", "/etc/passwd", "--snapshot", "2026-10-05"), "not a time as snapshots have it"),
        (("--payload", "/etc/passwd", "--snapshot-mirror", "http://x"), "needs --snapshot"),
        (("--payload", "/etc/passwd", "--arch", "aarch64"), "not an architecture: aarch64"),
        (("--payload",), "--payload needs a value"),
        (("--paylaod", "x"), "unknown option --paylaod"),
    ],
)
def test_bad_usage_is_refused_before_anything_is_built(argv: tuple[str, ...], said: str) -> None:
    done = hack_image(*argv)
    assert done.returncode in (1, 2)
    assert said in done.stderr


def test_the_base_is_pinned_to_what_the_registry_has_for_all_architectures(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    for name in ("hack/image", "image/Containerfile"):
        (checkout / name).parent.mkdir(parents=True)
        shutil.copy(TOP / name, checkout / name)
    before = (checkout / "image/Containerfile").read_text()
    (default,) = re.findall(r"(?m)^ARG BASE=(.*)$", before)
    assert re.fullmatch(r"docker\.io/library/debian:12-slim@sha256:[0-9a-f]{64}", default)

    registry = Registry()
    with locked(), registry.serve() as address:
        base = f"{address}/library/debian:12-slim"
        configuration = tmp_path / "registries.conf"
        configuration.write_text(f'[[registry]]\nlocation = "{address}"\ninsecure = true\n')
        builder = environment() | {"CONTAINERS_REGISTRIES_CONF": str(configuration), "no_proxy": "127.0.0.1"}
        pin: list[str | Path] = [checkout / "hack/image", "--engine", "buildah", "--pin", "--base", base]
        try:
            run(*pin, environment=builder)
        finally:
            run("buildah", "rmi", base, environment=builder)
    after = (checkout / "image/Containerfile").read_text()
    assert after == before.replace(default, f"{base}@{registry.digest}")
    with pytest.raises(BuildError, match="no registry says which digest"):
        run(*pin, environment=builder)
    assert (checkout / "image/Containerfile").read_text() == after


def test_without_an_engine_it_says_what_to_install(tmp_path: Path) -> None:
    for name in ("bash", "dirname", "sed"):
        (tmp_path / name).symlink_to(f"/usr/bin/{name}")
    # A client without its daemon is not an engine.
    (tmp_path / "docker").write_text("#!/bin/bash\n[[ $1 == buildx ]]\n")
    (tmp_path / "docker").chmod(0o755)
    done = hack_image("--payload", "/etc/passwd", path=str(tmp_path))
    assert done.returncode == 1
    assert "needs docker (with its daemon running" in done.stderr


# -- the payload, as the build unpacks it -----------------------------------------------------


def unpack(target: Path, **arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs the step of the build alone."""
    given = {name.upper(): str(value) for name, value in arguments.items()}
    environment = os.environ | {"TARGET": str(target), "SOURCE": "/"} | given
    step = ["sh", str(TOP / "image/unpack-payload")]
    return subprocess.run(step, capture_output=True, text=True, env=environment, check=False)


@pytest.fixture
def release(tmp_path: Path) -> Path:
    place = tmp_path / "release"
    place.mkdir()
    return pack(payload(OLD), place / "cri-resource-manager-0.9.2.x86_64.tar.gz")


def test_a_payload_is_unpacked_with_its_digests(release: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    done = unpack(target, payload=release)
    assert done.returncode == 0, done.stderr
    listed: dict[str, str] = {}
    for line in (target / "SHA256SUMS").read_text().splitlines():
        digest, _, name = line.partition("  ")
        listed[name] = digest
    files = {str(path.relative_to(target)) for path in target.rglob("*") if path.is_file()}
    assert set(listed) == files - {"SHA256SUMS"}
    binary = "opt/intel/bin/cri-resmgr"
    assert listed[binary] == hashlib.sha256((target / binary).read_bytes()).hexdigest()


def test_a_payload_is_downloaded_when_its_digest_is_known(release: Path, tmp_path: Path) -> None:
    digest = hashlib.sha256(release.read_bytes()).hexdigest()
    with served(release.parent) as address:
        url = f"{address}/{release.name}"
        done = unpack(tmp_path / "good", payload_url=url, payload_sha256=digest)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "good/opt/intel/bin/cri-resmgr").exists()
        done = unpack(tmp_path / "bad", payload_url=url, payload_sha256="0" * 64)
        assert done.returncode != 0
        assert f"its sha256 is {digest}, expected {'0' * 64}" in done.stderr
        assert not (tmp_path / "bad").exists()
        done = unpack(tmp_path / "unknown", payload_url=url)
        assert "PAYLOAD_URL without PAYLOAD_SHA256" in done.stderr
        done = unpack(tmp_path / "away", payload_url=f"{url}.gone", payload_sha256=digest)
        assert f"could not download {url}.gone" in done.stderr


def test_a_version_is_taken_from_the_name_if_the_release_has_none(tmp_path: Path) -> None:
    content = tmp_path / "content/opt/intel/bin"
    content.mkdir(parents=True)
    (content / "cri-resmgr").write_text("#!/bin/sh\n")
    (content / "cri-resmgr").chmod(0o755)
    archive = pack(tmp_path / "content", tmp_path / "cri-resource-manager-0.9.0.x86_64.tar.gz")
    assert unpack(tmp_path / "target", payload=archive).returncode == 0
    assert (tmp_path / "target/VERSION").read_text() == "0.9.0\n"


def test_no_file_of_a_payload_keeps_the_bits_that_give_another_users_rights(tmp_path: Path) -> None:
    content = tmp_path / "content/opt/intel/bin"
    content.mkdir(parents=True)
    for name, mode in (("cri-resmgr", 0o4755), ("helper", 0o6711)):
        (content / name).write_text("#!/bin/sh\n")
        (content / name).chmod(mode)
    content.chmod(0o2755)
    archive = pack(tmp_path / "content", tmp_path / "cri-resource-manager-0.9.0.x86_64.tar.gz")
    assert unpack(tmp_path / "target", payload=archive).returncode == 0
    found = [path for path in tmp_path.joinpath("target").rglob("*") if path.stat().st_mode & 0o6000]
    assert found == []
    assert (tmp_path / "target/opt/intel/bin/helper").stat().st_mode & 0o7777 == 0o711


@pytest.mark.parametrize("kind", [tarfile.BLKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_a_release_with_a_device_or_a_pipe_is_refused(release: Path, tmp_path: Path, kind: bytes) -> None:
    archive = tmp_path / "release.tar.gz"
    with tarfile.open(release) as source, tarfile.open(archive, "w:gz") as made:
        for member in source:
            made.addfile(member, source.extractfile(member) if member.isfile() else None)
        odd = tarfile.TarInfo("opt/intel/disk")
        odd.type, odd.devmajor, odd.devminor, odd.mode = kind, 8, 0, 0o666
        made.addfile(odd)
    done = unpack(tmp_path / "target", payload=archive)
    assert done.returncode != 0
    assert "devices or pipes" in done.stderr
    assert "opt/intel/disk" in done.stderr
    assert not (tmp_path / "target").exists()


def test_what_is_no_release_is_refused(tmp_path: Path, release: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("not an archive\n")
    (tmp_path / "half").write_bytes(release.read_bytes()[:2000])
    for name, archive, said in (
        (
            "other",
            pack(tmp_path / "empty", tmp_path / "other.tar.gz"),
            "no executable opt/intel/bin/cri-resmgr",
        ),
        ("text", tmp_path / "text", "not a complete .tar.gz archive"),
        ("half", tmp_path / "half", "not a complete .tar.gz archive"),
        ("none", tmp_path / "none", "is not in the build context"),
    ):
        done = unpack(tmp_path / f"target-{name}", payload=archive)
        assert done.returncode != 0
        assert said in done.stderr
    assert "no payload: the image needs the release archive" in unpack(tmp_path / "target").stderr


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_a_release_for_another_machine_is_refused(machine: str, tmp_path: Path) -> None:
    content = build_payload(tmp_path / "content", machine=machine)
    done = unpack(tmp_path / "target", payload=pack(content, tmp_path / "release.tar.gz"))
    ours = platform.machine()
    if machine == ours:
        assert done.returncode == 0, done.stderr
    else:
        assert f"its cri-resmgr is for {machine} and the image for {ours}" in done.stderr
        assert done.returncode == 1


def test_a_damaged_release_is_refused_by_its_own_digests(tmp_path: Path, release: Path) -> None:
    target = tmp_path / "content"
    assert unpack(target, payload=release).returncode == 0
    (target / "opt/intel/bin/cri-resmgr").write_bytes(b"#!/bin/sh\n")
    archive = pack(target, tmp_path / "damaged.tar.gz")
    done = unpack(tmp_path / "again", payload=archive)
    assert done.returncode != 0
    assert "damaged" in done.stderr
