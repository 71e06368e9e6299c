"""Snapshots for tests, spelt flat: `but(CONVERGED, on_relay=False)` instead of three nested values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from installer.model import paths
from installer.model.host import (
    FileState,
    HostSnapshot,
    KubeletSnapshot,
    ProcessState,
    ProxySnapshot,
    UnitState,
)

BASE = "/run/containerd/containerd.sock"
ON_LINK = ("/usr/bin/kubelet", f"--container-runtime-endpoint=unix://{paths.endpoint_link(BASE)}")
ON_BASE = ("/usr/bin/kubelet",)


def snapshot(
    files: Mapping[str, FileState],
    proxy: UnitState,
    kubelet: UnitState,
    proxy_process: ProcessState | None = None,
    kubelet_process: ProcessState | None = None,
    *,
    relay_answers: bool = False,
    on_relay: bool = False,
    kubelet_healthy: bool = False,
    proxy_links: frozenset[str] = frozenset(),
) -> HostSnapshot:
    """`on_relay` decides the command line of the kubelet process: our link, or nothing of ours. It makes one
    if none is given."""
    found = HostSnapshot(
        ProxySnapshot(proxy, proxy_process, proxy_links, relay_answers),
        KubeletSnapshot(kubelet, kubelet_process, kubelet_healthy),
        files,
    )
    return but(found, on_relay=on_relay) if on_relay or kubelet_process else found


def but(before: HostSnapshot, **other: Any) -> HostSnapshot:
    """The snapshot with some of the parameters of `snapshot`, or its own fields, replaced."""
    proxy, kubelet = before.proxy, before.kubelet
    for key, name in (("proxy", "unit"), ("proxy_process", "process"), ("proxy_links", "links")):
        proxy = replace(proxy, **{name: other.pop(key)}) if key in other else proxy
    for key in ("relay_answers", "starting"):
        proxy = replace(proxy, **{key: other.pop(key)}) if key in other else proxy
    on_relay = other.pop("on_relay", kubelet.on_relay)
    for key, name in (("kubelet", "unit"), ("kubelet_process", "process"), ("kubelet_healthy", "healthy")):
        kubelet = replace(kubelet, **{name: other.pop(key)}) if key in other else kubelet
    if kubelet.on_relay is not on_relay:
        process = kubelet.process or ProcessState(8, (), {})
        process = replace(process, argv=ON_LINK if on_relay else ON_BASE)
        kubelet = replace(kubelet, process=process, target=paths.RELAY_SOCKET if on_relay else "", base=BASE)
    return replace(before, proxy=proxy, kubelet=kubelet, **other)
