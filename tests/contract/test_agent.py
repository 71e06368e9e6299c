"""What we rely on of cri-resmgr-agent: of the stand-in, and of the real one where `--real-agent` names it.

That is what it sends to the proxy, and when. API server and proxy are stand-ins (the proxy is the real one
where `--real-cri-resmgr` names it). The real agent is started as upstream's documentation says to start it
without a pod, with NODE_NAME and -kubeconfig; an agent that wants other flags does not pass here.
"""

import json
from collections.abc import Iterator

import pytest

from installer.model import paths
from tests.lib.throwaway import real
from tests.lib.throwaway.furnish import write
from tests.lib.throwaway.host import ThrowawayHost, missing_needs
from tests.lib.throwaway.kubeserver import CORE, Kind, Name, parse_path
from tests.lib.throwaway.payload import build_executable, build_payload
from tests.lib.throwaway.podserver import ApiServer
from tests.lib.throwaway.proxy import PROXY, push_config, ready, serves, start_proxy, until
from tests.lib.throwaway.standins import agent as standin

UNIT, BINARY, KUBECONFIG = "cri-resmgr-agent.service", "/opt/cri-resmgr-agent", "/opt/kubeconfig"
NODE, CONFIG_MAPS = "node-1", "/api/v1/namespaces/kube-system/configmaps"
NODE_NAME = Name(Kind(CORE, "nodes"), "", NODE)
CACHE = "var/lib/cri-resmgr/cache"
SENT = 60.0  # seconds: the real one gathers changes for some, and waits some after a failure

#: The stand-in does that sooner here than of itself.
QUICK = {"rateLimitSeconds": 0.2, "retrySeconds": 0.2}


def data(cpus: str) -> dict[str, str]:
    return {"policy": f"Active: topology-aware\nReservedResources:\n  CPU: {cpus}\n"}


class Agent:
    """The agent of a node with a proxy and a cluster."""

    def __init__(self, host: ThrowawayHost, server: ApiServer) -> None:
        self.host, self.server = host, server

    def forget(self) -> None:
        """A cluster without ConfigMaps and groups, and an agent that does not run."""
        self.host.systemctl("stop", UNIT)
        for name in self.server.below(CONFIG_MAPS):
            self.server.delete(name)
        self.group(None)

    def group(self, name: str | None) -> None:
        """The node's label says this."""
        self.server.patch(NODE_NAME, {"metadata": {"labels": {standin.GROUP_LABEL: name}}})

    def config(self, of: str, content: dict[str, str] | None) -> None:
        """The ConfigMap of the node, of a group, or of all others, has this now. None: it is gone."""
        path = f"{CONFIG_MAPS}/cri-resmgr-config.{of}"
        if content is None:
            self.server.delete(parse_path(path)[0])
        else:
            self.server.put(path, {"apiVersion": "v1", "kind": "ConfigMap", "data": content})

    def start(self) -> None:
        self.host.systemctl("start", UNIT)

    def meets(self, flags: str = "") -> None:
        """From its next start on the agent has these flags more. It is stopped."""
        command = f"{BINARY} -kubeconfig {KUBECONFIG} {flags}".rstrip()
        text = f"[Service]\nEnvironment=NODE_NAME={NODE}\nExecStart={command}\n"
        write(self.host.root / "etc/systemd/system" / UNIT, text)
        self.host.systemctl("daemon-reload")
        self.host.systemctl("stop", UNIT)

    def proxy_meets(self, flags: str = "") -> None:
        """The proxy is restarted with these flags more."""
        options = f"--fallback-config /etc/cri-resmgr/fallback.cfg {flags}".rstrip()
        write(self.host.root / "etc/default/cri-resource-manager", f'CONFIG_OPTIONS="{options}"\n')
        self.host.systemctl("restart", PROXY)
        until(lambda: serves(self.host))

    def fails_to_send(self, content: dict[str, str]) -> None:
        """What is the default from now on does not reach the proxy."""
        before = self._said("failed to send")
        self.config("default", content)
        until(lambda: self._said("failed to send") > before, SENT)

    @property
    def kept(self) -> tuple[str, dict[str, str]]:
        """What the proxy keeps of its agent: for which node, and the data."""
        found = json.loads((self.host.root / CACHE).read_bytes())["Cfg"] or {}
        return found.get("NodeName", ""), found.get("Data") or {}

    def sends(self, content: dict[str, str]) -> None:
        """The proxy gets this for the node, and keeps it.

        The real one hangs for ever if its configuration changes while it sends the Adjustments that there
        are at its start (0.9.2: its two loops wait for each other).
        """
        until(lambda: self.kept == (NODE, content), SENT)
        until(lambda: self._said("got status") >= self._said("starting CRI Resource Manager Agent"), SENT)

    def _said(self, text: str) -> int:
        return self.host.journal(UNIT).count(text)


@pytest.fixture(scope="module", params=["stand-in", "real"])
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    named = real.named("agent")
    if request.param == "real" and named is None:
        pytest.skip("no --real-agent PATH")
    if missing := missing_needs():
        pytest.skip(f"no throwaway host: {', '.join(missing)}")
    with ThrowawayHost() as host, ApiServer(NODE, network=f"/proc/{host.leader}/ns/net") as server:
        binary = host.root / BINARY[1:]
        if request.param == "real":
            assert named
            binary.write_bytes(named.read_bytes())
            binary.chmod(0o755)
        else:
            build_executable(standin.__name__, binary, QUICK)
        write(host.root / KUBECONFIG[1:], server.kubeconfig(), 0o600)
        start_proxy(host, build_payload(tmp_path_factory.mktemp("payload")))
        agent = Agent(host, server)
        agent.meets()
        yield agent
        host.systemctl("stop", UNIT, PROXY)


@pytest.fixture
def agent(node: Agent) -> Agent:
    node.forget()
    return node


def test_it_sends_what_is_for_its_node_before_its_group_before_the_default(agent: Agent) -> None:
    agent.config("default", data("100m"))
    agent.start()
    agent.sends(data("100m"))
    agent.config("default", data("200m"))
    agent.sends(data("200m"))
    agent.config("group.green", data("300m"))
    agent.group("green")
    agent.sends(data("300m"))
    agent.config(f"node.{NODE}", data("400m"))
    agent.sends(data("400m"))
    agent.config(f"node.{NODE}", None)
    agent.sends(data("300m"))
    agent.group(None)
    agent.sends(data("200m"))


def test_a_group_without_a_configmap_gets_an_empty_configuration_and_not_the_default(agent: Agent) -> None:
    agent.config("default", data("100m"))
    agent.start()
    agent.sends(data("100m"))
    agent.group("green")
    agent.sends({})


def test_it_sends_what_is_of_its_node_when_it_starts_whatever_the_proxy_has(agent: Agent) -> None:
    agent.config("default", data("100m"))
    agent.config("group.green", data("200m"))
    agent.config("group.red", data("300m"))
    agent.config("node.node-2", data("400m"))
    agent.group("green")
    assert push_config(agent.host, data("500m"), "node-2") == ""
    agent.start()
    agent.sends(data("200m"))


def test_it_tries_to_send_until_the_proxy_is_there(agent: Agent) -> None:
    agent.config("default", data("100m"))
    agent.start()
    agent.sends(data("100m"))
    agent.host.systemctl("stop", PROXY)
    agent.config("default", data("200m"))
    until(lambda: "failed to send" in agent.host.journal(UNIT), SENT)
    agent.host.systemctl("start", PROXY)
    until(lambda: ready(agent.host))
    agent.sends(data("200m"))


def test_where_they_meet_is_told_to_both_and_until_then_the_proxy_keeps_what_it_had(agent: Agent) -> None:
    """With the flags of our manifests and of our EnvironmentFile. Nobody else makes the directory."""
    agent.config("default", data("100m"))
    agent.start()
    agent.sends(data("100m"))
    agent.proxy_meets(f"--agent-socket={paths.AGENT_SOCKET} --config-socket={paths.CONFIG_SOCKET}")
    agent.fails_to_send(data("200m"))
    assert agent.kept == (NODE, data("100m"))
    agent.meets(f"-agent-socket {paths.AGENT_SOCKET} -cri-resmgr-socket {paths.CONFIG_SOCKET}")
    agent.start()
    agent.sends(data("200m"))
    agent.proxy_meets()
    agent.fails_to_send(data("300m"))
    assert agent.kept == (NODE, data("200m"))
    agent.meets()
    agent.start()
    agent.sends(data("300m"))


def test_it_outlives_a_configuration_that_the_proxy_refuses(agent: Agent) -> None:
    agent.config("default", data("100m"))
    agent.start()
    agent.sends(data("100m"))
    agent.config("default", {"policy": "broken: true\n"})
    until(lambda: "rejected" in agent.host.journal(PROXY), SENT)
    agent.sends(data("100m"))
    agent.config("default", data("200m"))
    agent.sends(data("200m"))


def test_it_ends_when_it_is_not_told_its_node(agent: Agent) -> None:
    done = agent.host.run(BINARY, "-kubeconfig", KUBECONFIG, check=False, timeout=SENT)
    assert done.returncode != 0
    assert "NODE_NAME" in done.stderr
