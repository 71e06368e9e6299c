"""What is wanted of a small host, and the host that has it."""

from __future__ import annotations

from hashlib import sha256

from installer.model import paths
from installer.model.host import (
    DesiredFile,
    FileState,
    Kind,
    Part,
    ProcessState,
    UnitState,
)
from installer.model.plan import Desired, DesiredKubelet, DesiredUnit, Strategy
from installer.node.record import Owned, Record
from tests.lib.snapshots import snapshot

DROP_IN = "/etc/systemd/system/kubelet.service.d/90-cri-resmgr.conf"


def wanted(path: str, content: bytes, part: Part, carrier: bool = False) -> DesiredFile:
    return DesiredFile.of(path, content, part=part, carrier=carrier)


def there(content: bytes, mode: int = 0o644, uid: int = 0) -> FileState:
    digest = sha256(content).hexdigest()
    return FileState(Kind.FILE, mode, uid, 0, len(content), digest, content=content)


FILES = (
    wanted(paths.PROXY_UNIT_FILE, b"unit", Part.PROXY),
    wanted(paths.PROXY_ENVIRONMENT, b"CRI_RESMGR_INSTALLER_GENERATION=g1\n", Part.PROXY, carrier=True),
    wanted(paths.FALLBACK_CONFIG, b"fallback", Part.PROXY),
    wanted(paths.GUARD, b"guard", Part.PROXY),
    wanted(DROP_IN, b"drop-in", Part.KUBELET),
    wanted(paths.KUBELET_ENVIRONMENT, b"CRI_RESMGR_INSTALLER_GENERATION=g2\n", Part.KUBELET, carrier=True),
)
PROXY = DesiredUnit(paths.PROXY_UNIT, paths.PROXY_UNIT_FILE, "u1", "g1")
KUBELET = DesiredKubelet(
    DesiredUnit("kubelet.service", DROP_IN, "u2", "g2"),
    Strategy.ENVIRONMENT,
    "why",
    "KUBELET_EXTRA_ARGS",
    (paths.KUBELET_ENVIRONMENT, paths.KUBELET_COMPOSED),
)
DESIRED = Desired(FILES, PROXY, KUBELET)
RECORD = Record(owned={file.path: Owned(file.part, wrote=(file.digest,)) for file in FILES})


def process(generation: str, *argv: str) -> ProcessState:
    return ProcessState(7, argv, {paths.GENERATION_VARIABLE: generation})


CONVERGED = snapshot(
    files={file.path: there(file.content) for file in FILES if isinstance(file.content, bytes)},
    proxy=UnitState(
        paths.PROXY_UNIT,
        "loaded",
        "active",
        "running",
        "static",
        invocation_id="i1",
        main_pid=7,
        environment=(f"{paths.UNIT_VARIABLE}=u1",),
    ),
    kubelet=UnitState(
        "kubelet.service",
        "loaded",
        "active",
        "running",
        "enabled",
        invocation_id="i2",
        main_pid=8,
        environment=(f"{paths.UNIT_VARIABLE}=u2",),
    ),
    proxy_process=process("g1"),
    kubelet_process=process("g2"),
    relay_answers=True,
    on_relay=True,
    kubelet_healthy=True,
)
