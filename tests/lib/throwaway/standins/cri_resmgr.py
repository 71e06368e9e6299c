"""Stands in for cri-resmgr: its flags, refusals, timing, files and signals.

What it does with CPUs is in `repinning`; what passes its relay, and what does not, in
`relay`: all but a container in a pod that it does not know is answered by the runtime
behind it. While that is away, each call is an error, though HTTP/2 is served, and it is
tried again as seldom as gRPC does: longer and longer, while somebody asks.

A start takes longer the more containers there are, with a policy that places them.

Faults (faults.py; the file is FAULTS below):
    startup              "exit": F line and exit code 1 before it listens;
                         "hang": alive, never listens;
                         "listen-only": listens, never serves
    exitCode             of startup "exit", of exitAfterSeconds and of exitAtFile
    listenDelaySeconds   from the start until it listens
    serveDelaySeconds    from there until it answers, without containers
    secondsPerContainer  added to that for each container
    containers           so many, instead of those that the runtime has
    pidDelaySeconds      from there until the pid file is written
    backoffSeconds       until a runtime that was away is tried again, for the first time
    exitAfterSeconds     it dies that long after it served
    exitAtFile           it dies when it serves and this file is there
    ignoreTerm           true: SIGTERM does not end it
    forgetsRequests      true: what its cache says of requests does not count
    reload               "refuse": SIGHUP is refused until it is restarted;
                         "silent": no effect and no message

Beside what the real one says it logs the checksum of each file that it has
read, its own first: `read_line`.
"""

import os
import signal
import socket
import sys
import time
import zlib
from _thread import start_new_thread
from typing import Any, NoReturn

from tests.lib.throwaway.standins import cri_config, faults, repinning
from tests.lib.throwaway.standins.cri_cache import Cache, as_yaml
from tests.lib.throwaway.standins.cri_config import ConfigError
from tests.lib.throwaway.standins.http2 import answer_calls, field, fields, refuse_calls, strings
from tests.lib.throwaway.standins.relay import Pods, Relayed
from tests.lib.throwaway.standins.runtime_link import RuntimeLink
from tests.lib.throwaway.standins.words import fatal, log

FAULTS = "/etc/standin-cri-resmgr.json"

#: Flags that take a value, with their defaults.
VALUES = {
    "agent-socket": "/var/run/cri-resmgr/cri-resmgr-agent.sock",
    "config-socket": "/var/run/cri-resmgr/cri-resmgr-config.sock",
    "fallback-config": "",
    "force-config": "",
    "force-config-signal": "SIGHUP",
    "image-socket": "",
    "metrics-interval": "0s",
    "pid-file": "/var/run/cri-resmgr.pid",
    "relay-dir": "/var/lib/cri-resmgr",
    "relay-socket": "/var/run/cri-resmgr/cri-resmgr.sock",
    "runtime-socket": "/var/run/containerd/containerd.sock",
}

#: Whatever --pid-file says: nobody reads that.
PID_FILE = "/var/run/cri-resmgr.pid"

#: The policies that place no containers, or just a few.
QUICK = ("none", "static", "static-pools")

SWITCHES = (
    "disable-policy-switch",
    "disable-ui",
    "list-policies",
    "print-config",
    "reset-config",
    "reset-policy",
)


class Options:
    """The command line, as Go's flag package reads it."""

    def __init__(self, argv: list[str]) -> None:
        self.values = dict(VALUES)
        self.switches = dict.fromkeys(SWITCHES, False)
        self.rest: list[str] = []
        words = iter(argv)
        for word in words:
            if word == "--" or not word.startswith("-") or word == "-":
                self.rest = [*([] if word == "--" else [word]), *words]
                break
            name, equals, value = word.lstrip("-").partition("=")
            if name in self.switches:
                self.switches[name] = value in ("", "1", "t", "T", "true", "TRUE", "True")
            elif name in self.values:
                given = value if equals else next(words, None)
                if given is None:
                    self.usage(f"flag needs an argument: -{name}")
                self.values[name] = given
            else:
                self.usage(f"flag provided but not defined: -{name}")

    def usage(self, text: str) -> NoReturn:
        os.write(2, f"{text}\nUsage of {sys.argv[0]}:\n".encode())
        os._exit(2)

    def path(self, name: str) -> str:
        return self.values[name].removeprefix("unix://")


def answers(path: str) -> bool:
    """Whether somebody listens on a socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except OSError:
            return False
        return True


def reset(options: Options) -> NoReturn:
    """--reset-policy and --reset-config, whose check is fooled by a missing socket file."""
    relay = options.path("relay-socket")
    if not os.path.exists(relay) or answers(relay):
        fatal(f"refusing to reset, looks like an instance is active on {relay}")
    cache = Cache(options.values["relay-dir"])
    if options.switches["reset-policy"]:
        cache.data.update(PolicyName="", PolicyJSON={})
    if options.switches["reset-config"]:
        cache.data["Cfg"] = None
    cache.save()
    log("I", "cached state has been reset")
    os._exit(0)


def read_line(path: str, content: bytes) -> str:
    """What it logs of a file that it has read, for tests that have to know which."""
    return f"has read {path} {zlib.crc32(content):08x}"


def read(path: str) -> str:
    with open(path, "rb") as file:
        content = file.read()
    log("D", read_line(path, content))
    return content.decode()


def load_file(path: str) -> dict[str, Any]:
    try:
        return cri_config.parse(read(path))
    except OSError as error:
        raise ConfigError(f"failed to read {path}: {error.strerror}") from None
    except ConfigError as error:
        raise ConfigError(f"failed to load configuration from {path}: {error}") from None


def load_config(options: Options, cache: Cache) -> dict[str, Any]:
    """Force file, else cached agent configuration, else fallback file, else nothing."""
    force, fallback = options.values["force-config"], options.values["fallback-config"]
    cached = cache.agent_config()
    try:
        if force:
            log("I", f"using forced configuration {force}")
            config = load_file(force)
        elif cached is not None:
            log("I", "using cached configuration")
            config = cri_config.parse(cached)
        elif fallback:
            log("I", f"using fallback configuration {fallback}")
            config = load_file(fallback)
        else:
            log("W", "no initial configuration, running with built-in defaults")
            config = {}
        cri_config.check_creation(config)
    except ConfigError as error:
        fatal(str(error))
    if options.switches["disable-policy-switch"]:
        previous = cache.data["PolicyName"]
        if previous and previous != cri_config.active_policy(config):
            fatal(f"can't switch policy from {previous}: policy switching is disabled")
    return config


class Resmgr:
    """The process after its command line has been accepted."""

    def __init__(self, options: Options, started: float) -> None:
        self.options = options
        self.started = started
        self.faults: dict[str, Any] = faults.load(FAULTS)
        self.cache = Cache(options.values["relay-dir"])
        self.runtime = options.path("runtime-socket")
        self.pods = Pods(self.cache)
        self.link = RuntimeLink(self.runtime, float(self.faults.get("backoffSeconds", 1.0)))
        self.awaited: set[signal.Signals] = set()

    def run(self) -> NoReturn:
        version = self.faults.get("version", "unknown")
        if self.faults.get("ignoreTerm"):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        log("I", f"cri-resmgr (version {version}, build stand-in) starting...")
        with open(sys.argv[0], "rb") as binary:
            log("D", read_line(sys.argv[0], binary.read()))
        config = load_config(self.options, self.cache)
        self.config, self.stuck = config, False
        self.policy = cri_config.active_policy(config)
        if self.options.values["force-config"]:
            # Taken when there is time: a handler would not run when another thread got the signal.
            self.awaited.add(signal.Signals[self.options.values["force-config-signal"]])
            signal.pthread_sigmask(signal.SIG_BLOCK, self.awaited)
        if self.faults.get("startup") == "exit":
            fatal("failed to start: this build is broken", self.exit_code())
        self.wait_for_runtime()
        try:
            cri_config.check_start(config, self.options.path("agent-socket") not in ("", "disabled"))
        except ConfigError as error:
            fatal(str(error))
        if self.faults.get("startup") == "hang":
            log("I", "synchronizing cache with runtime...")
            self.sleep_for_ever()
        self.sleep_until("listenDelaySeconds", self.started, 0.04)
        relay = self.listen(self.options.path("relay-socket"))
        listening = time.monotonic()
        if self.faults.get("startup") == "listen-only":
            log("I", "synchronizing cache with runtime...")
            self.sleep_for_ever()
        self.activate(config)
        self.place(listening)
        self.sleep_until("serveDelaySeconds", listening + self.placing_seconds(), 0.05)
        start_new_thread(self.serve, (relay,))
        serving = time.monotonic()
        log("I", f"serving on {self.options.values['relay-socket']}, up and running")
        self.sleep_until("pidDelaySeconds", serving, 0.005)
        with open(PID_FILE, "w", encoding="utf-8") as file:
            file.write(f"{os.getpid()}\n")
        if not self.options.values["force-config"]:
            start_new_thread(self.serve_agent, (self.listen(self.options.path("config-socket")),))
        if "exitAfterSeconds" in self.faults:
            self.sleep_until("exitAfterSeconds", serving, 0.0)
            fatal("unexpected state", self.exit_code())
        if "exitAtFile" in self.faults:
            while not os.path.exists(self.faults["exitAtFile"]):
                time.sleep(0.05)
            fatal("unexpected state", self.exit_code())
        self.sleep_for_ever()

    def activate(self, config: dict[str, Any]) -> None:
        """The policy places every container."""
        log("I", f"activating {self.policy} policy...")
        switched = self.cache.data["PolicyName"] not in ("", self.policy)
        self.cache.data["PolicyName"] = self.policy
        known = self.cache.data.setdefault("Containers", {})
        if self.faults.get("forgetsRequests"):
            for entry in known.values():
                entry["Resources"] = {}
        self.pods.sync(self.runtime)
        repinning.repin(known, config, self.policy, self.runtime, switched=switched)
        self.cache.save(starts=True)

    def exit_code(self) -> int:
        return int(self.faults.get("exitCode", 1))

    def placing_seconds(self) -> float:
        """What the containers add to a start."""
        each = 0.003 if self.policy in QUICK else 0.018
        count = self.faults.get("containers", self.link.containers())
        return float(self.faults.get("secondsPerContainer", each)) * int(count)

    def place(self, began: float) -> None:
        """Takes its time, and says now and then what it is at."""
        end = began + self.placing_seconds()
        while end - time.monotonic() > 1.0:
            time.sleep(1.0)
            log("I", "placing containers...")

    def sleep_until(self, fault: str, since: float, default: float) -> None:
        """Sleeps the rest of a delay, signals in between notwithstanding."""
        end = since + float(self.faults.get(fault, default))
        while (left := end - time.monotonic()) > 0:
            time.sleep(left)

    def sleep_for_ever(self) -> NoReturn:
        while True:
            if self.awaited:
                signal.sigwait(self.awaited)
                self.reload()
            else:
                signal.pause()

    def wait_for_runtime(self) -> None:
        """Waits for the runtime's socket file; a file that nobody serves is fatal."""
        if not os.path.exists(self.runtime):
            log("I", "waiting for image services to become available...")
            while not os.path.exists(self.runtime):
                time.sleep(0.25)
            time.sleep(0.25)
        if not answers(self.runtime):
            fatal(f"failed to connect to runtime: dial unix {self.runtime}: connection refused")

    def listen(self, path: str) -> socket.socket:
        os.makedirs(os.path.dirname(path), mode=0o711, exist_ok=True)
        if os.path.exists(path):
            if answers(path):
                fatal(f"can't create socket {path}: address already in use")
            os.unlink(path)
        server = socket.socket(socket.AF_UNIX)
        server.bind(path)
        server.listen(512)
        # Never closed: it lives as long as we do, in a list that keeps it.
        KEPT.append(server)
        return server

    def serve(self, relay: socket.socket) -> None:
        while True:
            client, _ = relay.accept()
            start_new_thread(self.relay, (client,))

    def serve_agent(self, server: socket.socket) -> None:
        while True:
            client, _ = server.accept()
            start_new_thread(answer_calls, (client, self.take_config))

    def take_config(self, message: bytes) -> bytes:
        """SetConfig, of the agent: what is accepted is kept, and its policy is for the next start. What is
        not is reported in the answer. Its other call, SetAdjustment, is answered and has no effect."""
        try:
            entries = [strings(value) for number, value in fields(message) if number == 2]
        except (ValueError, IndexError):
            return b""
        data = {entry[1]: entry.get(2, "") for entry in entries}
        log("I", "applying new configuration from agent...")
        try:
            cri_config.parse(as_yaml(data))
        except ConfigError as error:
            log("E", f"configuration rejected: {error}")
            return field(1, f"failed to apply configuration: configuration rejected: {error}")
        self.cache.data["Cfg"] = {"NodeName": strings(message).get(1, ""), "Data": data}
        self.cache.save()
        log("I", "successfully switched to new configuration")
        return b""

    def relay(self, client: socket.socket) -> None:
        runtime = self.link.connect()
        if runtime is None:
            refuse_calls(client, self.link.is_back)
            return
        Relayed(client, runtime, self.pods).run()

    def reload(self) -> None:
        """SIGHUP: re-reads the forced configuration, all but the active policy. What is "switched" may be
        what a start refuses, and what is refused may be what a start accepts."""
        path, how = self.options.values["force-config"], faults.load(FAULTS).get("reload", "")
        log("I", f"reloading forced configuration {path}...")
        if how == "silent":
            return
        try:
            config = cri_config.parse(read(path))
            if self.policy in ("topology-aware", "memtier"):
                cri_config.check_fits(config)
            if how == "refuse" or self.stuck or self.is_bound_otherwise(config):
                self.stuck = True  # until it is restarted
                raise ConfigError("failed to reallocate resources for containers")
        except (OSError, ConfigError) as error:
            if "cannot reserve" in str(error):
                fatal(str(error))
            log("E", f"failed to reload forced configuration {path}: {error}")
            return
        self.config = config
        log("I", "successfully switched to new configuration")

    def is_bound_otherwise(self, config: dict[str, Any]) -> bool:
        """Whether containers run on resources that the new configuration cuts otherwise."""
        old, new = self.config.get("policy", {}), config.get("policy", {})
        cut = ("ReservedResources", "static-pools")
        changed = any(old.get(key) != new.get(key) for key in cut)
        return changed and self.policy != "none" and bool(self.cache.data.get("Containers"))


KEPT: list[socket.socket] = []


def main() -> NoReturn:
    started = time.monotonic()
    # Found by name, as the real one is; the interpreter is nobody's business.
    with open("/proc/self/comm", "w", encoding="ascii") as comm:
        comm.write("cri-resmgr")
    options = Options(sys.argv[1:])
    if options.rest:
        fatal(f"unknown command line argument: {options.rest[0]}")
    if options.values["force-config"] and options.values["fallback-config"]:
        fatal("both fallback and forced configuration are given")
    if options.switches["list-policies"]:
        os.write(1, "".join(f"{name}\n" for name in cri_config.POLICIES).encode())
        os._exit(0)
    if options.switches["print-config"]:
        os.write(1, b"# built-in configuration\npolicy:\n  Active: none\n")
        os._exit(0)
    if options.switches["reset-policy"] or options.switches["reset-config"]:
        reset(options)
    Resmgr(options, started).run()
