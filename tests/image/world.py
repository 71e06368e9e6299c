"""A node of a cluster and the images for it: what the tests of the built image share.

The pods are those that `manifests` renders; the node's own systemd and kubelet are the witnesses.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from installer.manifests import ManifestOptions, render_manifests
from tests.host.node import PROXY, Node
from tests.image.container import Document, Pod, import_archive
from tests.image.images import image, payload
from tests.lib.throwaway.host import ThrowawayHost
from tests.lib.throwaway.kubelet import wait_healthy
from tests.lib.throwaway.podserver import ApiServer

OLD, NEW = "v0.9.2", "v0.9.3"
NONE = "policy:\n  Active: none\n"

#: For tests: a stand-in kubelet is up at once, and what is dead need not be so for long.
SETTINGS = {"kubelet": {"settleSeconds": 1, "restartsPerHour": 100}, "proxy": {"deadSeconds": 4}}


class World:
    """`node` is a kubeadm node with the stand-ins, `images` the names of the images there, by version."""

    def __init__(self, host: ThrowawayHost, scratch: Path, profile: str = "privileged") -> None:
        self.host = host
        self.profile = profile
        self.node = Node(host, scratch)
        self.scratch = scratch
        self.images: dict[str, str] = {}

    def image(self, version: str) -> str:
        """The name of the image with this payload, imported when it is first asked for."""
        if version not in self.images:
            self.images[version] = import_archive(self.host, image(version))
        return self.images[version]

    def manifests(
        self,
        version: str = OLD,
        mode: str = "install",
        fallback: str = NONE,
        **settings: Mapping[str, object],
    ) -> list[Document]:
        """What an operator would apply. `settings` are sections of the settings file."""
        values = {
            "images": {"installer": self.image(version)},
            "settings": {**SETTINGS, **settings},
            "configs": {"fallback": fallback},
            "profile": self.profile,
        }
        file = self.scratch / "values.yaml"
        file.write_text(json.dumps(values))
        stream = render_manifests(ManifestOptions(values=file, mode=mode))
        return [document for document in yaml.safe_load_all(stream) if document]

    def pod(self, uid: str = "", server: ApiServer | None = None, **values: Any) -> Pod:
        """A pod of the DaemonSet that `values` make (see `manifests`); `server` is its cluster's."""
        objects = self.manifests(**values)
        (daemonset,) = (one for one in objects if one["kind"] == "DaemonSet")
        config_maps = [one for one in objects if one["kind"] == "ConfigMap"]
        environment = {"CRI_RESMGR_INSTALLER_GOOD_SECONDS": "2"}
        if server is not None:  # as kubelet does it
            environment |= {
                "KUBERNETES_SERVICE_HOST": server.host,
                "KUBERNETES_SERVICE_PORT": str(server.port),
            }
        account = server.account if server is not None else None
        owner, template = daemonset["metadata"]["name"], daemonset["spec"]["template"]
        return Pod(self.host, template, config_maps, "node-1", uid, environment, account, owner)

    @contextmanager
    def rollout(self, **values: Any) -> Iterator[Pod]:
        """A pod that is ready and at rest, as after a rollout."""
        with self.pod(**values) as pod:
            self.settle(pod)
            yield pod

    def settle(self, pod: Pod) -> None:
        """Waits until it is ready, nothing goes on, and nothing is left to do."""
        pod.wait_ready()
        pod.until(lambda: at_rest(pod), 120, "it does not come to rest")

    def expect_good(self, pod: Pod) -> None:
        """Converged and healthy, by our own word in the container and by the node's systemd and kubelet."""
        status = pod.execute(*command(pod), "status")
        assert status.code == 0, status.said
        wait_healthy(self.host)
        assert self.node.on_relay()
        assert self.host.systemctl("is-active", PROXY) == "active"
        assert pod.probe("livenessProbe").code == 0

    def expect_payload(self, version: str) -> None:
        """The node has the program of that release, whole and running."""
        path = "opt/intel/bin/cri-resmgr"
        assert self.node.path(f"/{path}").read_bytes() == (payload(version) / path).read_bytes()


def idle(pod: Pod) -> bool:
    """Whether it does nothing now."""
    return len(pod.of("pass.ended")) == len(pod.of("pass.started"))


def at_rest(pod: Pod) -> bool:
    """Idle, because it finds nothing to do, and ready."""
    return idle(pod) and pod.phase() == "converged" and pod.ready()


def command(pod: Pod) -> list[str]:
    """The program with the global options that the pod's manifest gives it."""
    words = list(pod.container["command"])
    return [*words[: words.index("--output")]]
