"""Kubelet's part of the desired state: our drop-in and the static environment file of the guard."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

from installer.header import digest_of, with_generation, with_header
from installer.kubelet.strategy import Choice
from installer.model import paths
from installer.model.resource import DesiredFile, Part, UnitDetail
from installer.model.state import DesiredKubelet, DesiredUnit
from installer.render import fill
from installer.systemd_syntax.environment_file import quote

if TYPE_CHECKING:
    from installer.inputs.settings import Settings

_FLAG = f"--container-runtime-endpoint={paths.RELAY_ENDPOINT}"
_START_RESERVE = 2  # seconds that the guard leaves of kubelet's own TimeoutStartSec
_MICROSECONDS = 1_000_000


def kubelet_resources(
    settings: Settings, detail: UnitDetail, choice: Choice
) -> tuple[tuple[DesiredFile, ...], DesiredKubelet]:
    """Kubelet's files in the order of writing, and kubelet as it should be.

    The generation covers our lines, the variable and the flag. The guard script
    and its deadline are not part of it: they matter at the next start only, so
    the mildest sufficient action for them is nothing.
    """
    drop_in, unit_digest = with_header(
        fill(
            "kubelet-drop-in.conf.in",
            proxy_unit=paths.PROXY_UNIT,
            guard=paths.GUARD,
            static_file=paths.KUBELET_ENVIRONMENT,
            composed_file=paths.KUBELET_COMPOSED,
            exec_start=_exec_start(choice),
        ).encode("utf-8", "surrogateescape")
    )
    generation = digest_of(unit_digest, choice.variable, _FLAG)
    environment = fill(
        "kubelet.env.in",
        variable=choice.variable,
        flag=quote(_FLAG),
        guard_seconds=guard_seconds(settings, detail),
    )
    carrier = with_generation(with_header(environment.encode())[0], generation)
    path = paths.drop_in(settings.kubelet.drop_in_directory, settings.kubelet.unit)
    files = (
        DesiredFile(path, drop_in, 0o644, Part.KUBELET, sha256(drop_in).hexdigest()),
        DesiredFile(
            paths.KUBELET_ENVIRONMENT, carrier, 0o644, Part.KUBELET, sha256(carrier).hexdigest(), True
        ),
    )
    desired = DesiredKubelet(
        DesiredUnit(settings.kubelet.unit, path, unit_digest, generation),
        choice.strategy,
        choice.why,
        choice.variable,
        (paths.KUBELET_ENVIRONMENT, paths.KUBELET_COMPOSED),
        choice.passed_on,
    )
    return files, desired


def _exec_start(choice: Choice) -> str:
    """The lines that repeat the base's command line with our variable; empty if the base has one."""
    return f"ExecStart=\nExecStart={choice.exec_start} ${choice.variable}" if choice.exec_start else ""


def guard_seconds(settings: Settings, detail: UnitDetail) -> int:
    """The guard's deadline, below kubelet's own start timeout: systemd would fail the unit at that."""
    wanted = int(settings.kubelet.guard_seconds)
    if detail.timeout_start_usec == 0:
        return wanted
    return max(1, min(wanted, detail.timeout_start_usec // _MICROSECONDS - _START_RESERVE))
