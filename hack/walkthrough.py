"""The demo: installs, shows, changes, breaks, reboots and removes on a throwaway host.

Every step runs the installed command as a person would, and checks what it
promised; the first broken promise ends the demo with exit 1. Run by hack/demo.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType

from tests.lib import bootstrap
from tests.lib.throwaway import real
from tests.lib.throwaway.host import NoHostError, ThrowawayHost
from tests.lib.throwaway.kubelet import install_kubelet, running_endpoint, wait_healthy
from tests.lib.throwaway.payload import build_payload
from tests.lib.throwaway.snapshot import difference, snapshot

PROXY, KUBELET = "cri-resource-manager.service", "kubelet.service"
POLICY = "policy:\n  Active: topology-aware\n  ReservedResources:\n    CPU: 750m\n"


class BrokenPromiseError(Exception):
    """The product did not do what the demo says it does."""


class Walkthrough:
    def __init__(self, host: ThrowawayHost, scratch: Path) -> None:
        self.host = host
        self.payload = build_payload(scratch / "payload", ballast_mib=38)
        self.crashing = build_payload(scratch / "crashing", version="v0.9.3", fault={"exitAfterSeconds": 1.0})
        self.configs = scratch / "configs"
        self.configs.mkdir()

    def installer(self, *argv: str, expect: int, payload: Path | None = None) -> None:
        """Runs the command against the host from outside, shows what it says."""
        print(f"\n\033[1m$ cri-resmgr-installer {' '.join(argv)}\033[0m", flush=True)
        started = time.monotonic()
        command = (
            str(Path(sys.executable).parent / "cri-resmgr-installer"),
            f"--host-root={self.host.root}",
            f"--payload={payload or self.payload}",
            f"--configs={self.configs}",
            *argv,
        )
        code = subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode
        print(f"[exit {code} after {time.monotonic() - started:.2f} s]", flush=True)
        if code == 128 + signal.SIGINT:  # Ctrl-C reaches the command before it reaches us
            raise KeyboardInterrupt
        if code != expect:
            raise BrokenPromiseError(f"{argv[0]} should have exited with {expect}, not {code}")

    def invocations(self) -> tuple[str, str]:
        return self.host.show(KUBELET, "InvocationID"), self.host.show(PROXY, "InvocationID")

    def expect(self, what: str, holds: bool) -> None:
        print(f"  {'ok' if holds else 'BROKEN'}: {what}", flush=True)
        if not holds:
            raise BrokenPromiseError(what)


def title(text: str) -> None:
    print(f"\n\033[1;36m== {text}\033[0m", flush=True)


def walk(tour: Walkthrough) -> None:
    host = tour.host
    before = snapshot(host)

    title("On a kubeadm node: plan, then install")
    tour.installer("plan", expect=3)
    tour.installer("install", expect=0)
    tour.installer("status", expect=0)
    tour.expect("kubelet runs on the relay", "cri-resmgr.sock" in running_endpoint(host))

    title("Run it again: nothing to do, nothing done")
    units = tour.invocations()
    tour.installer("install", expect=0)
    tour.expect("neither unit was restarted", tour.invocations() == units)

    title("A new fallback.cfg restarts only the proxy")
    (tour.configs / "fallback.cfg").write_text(POLICY)
    tour.installer("plan", expect=3)
    tour.installer("install", expect=0)
    kubelet, proxy = tour.invocations()
    tour.expect("kubelet was not restarted", kubelet == units[0])
    tour.expect("the proxy was restarted", proxy != units[1])

    title("A new version crashes after a second: the installer rolls back")
    tour.installer("install", expect=5, payload=tour.crashing)
    tour.expect("kubelet was not restarted", tour.invocations()[0] == kubelet)
    tour.expect("the proxy runs", host.show(PROXY, "ActiveState") == "active")
    tour.installer("status", expect=0)

    boot_without_proxy(tour)

    title("Removal without a trace")
    tour.installer("plan", "--mode=remove", expect=3)
    tour.installer("remove", expect=0)
    wait_healthy(host)
    left = difference(before, snapshot(host))
    print("\n".join(left) or "  the host's files and units are as they were before", flush=True)
    tour.expect("nothing differs from before the first install", not left)


def boot_without_proxy(tour: Walkthrough) -> None:
    host = tour.host
    title("Reboot without the installer, with a proxy that does not start")
    if real.named("cri-resmgr"):
        print("  skipped: the real cri-resmgr cannot be made to fail at its start", flush=True)
        return
    fault = host.disk / "etc/standin-cri-resmgr.json"
    fault.write_text('{"startup": "exit"}')
    host.reboot(wait=False)
    wait_healthy(host, timeout=60.0)
    print("\n$ journalctl -u kubelet -u cri-resource-manager (excerpt)", flush=True)
    guard = [line for line in host.journal(KUBELET).splitlines() if "cri-resmgr" in line]
    print("\n".join(guard[-3:]), flush=True)
    tour.expect("kubelet is healthy on its base endpoint", "cri-resmgr.sock" not in running_endpoint(host))
    tour.installer("status", expect=3)
    fault.unlink()
    tour.installer("install", expect=0)
    tour.expect("repaired: kubelet runs on the relay", "cri-resmgr.sock" in running_endpoint(host))


def interrupted(number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt(number)


def main() -> int:
    parser = argparse.ArgumentParser(prog="hack/demo", description="Shows the product on a throwaway host.")
    parser.add_argument("--keep", action="store_true", help="leave the host up at the end, until Ctrl-C")
    real.add_options(parser.add_argument, real.ON_HOSTS)
    bootstrap.add_option(parser.add_argument)
    arguments = parser.parse_args()
    bootstrap.take_option(vars(arguments))
    real.take_arguments(parser, arguments)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # SIGINT: also where a shell has it ignored
        signal.signal(number, interrupted)
    started = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="cri-resmgr-demo-") as scratch, ThrowawayHost() as host:
            print(f"a throwaway host is up after {time.monotonic() - started:.2f} s", flush=True)
            install_kubelet(host, "kubeadm")
            tour = Walkthrough(host, Path(scratch))
            walk(tour)
            print(f"\nDone in {time.monotonic() - started:.0f} s.", flush=True)
            if arguments.keep:
                print(f"The host is up: nsenter -t {host.leader} -a bash -l; Ctrl-C here ends it.")
                print(f"  payload {tour.payload}, configs {tour.configs}, host root {host.root}", flush=True)
                signal.pause()
    except BrokenPromiseError as broken:
        print(f"\nBROKEN: {broken}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted; the host is gone", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    os.environ.setdefault("PYTHONDONTWRITEBYTECODE", "1")
    try:
        sys.exit(main())
    except NoHostError as missing:
        sys.exit(f"hack/demo: {missing}")
