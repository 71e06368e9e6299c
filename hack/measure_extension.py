"""How many Shoots one controller carries: time until all are written and healthy, requests at rest, memory.
Run by `hack/bench extension`. The stand-ins for the API servers share this machine, and take most of it."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.lib.throwaway.gardener import Landscape

_REST_SECONDS = 60.0
_CASES = Path(__file__).parents[1] / "tests" / "cases" / "extension"
# About as much as a CloudProfile has in each Cluster.
_PROFILE = [
    {"name": f"machine-{number}", "cpu": "4", "gpu": "0", "memory": "16Gi", "usable": True, "arch": "amd64"}
    for number in range(400)
]


def main() -> int:
    parser = argparse.ArgumentParser(prog="hack/bench extension", description=__doc__)
    parser.add_argument("count", metavar="SHOOTS", type=int, nargs="?", default=500, help="500")
    count = parser.parse_args().count
    with tempfile.TemporaryDirectory(prefix="cri-resmgr-bench-") as scratch, Landscape(n1="ready") as world:
        shoots = [f"shoot--bench--s{number}" for number in range(count)]
        for shoot in shoots:
            world.add_shoot(shoot, cloudProfile=_PROFILE)
            world.enable(shoot)
        process, begun = _start(world, Path(scratch)), time.monotonic()
        try:
            _measure(world, shoots, process, begun)
        finally:
            process.terminate()
            process.wait(90)
    return 0


def _start(world: Landscape, scratch: Path) -> subprocess.Popen[bytes]:
    kubeconfig = scratch / "kubeconfig"
    kubeconfig.write_text(world.seed.kubeconfig())
    program = Path(sys.executable).parent / "cri-resmgr-installer"
    files = f"--values={_CASES / 'values.yaml'}", f"--provider-config={_CASES / 'deployment.yaml'}"
    place = {"KUBECONFIG": str(kubeconfig), "POD_NAME": "bench", "POD_NAMESPACE": "extension"}
    return subprocess.Popen(
        [program, "extension", *files], env={**os.environ, **place}, stdout=subprocess.DEVNULL
    )


def _measure(world: Landscape, shoots: list[str], process: subprocess.Popen[bytes], begun: float) -> None:
    def all_are(what: str, health: str) -> bool:
        assert process.poll() is None, f"the controller has ended with {process.returncode}"
        return all(world.operation(each) == what and health in ("", world.health(each)[0]) for each in shoots)

    world.seed.wait(lambda: all_are("Create Succeeded", ""), 900, "all are written")
    row(f"{len(shoots)} Shoots: all written", f"{time.monotonic() - begun:.1f} s")
    world.seed.wait(lambda: all_are("Create Succeeded", "True"), 900, "all are healthy")
    row("all said to be healthy", f"{time.monotonic() - begun:.1f} s")
    row(
        "requests to the seed for each Shoot until then",
        f"{_of_shoots(world.seed.requests) / len(shoots):.1f}",
    )
    before, asked = world.seed.requests.copy(), world.shoot.requests.copy()
    time.sleep(_REST_SECONDS)
    minutes = len(shoots) * _REST_SECONDS / 60
    row(
        "at rest: requests for a Shoot and minute, seed",
        f"{_of_shoots(world.seed.requests - before) / minutes:.2f}",
    )
    row(
        "at rest: requests for a Shoot and minute, Shoot",
        f"{(world.shoot.requests - asked).total() / minutes:.2f}",
    )
    row("at rest: requests a minute in all, with Leases", str((world.seed.requests - before).total()))
    status = Path(f"/proc/{process.pid}/status").read_text()
    for name, what in (("VmRSS", "resident memory"), ("VmHWM", "at most")):
        row(what, f"{int(status.partition(f'{name}:')[2].split()[0]) // 1024} MB")


def _of_shoots(requests: Counter[tuple[str, str]]) -> int:
    return sum(number for (_, plural), number in requests.items() if plural != "leases")


def row(what: str, figure: str) -> None:
    print(f"{what:<55} {figure:>12}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
