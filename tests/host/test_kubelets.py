"""Every kubelet we serve, booted: its flags live on beside our endpoint, whoever changes and restarts it."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from installer.model import paths
from tests.faults.hosts import kubelets
from tests.host.command import RELAY_FLAG, Command, Ended, untouched
from tests.host.flavours import KUBELETS, NEW_FLAG, UNIT_FILE, Flavour
from tests.lib.rules import rule
from tests.lib.throwaway.host import ThrowawayHost
from tests.lib.throwaway.kubelet import (
    FLAVOURS,
    UNIT,
    healthz,
    install_kubelet,
    running_arguments,
    running_endpoint,
    runtime_of,
    wait_healthy,
)
from tests.lib.throwaway.snapshot import difference, files, snapshot

pytestmark = pytest.mark.long

PROXY = "cri-resource-manager.service"
LINK_FLAGS = [f"--container-runtime-endpoint=unix://{link}" for link in paths.ENDPOINT_LINKS]

#: Cases of kubelets, one for each way that no flavour has.
FORMS = (
    *("argv0", "script-variable", "shell-command-variable", "script-child", "program-named-variable"),
    "script-ignores-arguments",
)


@dataclass(frozen=True, slots=True)
class Node:
    """A booted host with a kubelet of one flavour, and the program for it."""

    host: ThrowawayHost
    command: Command
    flavour: Flavour

    def edit(self, path: str, old: str, new: str) -> None:
        """Somebody else edits a file of kubelet's, or makes it."""
        file = self.host.root / path[1:]
        text = file.read_text() if file.exists() else ""
        assert old in text
        file.write_text(text.replace(old, new, 1) if old else new)

    def restart(self) -> list[str]:
        """Somebody else restarts kubelet. Returns its arguments, once it is healthy."""
        self.host.systemctl("restart", UNIT)
        wait_healthy(self.host)
        return running_arguments(self.host)

    def run(self, *argv: str) -> Ended:
        ended = self.command(*argv)
        assert ended.code == 0, ended.said
        return ended

    def invocation(self) -> str:
        return self.host.show(UNIT, "InvocationID")


Boot = Callable[[str], Node]


@pytest.fixture
def boot(tmp_path: Path) -> Iterator[Boot]:
    """Boots a host with a kubelet of the flavour that is asked for."""
    hosts: list[ThrowawayHost] = []

    def booted(flavour: str) -> Node:
        host = ThrowawayHost(runtime_of(flavour))
        hosts.append(host.__enter__())
        install_kubelet(host, flavour)
        return Node(host, Command(host, tmp_path), KUBELETS[flavour])

    yield booted
    for host in hosts:
        host.stop()


def served(arguments: list[str]) -> list[str]:
    """Kubelet's own arguments, after seeing that ours is there once and has the last word."""
    assert arguments[-1] in LINK_FLAGS
    assert arguments[-1] not in arguments[:-1]
    return arguments[:-1]


def test_every_flavour_is_here() -> None:
    assert set(KUBELETS) == set(FLAVOURS)


@pytest.mark.parametrize("name", FLAVOURS)
def test_flags_of_somebody_else_and_our_endpoint(boot: Boot, name: str) -> None:
    node = boot(name)
    host, flavour = node.host, node.flavour
    before, arguments, endpoint = snapshot(host), running_arguments(host), running_endpoint(host)

    planned = node.command("plan", "--output", "json")
    assert planned.code == 3, planned.said
    chosen: Mapping[str, str] = planned.document["kubelet"]
    assert chosen["strategy"] == flavour.strategy
    assert f"${flavour.variable}" in chosen["why"] or flavour.strategy == "exec-start"
    assert ("ends with" in chosen["why"]) == (flavour.strategy == "environment")

    node.run("install")
    assert served(running_arguments(host)) == arguments
    assert "cri-resmgr.sock" in running_endpoint(host)
    assert healthz(host) == "ok"
    assert "cycle" not in host.run("systemd-analyze", "verify", "default.target", check=False).stderr

    node.edit(flavour.flags, flavour.old, flavour.new)
    if flavour.strategy == "environment":
        changed = served(node.restart())
        assert "nothing to do" in node.run("install").out
    else:
        host.systemctl("daemon-reload")
        assert served(node.restart()) == arguments, "still the line that our drop-in repeats"
        planned = node.command("plan", "--diff")
        assert planned.code == 3
        assert NEW_FLAG in planned.out
        assert "kubelet restarts" in planned.out
        assert "cri-resource-manager does not" in planned.out
        node.run("install")
        changed = served(running_arguments(host))
    assert NEW_FLAG in changed
    assert NEW_FLAG not in arguments
    assert "cri-resmgr.sock" in running_endpoint(host)

    was = node.invocation()
    node.run("remove")
    assert node.invocation() != was
    assert running_arguments(host) == changed
    assert running_endpoint(host) == endpoint
    assert healthz(host) == "ok"
    left = [line.split()[1].rstrip(":") for line in difference(before, snapshot(host))]
    lines = ["kubelet:ExecStart", "kubelet:ExecStartEx"] if flavour.flags.endswith("/kubelet.service") else []
    assert left == [flavour.flags, *lines]
    assert host.show(PROXY, "LoadState") == "not-found"


def test_unit_written_anew_keeps_our_endpoint(boot: Boot) -> None:
    """As an upgrade does it, with no installer there to help; and nothing is left for the next run."""
    node = boot("gardener-set")
    arguments = running_arguments(node.host)
    node.run("install")
    proxy = node.host.show(PROXY, "InvocationID")
    node.edit(UNIT_FILE, "--v=2", f"--v=2 {NEW_FLAG}")
    node.edit(UNIT_FILE, "=unix:///run/containerd/", "=unix:///var/run/containerd/")
    node.host.systemctl("daemon-reload")

    changed = served(node.restart())

    assert NEW_FLAG in changed
    assert "--container-runtime-endpoint=unix:///var/run/containerd/containerd.sock" in changed
    assert len(changed) == len(arguments) + 1
    assert "nothing to do" in node.run("install").out
    assert node.host.show(PROXY, "InvocationID") == proxy, "another spelling of the same socket"


def test_strategy_that_is_asked_for(boot: Boot) -> None:
    node = boot("kubeadm")
    arguments = running_arguments(node.host)
    node.command.set(kubelet={"strategy": "exec-start"})

    assert "kubelet's strategy: exec-start:" in node.command("plan", "-v").out
    node.run("install")
    assert served(running_arguments(node.host)) == arguments
    assert "nothing to do" in node.run("install").out


def test_strategy_that_cannot_win_is_refused(boot: Boot) -> None:
    node = boot("plain-one-word")
    node.command.set(kubelet={"strategy": "environment"})

    with untouched(node.host):
        ended = node.command("install")

    assert ended.code == 4
    assert "does not end with a $VARIABLE" in ended.err
    assert "kubelet.strategy: auto" in ended.err


@rule("R12")
def test_boot_with_a_script_and_a_runtime_at_another_place(boot: Boot) -> None:
    """Nothing of ours orders the proxy behind a runtime whose unit we do not know."""
    node = boot("script")
    node.run("install")
    node.host.reboot()
    wait_healthy(node.host)
    assert "--node-labels=pool=one" in served(running_arguments(node.host))
    assert "nothing to do" in node.run("install").out


@rule("R12")
def test_kubelets_that_are_started_in_other_ways_take_each_others_place(tmp_path: Path) -> None:
    """Served or refused, installed or not. `hack/faults kubelets` has all of the cases."""
    cases = kubelets.bootable(*FORMS)
    assert [case.name for case in cases] == list(FORMS)
    tried = kubelets.try_cases(tmp_path, cases)
    assert not tried.bad, "\n".join(tried.bad)


def test_unit_of_another_name(boot: Boot) -> None:
    """Also an instance of a template."""
    node = boot("plain-one-word")
    host, name = node.host, "node-agent@one.service"
    host.systemctl("disable", "--now", UNIT)
    (host.root / UNIT_FILE[1:]).rename(host.root / "etc/systemd/system/node-agent@.service")
    host.systemctl("daemon-reload")
    host.systemctl("enable", "--now", name)
    wait_healthy(host)
    before, arguments = files(host), running_arguments(host, name)
    refused = node.command("install")
    assert refused.code == 4
    assert "kubelet.unit" in refused.err
    node.command.set(kubelet={"unit": name})

    node.run("install")
    assert served(running_arguments(host, name)) == arguments
    host.reboot()
    wait_healthy(host)
    assert served(running_arguments(host, name)) == arguments
    assert host.show(name, "NRestarts") == "0"
    assert "nothing to do" in node.run("install").out

    node.run("remove")
    assert running_arguments(host, name) == arguments
    assert not difference(before, files(host))


def test_script_is_refused_until_an_operator_says_what_it_passes_on(boot: Boot) -> None:
    """Then the restarted kubelet decides: a node returns if that was wrong."""
    node = boot("plain-one-word")
    host, script = node.host, "/opt/start-kubelet"
    endpoint = "--container-runtime-endpoint=unix:///run/containerd/containerd.sock"
    text = (host.root / UNIT_FILE[1:]).read_text()
    line = next(one for one in text.splitlines() if one.startswith("ExecStart="))
    node.edit(UNIT_FILE, line, f"ExecStart={script} --v=2")
    host.systemctl("daemon-reload")

    def starts(last: str) -> None:
        place = host.root / script[1:]
        place.write_text(f"#!/bin/sh\n{last}\n")
        place.chmod(0o755)
        node.restart()

    for last, found in (
        (f"exec /usr/bin/kubelet {endpoint} --v=3", "the running kubelet has other arguments"),
        (f'/usr/bin/kubelet {endpoint} "$@"', "kubelet its child"),
        (
            f'set -- "$@" --v=3\nexec /usr/bin/kubelet {endpoint} "$@"',
            "the running kubelet has other arguments",
        ),
        (f"exec /usr/bin/kubelet {endpoint} --v=3 $SITE_ARGS", "kubelet.variable: NAME"),
    ):
        starts(last)
        with untouched(host):
            ended = node.command("install")
        assert ended.code == 4
        assert script in ended.err
        assert found in ended.err

    arguments = running_arguments(host)
    node.command.set(kubelet={"strategy": "exec-start"})
    ended = node.command("install")
    assert ended.code == 5, ended.said
    assert running_arguments(host) == arguments
    assert healthz(host) == "ok"

    node.command.set(kubelet={"variable": "SITE_ARGS"})
    node.run("install")
    assert served(running_arguments(host)) == arguments
    assert served(node.restart()) == arguments
    assert "nothing to do" in node.run("install").out
    node.run("remove")
    assert running_arguments(host) == arguments


def test_base_that_becomes_a_script_while_our_drop_in_repeats_its_old_line(boot: Boot) -> None:
    """Refused, and not tried. A start without us shows what the script does."""
    node = boot("plain-one-word")
    host, script = node.host, "/opt/start-kubelet"
    endpoint = "--container-runtime-endpoint=unix:///run/containerd/containerd.sock"
    line = next(one for one in (host.root / UNIT_FILE[1:]).read_text().splitlines() if "ExecStart=" in one)
    node.run("install")
    node.edit(UNIT_FILE, line, f"ExecStart={script} --v=2")
    (host.root / script[1:]).write_text(f'#!/bin/sh\nexec /usr/bin/kubelet {endpoint} "$@"\n')
    (host.root / script[1:]).chmod(0o755)
    host.systemctl("daemon-reload")

    with untouched(host):
        refused = node.command("install")
    assert refused.code == 4
    assert f"the program {script}" in refused.err
    assert "our drop-in still starts kubelet by its earlier command line (/usr/bin/kubelet)" in refused.err
    assert re.search(r"`cri-resmgr-installer [^`]* remove`", refused.err)

    node.run("remove")
    node.run("install")
    assert served(running_arguments(host)) == [endpoint, "--v=2"]
    assert served(node.restart()) == [endpoint, "--v=2"]
    assert "nothing to do" in node.run("install").out


def test_kubelet_that_became_a_child_of_a_shell_leaves_the_relay_with_us(boot: Boot) -> None:
    """No new installation is possible then. The unit's main process does not show kubelet's endpoint."""
    node = boot("kubeadm")
    host, drop_in = node.host, "/usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf"
    node.run("install")
    lines = (host.root / drop_in[1:]).read_text().splitlines()
    line = next(one for one in lines if one.startswith("ExecStart=/")).removeprefix("ExecStart=")
    node.edit(drop_in, f"={line}", f"=/bin/sh -c '{line.replace('$', '$$')}; exit 1'")
    host.systemctl("daemon-reload")
    node.restart()

    def endpoint() -> str:
        return host.run("pgrep", "-f", "-a", "^/.*/kubelet --").stdout.split()[-1]

    assert endpoint() == RELAY_FLAG
    assert "kubelet its child" in node.command("install").err
    node.run("remove")
    assert endpoint() == "--container-runtime-endpoint=unix:///var/run/containerd/containerd.sock"
    assert healthz(host) == "ok"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("ExecStart=/bin/sh -c 'exec /usr/bin/kubelet --v=2'", "the shell command in"),
        ("ExecStart=:/usr/bin/kubelet --v=2", "the prefix `:`"),
    ],
)
def test_command_line_that_cannot_be_served(boot: Boot, line: str, found: str) -> None:
    node = boot("plain-one-word")
    text = (node.host.root / UNIT_FILE[1:]).read_text()
    node.edit(UNIT_FILE, next(one for one in text.splitlines() if one.startswith("ExecStart=")), line)
    node.host.systemctl("daemon-reload")
    node.restart()

    with untouched(node.host):
        ended = node.command("install")

    assert ended.code == 4
    assert found in ended.err
    assert UNIT_FILE in ended.err
