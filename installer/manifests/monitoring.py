"""What a cluster with the Prometheus operator and Grafana gets from `--monitoring`: a PodMonitor, alerts, and
a dashboard. Pure.

Each alert names its part of docs/runbooks.md, where it stands what to do then.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_M = "cri_resmgr_installer_"
_DOCS = "docs/runbooks.md#"


@dataclass(frozen=True, slots=True)
class Alert:
    """`minutes`: how long the expression has to be true. `runbook` is a heading of docs/runbooks.md."""

    name: str
    expression: str
    minutes: int
    severity: str
    summary: str
    runbook: str


_UNLESS_MEANT = f'unless on (instance) {_M}phase{{phase=~"paused|waiting"}} == 1'
"""Nodes that a person has paused, or that wait for their turn in a rollout, are as they should be."""
_WAITING = f'{_M}phase{{phase="waiting"}}'
_WAIT_FOR_LONG = f"count(min_over_time({_WAITING}[2h]) == 1 and {_WAITING} offset 2h == 1) > 0"


def _rose(counter: str) -> str:
    """Whether it has within the last hour. To `increase`, the first value of a pod that has just begun is
    where it counts from, and the first pass of a pod may be what is looked for."""
    began = f"{_M}{counter} > 0 unless last_over_time({_M}{counter}[1h] offset 1h)"
    return f"increase({_M}{counter}[1h]) > 0 or ({began})"


_ALERTS = (
    Alert(
        "CriResmgrManyNodesNotReady",
        f"count({_M}ready == 0 {_UNLESS_MEANT}) > 1"
        f" and count({_M}ready == 0 {_UNLESS_MEANT}) / count({_M}ready) > 0.05",
        5,
        "critical",
        "More than 5 % of the nodes are not served by cri-resmgr: stop what is being rolled out.",
        "Not ready",
    ),
    Alert(
        "CriResmgrNodeNotReady",
        f"{_M}ready == 0 {_UNLESS_MEANT}",
        15,
        "warning",
        "Node {{ $labels.node }} is not converged, or not healthy.",
        "Not ready",
    ),
    Alert(
        "CriResmgrNodeRefused",
        f'{_M}phase{{phase="refused"}} == 1',
        15,
        "warning",
        "Node {{ $labels.node }} cannot be served, or what it is asked to run cannot.",
        "Refused (exit 4)",
    ),
    Alert(
        "CriResmgrKubeletHeld",
        f"{_M}hold == 1",
        15,
        "warning",
        "kubelet of node {{ $labels.node }} is held on its base endpoint: no policy acts there.",
        "Held",
    ),
    Alert(
        "CriResmgrKubeletRescued",
        _rose("rescues_total"),
        0,
        "warning",
        "kubelet of node {{ $labels.node }} was taken away from a dead relay.",
        "Held",
    ),
    Alert(
        "CriResmgrRolledBack",
        _rose("rollbacks_total"),
        0,
        "warning",
        "A change failed on node {{ $labels.node }} and was undone.",
        "Failed (exit 5)",
    ),
    Alert(
        "CriResmgrRestartLimit",
        f'{_M}phase{{phase="limited"}} == 1',
        0,
        "warning",
        "kubelet of node {{ $labels.node }} would have to restart more often than allowed.",
        "Limited",
    ),
    Alert(
        "CriResmgrRolloutStands",
        f"{_WAIT_FOR_LONG} unless sum(changes({_WAITING}[2h])) > 0",
        0,
        "warning",
        "{{ $value }} nodes wait for their turn, and none has got it for two hours.",
        "Not ready",
    ),
    Alert(
        "CriResmgrNoSuccess",
        f"time() - {_M}last_success_timestamp_seconds > 1200 and {_M}passes_total > 0 {_UNLESS_MEANT}",
        40,
        "warning",
        "No pass has converged on node {{ $labels.node }} for an hour.",
        "Not ready",
    ),
)


def build_alerts(job: str) -> tuple[Alert, ...]:
    """`job` is the label that Prometheus gives the samples of our pods."""
    silent = Alert(
        "CriResmgrInstallerSilent",
        f'up{{job="{job}"}} == 0',
        15,
        "warning",
        "The installer of node {{ $labels.node }} does not answer; the node itself needs no installer.",
        "Not ready",
    )
    return (*_ALERTS, silent)


def build_monitoring(
    name: str, namespace: str, labels: Mapping[str, str], selector: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    """`selector` is that of the installation's pods, `labels` are those of all objects."""
    metadata = {"name": name, "namespace": namespace, "labels": dict(labels)}
    yield {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": metadata,
        "spec": {
            "selector": {"matchLabels": dict(selector)},
            "podMetricsEndpoints": [
                {
                    "port": "metrics",
                    "path": "/metrics",
                    "interval": "30s",
                    "relabelings": [
                        {"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "node"}
                    ],
                }
            ],
        },
    }
    alerts = build_alerts(f"{namespace}/{name}")  # the job of a PodMonitor is its namespace and name
    yield {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": metadata,
        "spec": {"groups": [{"name": name, "rules": [_rule(alert) for alert in alerts]}]},
    }
    dashboard = json.dumps(_dashboard(), indent=1, sort_keys=True) + "\n"
    yield {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            **metadata,
            "name": f"{name}-dashboard",
            "labels": {**labels, "grafana_dashboard": "1"},  # what Grafana's sidecar looks for
        },
        "data": {f"{name}.json": dashboard},
    }


def anchor(heading: str) -> str:
    """As GitHub makes it."""
    kept = "".join(letter for letter in heading.lower() if letter.isalnum() or letter in " -")
    return kept.replace(" ", "-")


def _rule(alert: Alert) -> dict[str, Any]:
    return {
        "alert": alert.name,
        "expr": alert.expression,
        **({"for": f"{alert.minutes}m"} if alert.minutes else {}),
        "labels": {"severity": alert.severity},
        "annotations": {"summary": alert.summary, "runbook": _DOCS + anchor(alert.runbook)},
    }


_PANELS = (
    ("Nodes by phase", "timeseries", f"sum by (phase) ({_M}phase)", "{{phase}}"),
    ("Nodes that are not ready", "table", f"{_M}ready == 0", "{{node}}"),
    ("kubelets held on their base endpoint", "stat", f"sum({_M}hold)", ""),
    ("Generations", "timeseries", f"count by (generation) ({_M}info)", "{{generation}}"),
    ("Policies in force", "timeseries", f"count by (policy, policy_source) ({_M}info)", "{{policy}}"),
    ("Restarts of kubelet", "timeseries", f"sum(increase({_M}kubelet_restarts_total[5m]))", "in 5 minutes"),
    ("Rollbacks", "timeseries", f"sum(increase({_M}rollbacks_total[5m]))", "in 5 minutes"),
    ("Rescues", "timeseries", f"sum(increase({_M}rescues_total[5m]))", "in 5 minutes"),
    ("Longest pass", "timeseries", f"max({_M}last_pass_seconds)", "seconds"),
    ("Oldest success", "stat", f"max(time() - ({_M}last_success_timestamp_seconds > 0))", "seconds"),
)
"""Title, kind, expression and legend: two in a row, in this order."""


def _dashboard() -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${datasource}"}
    panels = [
        {
            "id": number + 1,
            "title": title,
            "type": kind,
            "datasource": source,
            "gridPos": {"h": 8, "w": 12, "x": 12 * (number % 2), "y": 8 * (number // 2)},
            "targets": [
                {"datasource": source, "expr": expression, "legendFormat": legend, "refId": "A"}
                | ({"format": "table", "instant": True} if kind == "table" else {})
            ],
        }
        for number, (title, kind, expression, legend) in enumerate(_PANELS)
    ]
    variable = {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"}
    return {
        "title": "cri-resmgr on the nodes",
        "uid": "cri-resmgr-installer",
        "schemaVersion": 39,
        "time": {"from": "now-6h", "to": "now"},
        "refresh": "1m",
        "templating": {"list": [variable]},
        "panels": panels,
    }
