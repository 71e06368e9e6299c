"""The steps by which kubelet leaves the relay, holds, and starts again. Pure."""

from __future__ import annotations

from installer.errors import KubeletKeptError
from installer.model import paths
from installer.model.host import DesiredFile, KubeletSnapshot, Part
from installer.model.plan import Step, StepKind

RETURN = Step(StepKind.RETURN, paths.RELAY_ENDPOINT, Part.KUBELET)


def hold_step(reason: str) -> Step:
    """Hold kubelet on its base endpoint from its next start on."""
    content = reason.replace("\n", " ").encode() + b"\n"
    hold = DesiredFile.of(paths.HOLD, content, part=Part.KUBELET)
    return Step(StepKind.SET_HOLD, paths.HOLD, Part.KUBELET, hold)


def move_step(endpoint: str) -> Step:
    """Move a kubelet that is on our link."""
    return Step(StepKind.MOVE, endpoint, Part.KUBELET)


def leave_steps(kubelet: KubeletSnapshot) -> tuple[Step, ...]:
    """Kubelet goes to its base endpoint, where something keeps it: by its link, or by a restart."""
    if kubelet.moves:
        return (move_step(f"unix://{kubelet.base}"),)
    return restart_kubelet_steps(kubelet.unit.name)


def check_way_back(rest: tuple[Step, ...], unit: str, restarts_left: float, held: str) -> None:
    """Raises KubeletKeptError if the rest of a plan begins with kubelet's return to the relay, and an
    operator holds it (`held`), or no restart is left for it."""
    kinds = [step.kind for step in rest[:2] if step.target in (paths.HOLD, paths.RELAY_ENDPOINT, unit)]
    if kinds not in ([StepKind.CLEAR_HOLD, StepKind.RESTART], [StepKind.CLEAR_HOLD, StepKind.MOVE]):
        return
    if held:
        raise KubeletKeptError(f"an operator still holds kubelet on its base endpoint: {held}")
    if StepKind.RESTART in kinds:
        check_restart(restarts_left)


def check_restart(restarts_left: float) -> None:
    """Raises KubeletKeptError if no restart is left by which kubelet could return to the relay."""
    if restarts_left < 1:
        raise KubeletKeptError(
            "kubelet waits on its base endpoint: another restart of it is not allowed now",
            "the proxy runs; `run` moves kubelet back to it as soon as that is allowed",
        )


def restart_kubelet_steps(unit: str) -> tuple[Step, ...]:
    """The steps of a restart, which is done only when kubelet is healthy again."""
    return tuple(Step(kind, unit, Part.KUBELET) for kind in (StepKind.RESTART, StepKind.AWAIT_KUBELET))


def restart_proxy_steps(leaves_to: str) -> tuple[Step, ...]:
    """The steps of a restart of the proxy, which is done only when the relay answers. `leaves_to`: the
    endpoint to which kubelet moves if the proxy starts slowly; empty: it stays."""
    leave = (Step(StepKind.LEAVE_IF_SLOW, leaves_to, Part.PROXY),) if leaves_to else ()
    restart = Step(StepKind.RESTART, paths.PROXY_UNIT, Part.PROXY)
    return (restart, *leave, Step(StepKind.AWAIT_RELAY, paths.RELAY_ENDPOINT, Part.PROXY))
