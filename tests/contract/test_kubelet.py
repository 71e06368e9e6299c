"""What we rely on of kubelet: of the stand-in, and of the real one where `--real-kubelet` names it.

What needs an API server (admission, probes and their memory over a restart) is the stand-in's alone, and
tested in tests/host/test_pods_of_kubelet.py.
"""

import json
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.lib.throwaway import real
from tests.lib.throwaway.containers import container_pid, create_container, reach
from tests.lib.throwaway.furnish import write
from tests.lib.throwaway.host import ThrowawayHost, missing_needs
from tests.lib.throwaway.kubelet import UNIT, certificate, healthz, wait_healthy
from tests.lib.throwaway.payload import build_executable
from tests.lib.throwaway.pods import fetch
from tests.lib.throwaway.proxy import until
from tests.lib.throwaway.real_kubelet import LENIENT, PREPARE, kubeconfig
from tests.lib.throwaway.standins import kubelet as standin
from tests.lib.throwaway.standins import kubelet_api

RUNTIME = "containerd.service"
STARTED = 60.0  # seconds
BINARY, CONFIG, KUBECONFIG, MANIFESTS = "/usr/bin/kubelet", "/k/config", "/k/kubeconfig", "/k/manifests"
HEAD = {"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration"}
UNIT_FILE = f"[Service]\nExecStart={BINARY} --config={CONFIG} --kubeconfig={KUBECONFIG}\n"


class Kubelet:
    """kubelet on a host with a real containerd, with a configuration of the test's."""

    def __init__(self, host: ThrowawayHost) -> None:
        self.host = host
        write(host.root / KUBECONFIG[1:], kubeconfig())
        write(host.root / "etc/systemd/system" / UNIT, UNIT_FILE)
        host.systemctl("daemon-reload")

    def configure(self, path: str = CONFIG, /, **keys: object) -> None:
        """Writes a KubeletConfiguration, as JSON: a real kubelet reads that as YAML."""
        write(self.host.root / path[1:], json.dumps({**HEAD, **LENIENT, **keys}))

    def start(self, **keys: object) -> None:
        """Starts it on the running containerd, and waits until it is healthy."""
        self.host.systemctl("stop", UNIT)
        self.configure(CONFIG, **keys)
        self.host.systemctl("start", RUNTIME, UNIT)
        wait_healthy(self.host, STARTED)

    def fails(self, *arguments: str) -> str:
        """Runs it until it ends, with exit code 1; what it says."""
        done = self.host.run(BINARY, f"--kubeconfig={KUBECONFIG}", *arguments, check=False, timeout=STARTED)
        assert done.returncode == 1, done.stderr
        return done.stderr


@pytest.fixture(scope="module", params=["stand-in", "real"])
def kubelet(request: pytest.FixtureRequest) -> Iterator[Kubelet]:
    named = real.named("kubelet")
    if request.param == "real" and named is None:
        pytest.skip("no --real-kubelet PATH")
    if missing := missing_needs():
        pytest.skip(f"no throwaway host: {', '.join(missing)}")
    with ThrowawayHost() as host:
        binary = host.root / BINARY[1:]
        if request.param == "real":
            assert named
            binary.write_bytes(named.read_bytes())
            binary.chmod(0o755)
            for words in PREPARE:
                host.run(*words)
        else:
            build_executable(standin.__name__, binary)
        for path, content in zip((kubelet_api.CERTIFICATE, kubelet_api.KEY), certificate(), strict=True):
            write(host.root / path[1:], content, 0o600)
        yield Kubelet(host)
        host.systemctl("stop", UNIT)


@pytest.mark.parametrize(
    ("arguments", "used"),
    [
        ([], "/run/containerd/containerd.sock"),
        (["--config=/k/one"], "/from-config"),
        (["--config=/k/one", "--config-dir=/k/more"], "/from-20"),
        (["--config=/k/one", "--config-dir=/k/deep"], "/from-below"),
        (["--config=/k/one", "--config-dir=/k/link"], "/from-config"),
        (["--config=/k/one", "--config_dir=/k/link/"], "/from-20"),
        (["--config=/k/one", "--config-dir=/k/unset"], "/run/containerd/containerd.sock"),
        (["--config=/k/one", "--container-runtime-endpoint=unix:///flag"], "/flag"),
        (
            ["--config-dir=/k/more", "--config=/k/one", "--container-runtime-endpoint", "unix:///flag"],
            "/flag",
        ),
        (
            ["--container-runtime-endpoint=unix:///first", "--container-runtime-endpoint=unix:///last"],
            "/last",
        ),
    ],
)
def test_which_endpoint_it_uses_and_that_it_exits_when_nobody_is_there(
    kubelet: Kubelet, arguments: Sequence[str], used: str
) -> None:
    kubelet.host.systemctl("stop", UNIT, RUNTIME)
    kubelet.configure()
    kubelet.configure("/k/one", containerRuntimeEndpoint="unix:///from-config")
    kubelet.configure("/k/more/20-b.conf", containerRuntimeEndpoint="unix:///from-20")
    kubelet.configure("/k/more/10-a.conf", containerRuntimeEndpoint="unix:///from-10")
    kubelet.configure("/k/more/30-c.yaml", containerRuntimeEndpoint="unix:///not-a-conf")
    kubelet.configure("/k/deep/10.conf", containerRuntimeEndpoint="unix:///from-10")
    kubelet.configure("/k/deep/20.d/a.conf", containerRuntimeEndpoint="unix:///from-below")
    kubelet.configure("/k/unset/10.conf", containerRuntimeEndpoint=None)
    link = kubelet.host.root / "k/link"
    link.unlink(missing_ok=True)
    link.symlink_to("more")
    given = [] if any(word.startswith("--config=") for word in arguments) else [f"--config={CONFIG}"]
    assert used in kubelet.fails(*given, *arguments)


@pytest.mark.parametrize("word", ["stray", "", "--container-runtime=remote"])
def test_it_exits_on_words_that_it_does_not_know(kubelet: Kubelet, word: str) -> None:
    """A value that was torn apart or quoted twice never runs half understood."""
    kubelet.configure()
    assert "unknown" in kubelet.fails(f"--config={CONFIG}", word)


@pytest.mark.parametrize("listens", [False, True])
def test_it_exits_when_its_endpoint_does_not_answer(kubelet: Kubelet, listens: bool) -> None:
    """Whether the socket is left over from somebody who is gone, or of somebody who never answers."""
    kubelet.configure()
    place = Path(reach(kubelet.host, "/run/silent.sock"))
    place.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(place))
        if listens:
            silent.listen()
        kubelet.fails(f"--config={CONFIG}", "--container-runtime-endpoint=unix:///run/silent.sock")


def test_it_is_healthy_with_its_runtime_stays_so_without_it_and_goes_on_asking(kubelet: Kubelet) -> None:
    endpoint = "/run/containerd/containerd.sock"
    kubelet.start(containerRuntimeEndpoint=f"unix://{endpoint}")
    pid = kubelet.host.show(UNIT, "MainPID")
    kubelet.host.systemctl("stop", RUNTIME)
    place = Path(reach(kubelet.host, endpoint))
    place.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as asked:
        asked.bind(str(place))
        asked.listen()
        asked.settimeout(STARTED)
        asked.accept()[0].close()
    assert healthz(kubelet.host) == "ok"
    assert kubelet.host.show(UNIT, "MainPID") == pid
    place.unlink()
    kubelet.host.systemctl("start", RUNTIME)


def test_containers_outlive_its_end(kubelet: Kubelet) -> None:
    kubelet.start()
    identity = create_container(kubelet.host, kubelet.host.runtime_socket, "one")
    pid = container_pid(kubelet.host, identity)
    assert pid is not None
    kubelet.host.systemctl("stop", UNIT)
    assert kubelet.host.show(UNIT, "Result") == "success"
    kubelet.start()
    assert container_pid(kubelet.host, identity) == pid


REQUESTS = {"cpu": "30m", "memory": "64Mi"}


def test_it_lists_its_pods_with_their_requests(kubelet: Kubelet) -> None:
    image = {"image": "localhost/none:1", "imagePullPolicy": "Never"}
    container = {"name": "one", "resources": {"requests": REQUESTS}, **image}
    spec = {"hostNetwork": True, "containers": [container]}
    metadata = {"name": "static", "namespace": "default"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    manifest = kubelet.host.root / MANIFESTS[1:] / "static.json"
    write(manifest, json.dumps(pod))
    kubelet.start(readOnlyPort=kubelet_api.READ_ONLY, staticPodPath=MANIFESTS)

    def listed() -> list[dict[str, str]]:
        items = json.loads(fetch(kubelet.host, "/pods")[1])["items"] or []
        mine = [item for item in items if item["metadata"]["name"].startswith("static-")]
        return [one["resources"]["requests"] for item in mine for one in item["spec"]["containers"]]

    until(lambda: listed() == [REQUESTS], STARTED)
    assert fetch(kubelet.host, "/pods", "")[0] == 401
    assert fetch(kubelet.host, "/pods", "nobody's")[0] == 401
    manifest.unlink()


def test_its_configuration_closes_the_port_that_asks_nobody(kubelet: Kubelet) -> None:
    kubelet.start()
    assert fetch(kubelet.host, "/pods", "")[0] == 401  # it serves
    with pytest.raises(Exception, match="refused"):
        fetch(kubelet.host, "/pods")
