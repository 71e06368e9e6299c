"""Hostile settings, configs and values: what an operator hands to the command line."""

from __future__ import annotations

from pathlib import Path

from hypothesis import strategies as st

from installer.inputs.configs import load_configs
from installer.inputs.settings import load_settings
from tests.faults.inputs.texts import every_value, spoilt
from tests.faults.inputs.trial import Trial, end_of

_SETTINGS = (
    """apiVersion: cri-resmgr-installer/v1
mode: install
proxy:
  runtimeEndpoint: unix:///run/containerd/containerd.sock
  agent: enabled
  startTimeoutSeconds: 20
kubelet:
  unit: kubelet.service
  strategy: auto
  dropInDirectory: /etc/systemd/system
  healthzUrl: http://127.0.0.1:10248/healthz
  settleSeconds: 10
removal:
  onTermination: keep
rollout:
status:
  listen: 127.0.0.1:8080
""",
    "kubelet: {guardSeconds: 15, acceptStaticManagers: true}\n",
    "mode: remove\n",
)


def _check_settings(content: bytes, directory: Path) -> str:
    file = directory / "settings.yaml"
    file.write_bytes(content)
    return end_of(lambda: load_settings(file))


_CONFIG = (
    """policy:
  Active: topology-aware
  ReservedResources:
    CPU: 750m
  AvailableResources:
    CPU: cpuset:0-3
logger:
  Debug: cache
dump:
  Config: "off:.*,short:(Create|Start)"
instrumentation:
  HTTPEndpoint: ":8891"
""",
    "policy.Active: none\nlogger.Debug: x\n",
)
_OPTIONS = (
    'EXTRA_OPTIONS="--metrics-interval 30s --disable-ui"\n',
    "# a comment\n\nEXTRA_OPTIONS=--disable-ui\n",
)


def _check_configs(contents: tuple[bytes | None, ...], directory: Path) -> str:
    for name, content in zip(("fallback.cfg", "force.cfg", "EXTRA_OPTIONS.cfg"), contents, strict=True):
        (directory / name).unlink(missing_ok=True)
        if content is not None:
            (directory / name).write_bytes(content)
    return end_of(lambda: load_configs(directory))


TRIALS = (
    Trial("settings", spoilt(_SETTINGS), _check_settings, every_value(_SETTINGS)),
    Trial(
        "configs directories",
        st.tuples(
            *(st.none() | spoilt(_CONFIG) for _ in ("fallback", "force")), st.none() | spoilt(_OPTIONS)
        ),
        _check_configs,
        [(content, None, None) for content in every_value(_CONFIG)],
    ),
)
