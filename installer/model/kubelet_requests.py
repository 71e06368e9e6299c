"""The CPU weight that kubelet asks for each of its containers, as far as it keeps that in a file.

kubelet writes down what it has admitted: /var/lib/kubelet/allocated_pods_state, JSON with `data`, which is a
JSON text again (k8s.io/kubernetes/pkg/kubelet/allocation/state, with the feature InPlacePodVerticalScaling,
by default since 1.33). That text has `allocationEntries`: pod UID, container, its resources (1.33), or
`entries`: pod UID, `ContainerResources`, container, its resources (1.34 - 1.37). Another shape says nothing.

kubelet's API would say the same. Its port for everybody is closed by default, and who listens there may be
another; on the other port kubelet's own certificate is refused (the Node authorizer grants no nodes/proxy),
and a token that is not could execute commands in each container.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from installer.model.jsontext import parse_json
from installer.model.proxy_cache import nano_of

_LOWEST, _HIGHEST = 2, 262144  # cpu.shares

Asked = Mapping[tuple[str, str], int]
"""(pod UID, container) -> cpu.shares."""


def parse_requests(raw: bytes | None) -> Asked:
    """From the file's content, None if there is no file. What is not of a known shape is left out."""
    found = _load((raw or b"{}").decode("utf-8", "replace"))
    text = found.get("data")
    data = _load(text if isinstance(text, str) else "{}")
    pods = {
        uid: _mapping(pod).get("ContainerResources") for uid, pod in _mapping(data.get("entries")).items()
    }
    return dict(_shares({**_mapping(data.get("allocationEntries")), **pods}))


def _shares(pods: Mapping[str, object]) -> Iterator[tuple[tuple[str, str], int]]:
    for uid, containers in pods.items():
        for name, resources in _mapping(containers).items():
            if not isinstance(resources, dict):
                continue
            requested = _mapping(resources.get("requests")).get("cpu")
            nano = nano_of(
                _mapping(resources.get("limits")).get("cpu", "0") if requested is None else requested
            )
            if nano is not None:
                # kubelet: MilliCPUToShares of the request in milliCPU, rounded up.
                yield (uid, name), min(max(_LOWEST, -(-nano // 10**6) * 1024 // 1000), _HIGHEST)


def _load(text: str) -> Mapping[str, Any]:
    try:
        return _mapping(parse_json(text))
    except ValueError:
        return {}


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
