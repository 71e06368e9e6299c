"""What the daemon serves over HTTP: /healthz, /readyz and /metrics, from its state. Pure.

It writes the text format of Prometheus itself, because the client library would cost 7 MB
(https://prometheus.io/docs/instrumenting/exposition_formats/).
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from installer.daemon.httpd import Page
from installer.model.daemon import DaemonState, Phase
from installer.model.jsontext import to_camel

_OK = "200 OK"
_PREFIX = "cri_resmgr_installer_"
_METRICS = "text/plain; version=0.0.4"
_COUNTERS = {
    "all_restarts": ("kubelet_restarts_total", "Restarts of kubelet by the installer since it started."),
    "passes": ("passes_total", "Comparisons of the node with what it should be, since the start."),
    "repairs": (
        "repairs_total",
        "Passes after the first one that had something to change: drift, new inputs.",
    ),
    "rollbacks": ("rollbacks_total", "Changes that failed and were undone, since the start."),
    "rescues": ("rescues_total", "Times that kubelet was moved off a dead relay, since the start."),
    "failures": ("failed_passes_total", "Failures and refusals, since the start."),
}


def render_page(
    path: str, state: DaemonState, version: str, succeeded: float = 0.0, answered_in: float = 0.0
) -> Page | None:
    """Return the page at `path`, None if there is none. /healthz answers 200 as long as the program runs,
    /readyz 200 only if the host is converged and healthy, else 503; both have the state as JSON. `succeeded`
    is when the host was last as it should be, in seconds of the epoch, `answered_in` the seconds that the
    relay took for its last answer; both are 0 before the first one."""
    if path == "/metrics":
        return Page(_OK, _METRICS, "".join(_metrics(state, version, succeeded, answered_in)))
    if path in ("/healthz", "/readyz"):
        status = _OK if path == "/healthz" or state.ready else "503 Service Unavailable"
        told = to_camel(state)
        return Page(status, "application/json", json.dumps(told | told.pop("installed")) + "\n")
    return None


def _metrics(state: DaemonState, version: str, succeeded: float, answered_in: float) -> Iterator[str]:
    labels = {
        "version": version,
        "mode": state.mode.value,
        "generation": state.installed.generation,
        "payload_version": state.installed.payload_version,
        "policy": state.installed.policy,
        "policy_source": state.installed.policy_source,
    }
    pairs = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
    yield from _metric("info", "gauge", "What runs here, as labels; always 1.", f"{{{pairs}}} 1")
    phases = (f'{{phase="{phase.value}"}} {int(phase is state.phase)}' for phase in Phase)
    yield from _metric("phase", "gauge", "1 for the current phase of the installer.", *phases)
    converged = state.phase in (Phase.CONVERGED, Phase.REMOVED)
    for name, value, what in (
        ("ready", int(state.ready), "1 if the host is converged and healthy, else 0."),
        ("converged", int(converged), "1 if nothing on the host differs from the desired state, else 0."),
        ("hold", int(bool(state.hold)), "1 if kubelet is held on its base endpoint, else 0."),
        ("kubelet_restarts_last_hour", state.restarts, "Restarts that count for kubelet.restartsPerHour."),
        (
            "last_exit_code",
            state.last_exit,
            "Exit code of the last pass, or of one that began now; -1: not known.",
        ),
        ("last_pass_seconds", state.last_seconds, "How long the last pass took."),
        (
            "last_success_timestamp_seconds",
            succeeded,
            "When the node was last as it should be; else 0.",
        ),
        (
            "relay_answer_seconds",
            round(answered_in, 6),
            "How long the relay took to answer the last CRI call.",
        ),
    ):
        yield from _metric(name, "gauge", what, f" {value}")
    for field, (name, what) in _COUNTERS.items():
        yield from _metric(name, "counter", what, f" {getattr(state, field)}")


def _metric(name: str, kind: str, what: str, *samples: str) -> Iterator[str]:
    yield f"# HELP {_PREFIX}{name} {what}\n# TYPE {_PREFIX}{name} {kind}\n"
    yield from (f"{_PREFIX}{name}{sample}\n" for sample in samples)


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
