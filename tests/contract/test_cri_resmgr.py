"""What we rely on of cri-resmgr: of the stand-in, and of the real one where `--real-cri-resmgr` names it."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypedDict

import pytest

from installer.host.cri import SocketCri
from installer.host.files import RootedFiles
from installer.inputs.configs import find_cpu_faults, load_configs
from installer.model.proxy import fatal_lines, parse_cache
from tests.lib.throwaway import real
from tests.lib.throwaway.containers import create_container, listens, run_pod
from tests.lib.throwaway.furnish import write
from tests.lib.throwaway.host import ThrowawayHost, missing_needs
from tests.lib.throwaway.payload import build_executable, build_payload, lay_payload
from tests.lib.throwaway.proxy import (
    BINARY,
    CONFIG_SOCKET,
    PID_FILE,
    PROXY,
    RELAY,
    push_config,
    ready,
    serves,
    until,
)
from tests.lib.throwaway.standins import cri_resmgr
from tests.lib.throwaway.standins.http2 import CallError

FORCE, FALLBACK = "/etc/cri-resmgr/force.cfg", "/etc/cri-resmgr/fallback.cfg"
CACHE = "var/lib/cri-resmgr/cache"
SOCKET = "run/cri-resmgr/cri-resmgr.sock"
NONE = "policy:\n  Active: none\n"
BALLOONS = "policy:\n  Active: balloons\n"
BROKEN = "policy:\n  broken: true\n"
STATIC_POOLS = "policy:\n  Active: static-pools\n"
BEYOND = os.cpu_count() or 1  # the first CPU that is not there
STARTED = 20.0  # seconds


class Proxy:
    """cri-resmgr on a host with a real containerd, under upstream's unit."""

    def __init__(self, host: ThrowawayHost) -> None:
        self.host = host
        self._begun = ""

    def configure(self, options: str) -> None:
        write(self.host.disk / "etc/default/cri-resource-manager", f"CONFIG_OPTIONS='{options}'\n")

    def start(self, config: str = NONE, options: str = f"--fallback-config={FALLBACK}") -> None:
        """Restarts it, whatever it did before, and does not wait. Its output is `said`."""
        self.host.systemctl("stop", PROXY)
        (self.host.root / PID_FILE[1:]).unlink(missing_ok=True)
        for path in (FALLBACK, FORCE):
            write(self.host.root / path[1:], config)
        self.configure(options)
        self.host.systemctl("reset-failed", PROXY, check=False)
        self._begun = self.host.run("date", "+%s.%N").stdout.strip()
        self.host.systemctl("start", PROXY)

    def serve(self, config: str = NONE, options: str = f"--fallback-config={FALLBACK}") -> None:
        """Restarts it, and waits until it listens everywhere: to its agent just after the pid file."""
        self.start(config, options)
        until(lambda: ready(self.host), STARTED)
        if "--force-config" not in options:
            until(lambda: listens(self.host, CONFIG_SOCKET), STARTED)

    @property
    def times(self) -> tuple[float, float]:
        """When the relay's socket was made and when the pid file was written, by the host's clock; 0 while
        there is none: a start replaces them."""
        return self._made_at(SOCKET), self._made_at(PID_FILE[1:])

    def _made_at(self, path: str) -> float:
        try:
            return (self.host.root / path).stat().st_mtime
        except FileNotFoundError:
            return 0.0

    @property
    def said(self) -> str:
        words = ("--no-pager", "--output=cat", f"--unit={PROXY}", f"--since=@{self._begun}")
        self.host.sync_journal()
        return self.host.run("journalctl", *words).stdout

    def says(self, *texts: str) -> None:
        until(lambda: all(text in self.said for text in texts), STARTED)

    def gives_up(self) -> None:
        """It ends at each start, until systemd has had enough."""
        until(lambda: self.host.show(PROXY, "ActiveState") == "failed", STARTED)

    @property
    def cache(self) -> dict[str, object]:
        found: dict[str, object] = json.loads((self.host.root / CACHE).read_bytes())
        return found

    def set_cache(self, content: bytes) -> None:
        self.host.systemctl("stop", PROXY)
        (self.host.root / CACHE).write_bytes(content)

    def hang_up(self) -> None:
        self.host.systemctl("kill", "--kill-whom=main", "--signal=HUP", PROXY)


@pytest.fixture(scope="module", params=["stand-in", "real"])
def proxy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    if request.param == "real" and real.named("cri-resmgr") is None:
        pytest.skip("no --real-cri-resmgr PATH")
    if missing := missing_needs():
        pytest.skip(f"no throwaway host: {', '.join(missing)}")
    payload = build_payload(tmp_path_factory.mktemp("payload"))
    if request.param == "stand-in":
        build_executable(cri_resmgr.__name__, payload / BINARY[1:])
    with ThrowawayHost() as host:
        lay_payload(host, payload)
        host.systemctl("daemon-reload")
        yield Proxy(host)
        host.systemctl("stop", PROXY)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--no-such-flag"], 2),
        (["--relay-dir"], 2),
        (["stray"], 1),
        (["--force-config", "/a", "--fallback-config=/b"], 1),
        (["--fallback-config", "/missing"], 1),
        (["--list-policies"], 0),
        (["--print-config", "--fallback-config", "/missing"], 0),
    ],
)
def test_exit_codes(proxy: Proxy, arguments: list[str], code: int) -> None:
    proxy.host.systemctl("stop", PROXY)
    assert proxy.host.run(BINARY, *arguments, check=False).returncode == code


CONFIGS = {
    "": True,
    NONE: True,
    "policy:\n  Active: null\n": True,
    "policy:\n  Active: 'null'\n": False,
    "policy:\n  active: none\n": False,
    "policy:\n  Active: nonsense\n": False,
    "policy:\n  Active: [none]\n": False,
    "policy:\n  Active: topology-aware\n": False,
    "policy:\n  Active: topology-aware\n  ReservedResources:\n    CPU: 500m\n": True,
    "policy:\n  Active: memtier\n  ReservedResources:\n    cpu: 500m\n": True,
    "policy:\n  Active: static\n": True,  # only a real start refuses it
    "policy:\n  Active: static\n  ReservedResources:\n    CPU: 999\n": True,  # this too
    "policy:\n  Active: static-plus\n": False,
    "policy:\n  Active: podpools\n": False,
    "policy:\n  Active: dynamic-pools\n": False,
    BALLOONS: False,
    "policy:\n  Active: balloons\n  ReservedResources:\n    CPU: 999\n": False,
    "policy:\n  Active: topology-aware\n  ReservedResources:\n    CPU: 999\n": False,
    "policy.topology-aware:\n  PinCPU: true\n": True,
    "policy.topology-aware:\n  pinCPU: true\n": False,
    "apiVersion: v1\nkind: ConfigMap\ndata: {}\n": False,
    "policy: [\n": False,
    "logger:\n  Debug: cache\ninstrumentation:\n  HTTPEndpoint: ':8891'\n": True,
}


@pytest.mark.parametrize(("text", "good"), CONFIGS.items())
def test_it_judges_a_configuration_in_private(proxy: Proxy, text: str, good: bool) -> None:
    """With nothing of its own in reach it waits for the runtime, or ends with the cause in one line."""
    own = "/tmp/own"
    places = {"relay-dir": own, "relay-socket": f"{own}/relay", "config-socket": f"{own}/config"}
    places |= {"agent-socket": "disabled", "pid-file": f"{own}/pid", "runtime-socket": f"{own}/none"}
    write(proxy.host.root / "tmp/config", text)
    flags = [f"--{name}={value}" for name, value in places.items()]
    # A good one waits until it is stopped; a bad one ends by itself.
    argv = ("env", "JOURNAL_STREAM=0:0", "timeout", "2" if good else "20", BINARY, *flags)
    done = proxy.host.run(*argv, "--fallback-config=/tmp/config", check=False)
    assert (done.returncode == 124) == good, done.stderr
    assert ("waiting for image services" in done.stderr) == good
    assert any(line.startswith("F: ") for line in done.stderr.splitlines()) == (not good)


def test_without_a_journal_its_lines_begin_otherwise(proxy: Proxy) -> None:
    write(proxy.host.root / "tmp/config", BROKEN)
    done = proxy.host.run(BINARY, "--relay-dir=/tmp/own", "--fallback-config=/tmp/config", check=False)
    assert done.returncode == 1
    assert "\nF: " not in f"\n{done.stderr}"
    assert fatal_lines(done.stderr.splitlines())


def test_the_pid_file_says_that_it_serves(proxy: Proxy) -> None:
    proxy.serve()
    assert serves(proxy.host)
    pid = (proxy.host.root / PID_FILE[1:]).read_text().strip()
    assert pid == proxy.host.show(PROXY, "MainPID")
    assert (proxy.host.root / f"proc/{pid}/comm").read_text() == "cri-resmgr\n"
    assert proxy.cache["PolicyName"] == "none"
    proxy.host.systemctl("stop", PROXY)
    assert proxy.host.show(PROXY, "Result") == "success"
    assert ready(proxy.host)  # left behind, as the sockets are
    assert not listens(proxy.host, RELAY)
    left = sorted(os.listdir(proxy.host.root / "run/cri-resmgr"))
    assert left == ["cri-resmgr-config.sock", "cri-resmgr.sock"]


def test_the_files_of_a_start_tell_how_long_it_took(proxy: Proxy) -> None:
    """It creates the relay's socket first, and writes the pid file when it serves."""
    proxy.serve()
    before, served = proxy.times
    assert before <= served
    proxy.host.systemctl("restart", PROXY)
    until(lambda: proxy.times[1] > served, STARTED)
    assert served < proxy.times[0] <= proxy.times[1]


@pytest.mark.parametrize(
    ("config", "options"),
    [
        ("policy:\n  Active: static\n", ""),
        (STATIC_POOLS, " --agent-socket=disabled"),
        (STATIC_POOLS, ""),  # it has no pools
        (STATIC_POOLS + "  static-pools: {LabelNode: true, pools: {}}\n", ""),
        (STATIC_POOLS + "  static-pools: {ConfDirPath: /none}\n", ""),
    ],
)
def test_what_only_a_real_start_refuses(proxy: Proxy, config: str, options: str) -> None:
    proxy.start(config, f"--fallback-config={FALLBACK}{options}")
    proxy.gives_up()
    assert proxy.host.show(PROXY, "ExecMainStatus") == "1"


@pytest.mark.parametrize(
    ("policy", "available", "reserved"),
    [
        ("podpools", f"cpuset:{BEYOND}-{BEYOND + 13}", f"cpuset:{BEYOND}"),  # as in upstream's own sample
        ("podpools", f"cpuset:0-{BEYOND}", "1"),
        ("podpools", "", "1"),
        ("static", "", str(BEYOND + 1)),
        ("static", "", "1"),
        ("static", "", str(BEYOND)),
    ],
)
def test_cpus_that_are_not_there_end_a_start_that_we_refuse(
    proxy: Proxy, tmp_path: Path, policy: str, available: str, reserved: str
) -> None:
    config = f"policy:\n  Active: {policy}\n  ReservedResources: {{CPU: {reserved!r}}}\n"
    config += f"  AvailableResources: {{CPU: {available!r}}}\n" if available else ""
    (tmp_path / "fallback.cfg").write_text(config)
    if not find_cpu_faults(load_configs(tmp_path), f"0-{BEYOND - 1}"):
        proxy.serve(config)
        return
    proxy.start(config)
    proxy.says("panic: ")
    proxy.gives_up()
    assert proxy.host.show(PROXY, "ExecMainStatus") == "2"


def test_a_container_that_runs_is_known_by_its_id_in_the_cache(proxy: Proxy) -> None:
    proxy.serve()
    made = create_container(proxy.host, RELAY, "one")
    proxy.serve(f"{BALLOONS}  ReservedResources:\n    CPU: 1\n")
    assert made in parse_cache((proxy.host.root / CACHE).read_bytes()).containers


def test_a_pod_whose_image_is_being_pulled_is_seen_through_it(proxy: Proxy) -> None:
    proxy.serve()
    cri = SocketCri(RootedFiles(proxy.host.root))
    pod = run_pod(proxy.host, RELAY, "pulling")

    def empty() -> list[str]:
        return [found.title for found in cri.empty_pods(RELAY)]

    assert "default/pulling" in empty()
    create_container(proxy.host, RELAY, "pulled", pod=pod)
    assert "default/pulling" not in empty()


def test_a_container_is_refused_in_a_pod_that_was_made_beside_it(proxy: Proxy) -> None:
    """Until it starts again, whatever is asked in between."""
    proxy.serve()
    beside = run_pod(proxy.host, proxy.host.runtime_socket, "beside")
    behind = run_pod(proxy.host, RELAY, "behind")
    for _ in range(30):  # more than a window of refused requests
        with pytest.raises(CallError):
            create_container(proxy.host, RELAY, "one", pod=beside, command=["x" * 4096])
    proxy.says("failed to insert new container to cache: ", f"can't find cached pod {beside.identity}")
    create_container(proxy.host, RELAY, "two", pod=behind)
    known = parse_cache((proxy.host.root / CACHE).read_bytes()).pods
    assert behind.identity in known
    assert beside.identity not in known
    proxy.serve()
    create_container(proxy.host, RELAY, "one", pod=beside)


class AgentsConfig(TypedDict):
    NodeName: str
    Data: dict[str, str]


POLICY = "Active: balloons\nReservedResources:\n  CPU: 1\n"
AGENTS: AgentsConfig = {"NodeName": "", "Data": {"policy": POLICY}}


def test_the_agents_configuration_goes_before_the_fallback_until_it_is_reset(proxy: Proxy) -> None:
    proxy.serve()
    proxy.set_cache(json.dumps({**proxy.cache, "Cfg": AGENTS}).encode())
    proxy.serve(BROKEN)  # which is not read
    assert proxy.cache["PolicyName"] == "balloons"
    assert proxy.host.run(BINARY, "--reset-config", check=False).returncode == 1  # it runs
    proxy.host.systemctl("stop", PROXY)
    relay = proxy.host.root / "run/cri-resmgr/cri-resmgr.sock"
    relay.unlink()
    assert proxy.host.run(BINARY, "--reset-config", check=False).returncode == 1  # takes that for running
    relay.touch()
    assert proxy.host.run(BINARY, "--reset-config").returncode == 0
    relay.unlink()
    assert not proxy.cache["Cfg"]
    assert proxy.cache["PolicyName"] == "balloons"
    proxy.start(BROKEN)
    proxy.gives_up()


def test_what_the_agent_pushes_is_kept_and_its_policy_is_for_the_next_start(proxy: Proxy) -> None:
    proxy.serve()
    assert push_config(proxy.host, AGENTS["Data"], "one") == ""
    until(lambda: proxy.cache["Cfg"] == {**AGENTS, "NodeName": "one"}, STARTED)
    proxy.says("successfully switched")
    assert serves(proxy.host)
    policies = [proxy.cache["PolicyName"]]
    proxy.serve(BROKEN)
    policies.append(proxy.cache["PolicyName"])
    assert policies == ["none", "balloons"]
    proxy.set_cache(json.dumps({**proxy.cache, "Cfg": None}).encode())


def test_the_agent_is_told_what_of_its_configuration_is_refused(proxy: Proxy) -> None:
    proxy.serve()
    before = proxy.cache["Cfg"]
    assert "rejected" in push_config(proxy.host, {"policy": "broken: true\n"})
    proxy.says("rejected")
    assert proxy.cache["Cfg"] == before
    assert serves(proxy.host)


@pytest.mark.parametrize("policy", ["nonsense", "balloons", "topology-aware"])
def test_the_agent_is_not_told_what_the_next_start_refuses(proxy: Proxy, policy: str) -> None:
    """Of its policy neither the name nor the CPUs are looked at."""
    proxy.serve()
    assert push_config(proxy.host, {"policy": f"Active: {policy}\n"}) == ""
    proxy.start()
    proxy.gives_up()
    proxy.set_cache(b"")


def test_no_agent_is_heard_beside_a_forced_configuration(proxy: Proxy) -> None:
    proxy.serve(NONE, f"--force-config={FORCE}")
    with pytest.raises(OSError, match="refused"):
        push_config(proxy.host, AGENTS["Data"])


def test_an_empty_cache_is_none(proxy: Proxy) -> None:
    proxy.serve()
    proxy.set_cache(b"")
    proxy.serve()


@pytest.fixture(scope="module")
def whole(proxy: Proxy) -> bytes:
    """A cache with a container, as the proxy leaves it."""
    proxy.serve()
    create_container(proxy.host, RELAY, "cached")
    proxy.serve(f"{BALLOONS}  ReservedResources:\n    CPU: 1\n")
    proxy.host.systemctl("stop", PROXY)
    content = (proxy.host.root / CACHE).read_bytes()
    assert parse_cache(content).containers
    return content


def with_fields(whole: bytes, **other: object) -> bytes:
    return json.dumps(json.loads(whole) | other).encode()


UNMARSHAL, VERSION, PANIC = "failed to unmarshal snapshot data", "can't restore snapshot", "nil pointer"

#: What may have become of a cache: the damage, and how the proxy says so at each start.
DAMAGES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "zeros": (lambda whole: bytes(len(whole)), UNMARSHAL),
    "half zeros": (lambda whole: whole[: len(whole) // 2] + bytes(len(whole) // 2), UNMARSHAL),
    "zeros inside": (lambda whole: whole[:40] + bytes(40) + whole[80:], UNMARSHAL),
    "zeros behind": (lambda whole: whole + bytes(9), UNMARSHAL),
    "cut short": (lambda whole: whole[:-5], UNMARSHAL),
    "blank": (lambda _whole: b"\n", UNMARSHAL),
    "a list": (lambda _whole: b"[]", UNMARSHAL),
    "null": (lambda _whole: b"null", VERSION),
    "an object": (lambda _whole: b"{}", VERSION),
    "a version that is a number": (lambda whole: with_fields(whole, Version=1), UNMARSHAL),
    "pods that are a list": (lambda whole: with_fields(whole, Pods=[]), UNMARSHAL),
    "data that are a list": (lambda whole: with_fields(whole, Cfg={"Data": []}), UNMARSHAL),
    "a pod of text": (lambda whole: with_fields(whole, Pods={"p": "t"}), UNMARSHAL),
    "a label that is a number": (
        lambda whole: with_fields(whole, Pods={"p": {"Labels": {"a": 1}}}),
        UNMARSHAL,
    ),
    "no ID": (lambda whole: with_fields(whole, Containers={"c": {"ID": 1}}), UNMARSHAL),
    "weight of text": (
        lambda whole: with_fields(whole, Containers={"c": {"LinuxReq": {"cpu_shares": "2"}}}),
        UNMARSHAL,
    ),
    "a null pod": (lambda whole: with_fields(whole, Pods={"p": None}), PANIC),
    "a null container": (lambda whole: with_fields(whole, Containers={"c": None}), PANIC),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_we_take_for_torn_ends_each_start(proxy: Proxy, whole: bytes, damage: str) -> None:
    spoil, says = DAMAGES[damage]
    torn = spoil(whole)
    assert parse_cache(torn).torn
    proxy.set_cache(torn)
    proxy.start()
    proxy.says(says)
    proxy.gives_up()
    proxy.set_cache(whole)


@pytest.mark.parametrize(
    "other",
    [{"Unknown": 1}, {"NextID": None}, {"Cfg": {}}, {"Pods": {"p": {}}}, {"Containers": {"c": {}}}],
    ids=str,
)
def test_what_we_take_for_whole_is_read(proxy: Proxy, whole: bytes, other: dict[str, object]) -> None:
    content = with_fields(whole, **other)
    assert not parse_cache(content).torn
    proxy.set_cache(content)
    proxy.serve()
    proxy.set_cache(whole)


def test_a_whole_cache_begins_and_ends_with_a_brace(whole: bytes) -> None:
    """By which the guard tells one."""
    assert whole[:1] + whole.rstrip()[-1:] == b"{}"


def forced(proxy: Proxy, text: str) -> None:
    """A start with a force.cfg, then a signal for another one."""
    proxy.serve(NONE, f"--force-config={FORCE}")
    write(proxy.host.root / FORCE[1:], text)
    proxy.hang_up()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (NONE + "logger:\n  Debug: cache\n", "successfully switched"),
        (BROKEN, "failed to reload"),
        (BALLOONS, "successfully switched"),  # and nothing switches
        ("policy:\n  Active: nonsense\n", "successfully switched"),
        ("policy:\n  Active: topology-aware\n  ReservedResources: {CPU: 999}\n", "successfully switched"),
    ],
)
def test_what_becomes_of_a_signal_is_in_the_journal_alone(proxy: Proxy, text: str, says: str) -> None:
    forced(proxy, text)
    pid = proxy.host.show(PROXY, "MainPID")
    proxy.says(says)
    assert proxy.host.show(PROXY, "MainPID") == pid
    assert serves(proxy.host)
    assert proxy.cache["PolicyName"] == "none"


def test_without_a_forced_configuration_a_signal_ends_it(proxy: Proxy) -> None:
    proxy.serve()
    pid = proxy.host.show(PROXY, "MainPID")
    proxy.hang_up()
    until(lambda: proxy.host.show(PROXY, "MainPID") not in ("0", pid), STARTED)
    assert proxy.host.show(PROXY, "Result") == "success"
