"""The figures behind the promises: how long, how often, how large. Run by hack/bench.

Every figure is taken on one throwaway host in one run, next to what it is
compared with: an interpreter that imports the same libraries, a bare restart.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from installer.host.ports import Host
from installer.host.real import build_host
from installer.inputs.load import Request
from installer.inputs.settings import Settings
from installer.model import paths
from installer.model.host import Health
from installer.model.names import Mode
from installer.node.reconcile import inspect
from tests.lib.busy import busy
from tests.lib.throwaway.host import NoHostError, ThrowawayHost
from tests.lib.throwaway.kubelet import install_kubelet, wait_healthy
from tests.lib.throwaway.payload import build_payload

PROXY, KUBELET = paths.PROXY_UNIT, "kubelet.service"
RELAY, BASE = "/run/cri-resmgr/cri-resmgr.sock", "/run/containerd/containerd.sock"
FALLBACK = "policy:\n  Active: none\n# {}\n"
# As installed: with compiled bytecode, which some build environments switch off.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
LIBRARIES = "pydbus, yaml, pydantic, jinja2, psutil"
_POLL = 0.002  # seconds between two looks at an endpoint


class Bench:
    """One host, one payload of 80 MB, and the table that grows."""

    def __init__(self, host: ThrowawayHost, scratch: Path, runs: int) -> None:
        self.host, self.runs = host, runs
        self.payload = build_payload(scratch / "payload", ballast_mib=80)
        self.configs = scratch / "configs"
        self.configs.mkdir()
        self.settings = scratch / "settings.yaml"
        self.settings.write_text("kubelet:\n  settleSeconds: 1\n")
        self.door: Host = build_host(host.root)

    def argv(self, *argv: str) -> tuple[str, ...]:
        return (
            str(Path(sys.executable).parent / "cri-resmgr-installer"),
            f"--host-root={self.host.root}",
            f"--payload={self.payload}",
            f"--configs={self.configs}",
            f"--config={self.settings}",
            *argv,
        )

    def installer(self, *argv: str) -> float:
        """Runs the command; returns the seconds that the whole process took."""
        started = time.perf_counter()
        done = subprocess.run(
            self.argv(*argv),
            capture_output=True,
            text=True,
            check=False,
            env=ENVIRONMENT,
        )
        if done.returncode != 0:
            raise SystemExit(f"{argv}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        return time.perf_counter() - started

    def invocations(self) -> tuple[str, str]:
        return self.host.show(KUBELET, "InvocationID"), self.host.show(PROXY, "InvocationID")

    def median(self, measure: Callable[[], float]) -> float:
        return statistics.median(measure() for _run in range(self.runs))


@contextmanager
def gaps(answers: Callable[[], bool]) -> Iterator[list[float]]:
    """Watches an endpoint; on exit the list has the longest time between two answers, in seconds."""
    found: list[float] = []
    stop = threading.Event()

    def watch() -> None:
        last, longest = time.perf_counter(), 0.0
        while not stop.is_set():
            if answers():
                now = time.perf_counter()
                longest, last = max(longest, now - last), now
            time.sleep(_POLL)
        found.append(longest)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield found
    finally:
        time.sleep(0.5)
        stop.set()
        watcher.join()


def row(what: str, figure: str, compared: str = "") -> None:
    print(f"{what:<58} {figure:>14}   {compared}", flush=True)


def whole_process(bench: Bench) -> None:
    def python(code: str) -> float:
        started = time.perf_counter()
        subprocess.run((sys.executable, "-c", code), check=True, env=ENVIRONMENT)
        return time.perf_counter() - started

    second = bench.median(lambda: bench.installer("install"))
    floor = bench.median(lambda: python(f"import {LIBRARIES}"))
    bare = bench.median(lambda: python("pass"))
    row("second install, whole process", f"{second:.3f} s", f"{second / floor:.2f} x the import floor")
    row(f"  import floor ({LIBRARIES})", f"{floor:.3f} s", f"bare interpreter {bare:.3f} s")
    imports_of_a_run(bench)


def imports_of_a_run(bench: Bench) -> None:
    """How a second install's imports divide into our modules and all others. The interpreter's own timing
    costs time itself: read the shares."""
    done = subprocess.run(
        (sys.executable, "-X", "importtime", *bench.argv("install")),
        capture_output=True,
        text=True,
        check=True,
        env=ENVIRONMENT,
    )
    lines = [line.removeprefix("import time:").split("|") for line in done.stderr.splitlines()]
    found = [
        (parts[2].strip(), int(parts[0])) for parts in lines if len(parts) == 3 and parts[0].strip().isdigit()
    ]
    ours = [microseconds for name, microseconds in found if name.split(".")[0] == "installer"]
    whole = sum(microseconds for _name, microseconds in found)
    row("  its imports, timed one by one", f"{whole / 1e6:.3f} s", f"{len(found)} modules")
    row("  of them ours", f"{sum(ours) / 1e6:.3f} s", f"{len(ours)} modules")


def pyinfra_no_op(bench: Bench, scratch: Path) -> None:
    """The same files in place, looked at by pyinfra (https://pyinfra.com) if there is one on the PATH."""
    pyinfra = shutil.which("pyinfra")
    if pyinfra is None:
        row("  pyinfra, the same files in place", "-", "no pyinfra on the PATH")
        return
    kept = scratch / "pyinfra"
    lines = ["from pyinfra.operations import files"]
    for path in sorted(inspect(Request(Mode.INSTALL, Settings(), bench.payload), bench.door).snapshot.files):
        source = Path(f"{bench.host.root}{path}")
        if source.is_file():
            copy = kept / path[1:]
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, copy)
            mode = f"{source.stat().st_mode & 0o7777:o}"
            lines.append(
                f"files.put(src={str(copy)!r}, dest={path!r}, user='root', group='root', mode={mode!r})"
            )
    deploy = scratch / "deploy.py"
    deploy.write_text("\n".join(lines) + "\n")
    argv = (pyinfra, "-y", f"@chroot/{bench.host.root}", str(deploy))

    def once() -> float:
        started = time.perf_counter()
        done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=scratch, env=ENVIRONMENT)
        if done.returncode != 0:
            raise SystemExit(f"{argv}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        return time.perf_counter() - started

    once()
    row("  pyinfra, the same files in place", f"{bench.median(once):.3f} s", f"{len(lines) - 1} files")


def one_pass(bench: Bench) -> None:
    request = Request(Mode.INSTALL, Settings(), bench.payload, bench.configs)

    def once() -> float:
        started = time.perf_counter()
        if inspect(request, bench.door).plan.steps:
            raise SystemExit("the host is not converged")
        return time.perf_counter() - started

    once()
    row("snapshot + assess, converged, 80 MB binary", f"{bench.median(once) * 1000:.1f} ms")


def kubelet_gap(bench: Bench) -> None:
    """Install and removal each restart kubelet once; a bare restart is measured in between."""
    url = Settings().kubelet.healthz_url
    installs, bares = [], []

    def healthy() -> bool:
        pid = bench.door.systemd.unit(KUBELET).main_pid
        return bench.door.healthz.ask(url, pid) is Health.OK

    for _run in range(bench.runs):
        with gaps(healthy) as gap:
            bench.host.systemctl("restart", KUBELET)
            wait_healthy(bench.host)
        bares += gap
        with gaps(healthy) as gap:
            bench.installer("install")
        installs += gap
        bench.installer("remove")
    install, bare = statistics.median(installs), statistics.median(bares)
    row(
        "kubelet's gap during install (stop to healthz ok)",
        f"{install:.3f} s",
        f"{install / bare:.2f} x bare",
    )
    row("  bare systemctl restart kubelet", f"{bare:.3f} s", f"difference {(install - bare) * 1000:+.0f} ms")


def relay_gap(bench: Bench) -> None:
    changes, bares = [], []
    for run in range(bench.runs):
        with gaps(lambda: bench.door.cri.answers(paths.RELAY_ENDPOINT)) as gap:
            bench.host.systemctl("restart", PROXY)
        bares += gap
        (bench.configs / "fallback.cfg").write_text(FALLBACK.format(run))
        with gaps(lambda: bench.door.cri.answers(paths.RELAY_ENDPOINT)) as gap:
            bench.installer("install")
        changes += gap
    change, bare = statistics.median(changes), statistics.median(bares)
    row("relay away while a new fallback.cfg is installed", f"{change:.3f} s", f"{change / bare:.2f} x bare")
    row(
        "  bare systemctl restart of the proxy",
        f"{bare:.3f} s",
        f"difference {(change - bare) * 1000:+.0f} ms",
    )


def moves(bench: Bench) -> None:
    """How long kubelet is without a runtime: by the proxy's own unit if that is killed, and by a run."""
    away = "from kill -9 of the proxy, not restarted, to kubelet's runtime"
    onto, killed = [], []
    for _run in range(bench.runs):
        killed.append(left_after_kill(bench))
        with gaps(lambda: bool(uses(bench))) as gap:
            bench.installer("install")
        onto += gap
    row("kubelet without a runtime while it moves onto the relay", f"{statistics.median(onto):.3f} s")
    row(away, f"{statistics.median(killed):.3f} s", f"worst {max(killed):.3f} s, no daemon")


def uses(bench: Bench) -> set[str]:
    """Where kubelet's connections lead, of its two endpoints; its cadvisor has one to the runtime, too."""
    found = bench.door.connections.peers(bench.door.systemd.unit(KUBELET).main_pid)
    peers = list(map(paths.normalise_endpoint, found))
    return {endpoint for endpoint in (RELAY, BASE) if peers.count(endpoint) > int(endpoint == BASE)}


def left_after_kill(bench: Bench) -> float:
    """Nobody starts it again."""
    drop_in = bench.host.root / f"run/systemd/system/{PROXY}.d/no-restart.conf"
    drop_in.parent.mkdir(parents=True, exist_ok=True)
    drop_in.write_text("[Service]\nRestart=no\n")
    bench.host.systemctl("daemon-reload")
    bench.host.systemctl("kill", "--signal=KILL", PROXY)
    took = until(lambda: uses(bench) == {BASE})
    drop_in.unlink()
    bench.host.systemctl("daemon-reload")
    return took


def bring_back(bench: Bench) -> None:
    """By hand: the daemon waits longer each time. It may be at work meanwhile."""
    while uses(bench) != {RELAY}:
        subprocess.run(bench.argv("install"), capture_output=True, check=False, env=ENVIRONMENT)
        time.sleep(_POLL)


def frozen(bench: Bench) -> None:
    """The daemon runs."""
    took = []
    for _run in range(bench.runs):
        bring_back(bench)
        time.sleep(2)
        bench.host.systemctl("kill", "--signal=STOP", PROXY)
        took.append(until(lambda: uses(bench) == {BASE}))
    row(
        "from SIGSTOP of the proxy to kubelet's runtime, with daemon",
        f"{statistics.median(took):.3f} s",
        f"worst {max(took):.3f} s",
    )


def restarts(bench: Bench) -> None:
    def count(what: str, act: Callable[[], object], expected: tuple[int, int]) -> None:
        before = bench.invocations()
        act()
        after = bench.invocations()
        kubelet, proxy = (int(old != new) for old, new in zip(before, after, strict=True))
        mark = "" if (kubelet, proxy) == expected else f"EXPECTED {expected[0]}/{expected[1]}"
        row(f"restarts of kubelet/proxy: {what}", f"{kubelet}/{proxy}", mark)

    def new_fallback() -> None:
        (bench.configs / "fallback.cfg").write_text(FALLBACK.format("counted"))
        bench.installer("install")

    def new_binary() -> None:
        build_payload(bench.payload, version="v0.9.3", ballast_mib=80)
        bench.installer("install")

    count("first install", lambda: bench.installer("install"), (1, 1))
    count("second install", lambda: bench.installer("install"), (0, 0))
    count("fallback.cfg changed", new_fallback, (0, 1))
    count("new binary", new_binary, (0, 1))


def guard_cost(bench: Bench) -> None:
    """Both calls of a kubelet start, with the relay ready, as systemd makes them; the shell alone beside."""
    prefix = ("nsenter", f"--target={bench.host.leader}", "--all", "--")
    script = (
        "export CRI_RESMGR_GUARD_VARIABLE=KUBELET_EXTRA_ARGS KUBELET_EXTRA_ARGS=--v=2 "
        "CRI_RESMGR_GUARD_FLAG=--container-runtime-endpoint=x CRI_RESMGR_GUARD_SECONDS=15; "
        "read -r start _ </proc/uptime; i=0; "
        f"while [ $i -lt 50 ]; do {paths.GUARD} reset; {paths.GUARD} compose >/dev/null; i=$((i+1)); done; "
        "read -r end _ </proc/uptime; echo $start $end"
    )
    done = subprocess.run((*prefix, "sh", "-c", script), capture_output=True, text=True, check=True)
    start, end = (float(word) for word in done.stdout.split())
    row("the guard, per start of kubelet (reset and compose)", f"{(end - start) / 50 * 1000:.1f} ms")


def daemon(bench: Bench, scratch: Path) -> None:
    """`run` on the converged host: what it weighs at rest, how often it wakes, how fast it repairs."""
    ready = scratch / "ready"
    environment = {**ENVIRONMENT, "CRI_RESMGR_INSTALLER_READY_FILE": str(ready)}
    process = subprocess.Popen(bench.argv("run"), stdout=subprocess.DEVNULL, env=environment)
    try:
        until(ready.exists)
        time.sleep(2)
        killed = []
        for _run in range(bench.runs):
            bring_back(bench)
            time.sleep(11)  # else it is the second crash
            killed.append(left_after_kill(bench))
        row(
            "the same with daemon",
            f"{statistics.median(killed):.3f} s",
            f"worst {max(killed):.3f} s",
        )
        frozen(bench)
        bring_back(bench)  # while kubelet waits, the daemon repairs nothing
        guard = bench.host.root / paths.GUARD[1:]
        repairs = [repair(guard) for _run in range(bench.runs)]
        row(
            "a deleted file is back after",
            f"{statistics.median(repairs):.3f} s",
            f"worst {max(repairs):.3f} s",
        )
        with busy(30):
            repairs = [repair(guard) for _run in range(bench.runs)]
        row(
            "  the same at a load of 30",
            f"{statistics.median(repairs):.3f} s",
            f"worst {max(repairs):.3f} s",
        )
        rest = 30.0
        before = switches(process.pid)
        time.sleep(rest)
        woken = (switches(process.pid) - before) / rest
        row("daemon at rest: context switches of all its threads", f"{woken:.1f} /s", "a heartbeat each 5 s")
        row(
            "daemon at rest: RSS",
            f"{memory(process.pid, 'Rss'):.1f} MB",
            f"PSS {memory(process.pid, 'Pss'):.1f} MB",
        )
    finally:
        process.terminate()
        process.wait()


def until(true: Callable[[], bool], seconds: float = 60.0) -> float:
    """Waits until it is true; returns how long that took."""
    started = time.perf_counter()
    while not true():
        if time.perf_counter() - started > seconds:
            raise SystemExit(f"not within {seconds} s")
        time.sleep(_POLL)
    return time.perf_counter() - started


def repair(file: Path) -> float:
    file.unlink()
    took = until(file.exists)
    time.sleep(2)  # its second look
    return took


def switches(pid: int) -> int:
    """Voluntary context switches: each is something waited for that came."""
    statuses = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/status")]
    return sum(int(text.split("\nvoluntary_ctxt_switches:")[1].split()[0]) for text in statuses)


def memory(pid: int, kind: str) -> float:
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(rollup.split(f"{kind}:")[1].split()[0]) / 1024


def main() -> int:
    parser = argparse.ArgumentParser(prog="hack/bench", description=__doc__)
    parser.add_argument("runs", metavar="RUNS", type=int, nargs="?", default=5, help="5")
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory(prefix="cri-resmgr-bench-") as scratch, ThrowawayHost() as host:
        install_kubelet(host, "kubeadm")
        bench = Bench(host, Path(scratch), runs)
        print(f"medians of {runs}", flush=True)
        kubelet_gap(bench)
        restarts(bench)
        relay_gap(bench)
        moves(bench)
        whole_process(bench)
        pyinfra_no_op(bench, Path(scratch))
        one_pass(bench)
        guard_cost(bench)
        daemon(bench, Path(scratch))
        before = bench.invocations()[0]
        bench.installer("remove")
        row("restarts of kubelet: removal", str(int(before != bench.invocations()[0])))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except NoHostError as missing:
        sys.exit(f"hack/bench: {missing}")
