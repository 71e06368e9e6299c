"""The built image of Gardener's controller, as its chart starts it on a seed."""

import signal
from pathlib import Path

import pytest

from tests.image.container import Pod, import_archive
from tests.image.images import extension_image
from tests.lib.throwaway.fleet import LEASES
from tests.lib.throwaway.gardener import Landscape, install_controller
from tests.lib.throwaway.host import ThrowawayHost
from tests.lib.throwaway.kubeserver import KubeServer, Name

pytestmark = pytest.mark.host

SHOOT = "shoot--example--pinned"
SECONDS = 300.0  # only end a test that has failed


def test_it_gets_ready_serves_a_shoot_and_ends(tmp_path: Path) -> None:
    (tmp_path / "account").mkdir()
    values = tmp_path / "values.yaml"
    values.write_text("{}\n")
    with ThrowawayHost() as host:
        network = f"/proc/{host.leader}/ns/net"
        seed, shoot = KubeServer(tmp_path / "account", network), KubeServer(network=network)
        image = import_archive(host, extension_image())
        objects = install_controller(values, ("registry.example.org/nodes:1", f"extension={image}"))
        template = objects["Deployment"]["spec"]["template"]
        template["spec"]["hostNetwork"] = True  # there is no other network here
        with Landscape(seed, shoot, n1="ready") as world:
            place = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(seed.port)}
            with Pod(host, template, [objects["ConfigMap"]], environment=place, account=seed.account) as pod:
                pod.wait_ready(SECONDS)
                assert pod.probe("livenessProbe").code == 0
                world.serve(SHOOT)
                # ctr starts it as root, without any capability.
                user = template["spec"]["securityContext"]["runAsUser"]
                said = pod.execute("cri-resmgr-installer", "extension", "--help", user=user)
                assert said.code == 0, said.said
                assert pod.terminate(SECONDS) == 128 + signal.SIGTERM
            lease = Name(LEASES, "kube-system", "cri-resmgr-extension-leader-election")
            assert seed.get(lease)["spec"]["holderIdentity"] == ""
