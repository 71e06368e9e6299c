"""The steps by which kubelet leaves the relay while the proxy starts slowly, and returns. Pure."""

from __future__ import annotations

from installer.errors import KubeletKeptError
from installer.model import paths
from installer.model.hold import BY_RUN
from installer.model.host import DesiredFile, Part
from installer.model.plan import Step, StepKind

_WAITS_THERE = f"{BY_RUN}kubelet waits there until the proxy has started, and another restart is allowed"


def hold_step(reason: str) -> Step:
    """Hold kubelet on its base endpoint from its next start on."""
    content = reason.replace("\n", " ").encode() + b"\n"
    hold = DesiredFile.of(paths.HOLD, content, part=Part.KUBELET)
    return Step(StepKind.SET_HOLD, paths.HOLD, Part.KUBELET, hold)


def leave_relay_steps(unit: str) -> tuple[Step, ...]:
    """Kubelet leaves the relay. The hold keeps it away, whoever restarts it."""
    kinds = (StepKind.RESTART, StepKind.AWAIT_KUBELET_ON_BASE)
    return (hold_step(_WAITS_THERE), *(Step(kind, unit, Part.KUBELET) for kind in kinds))


def restart_kubelet_steps(unit: str) -> tuple[Step, ...]:
    """The steps of a restart, which is done only when kubelet is healthy again."""
    return tuple(Step(kind, unit, Part.KUBELET) for kind in (StepKind.RESTART, StepKind.AWAIT_KUBELET))


def restart_proxy_steps(leaves_to: str) -> tuple[Step, ...]:
    """The steps of a restart of the proxy, which is done only when the relay answers. `leaves_to`: the
    endpoint to which kubelet moves if it would hang on the relay for too long; empty: it stays."""
    leave = (Step(StepKind.LEAVE_IF_SLOW, leaves_to, Part.PROXY),) if leaves_to else ()
    restart = Step(StepKind.RESTART, paths.PROXY_UNIT, Part.PROXY)
    return (restart, *leave, Step(StepKind.AWAIT_RELAY, paths.RELAY_ENDPOINT, Part.PROXY))


def check_way_back(rest: tuple[Step, ...], unit: str, restarts_left: float, held: str) -> None:
    """Raises KubeletKeptError if the rest of a plan begins with kubelet's return to the relay, and no restart
    is left for it, or an operator holds it (`held`)."""
    kinds = [step.kind for step in rest[:2] if step.target in (paths.HOLD, unit)]
    if kinds != [StepKind.CLEAR_HOLD, StepKind.RESTART]:
        return
    if held:
        raise KubeletKeptError(f"an operator still holds kubelet on its base endpoint: {held}")
    if restarts_left < 1:
        raise KubeletKeptError(
            "kubelet waits on its base endpoint: another restart of it is not allowed now",
            "the proxy runs; `run` moves kubelet back to it as soon as that is allowed",
        )


def return_steps(rest: tuple[Step, ...], unit: str) -> tuple[Step, ...]:
    """The rest of a plan after kubelet had to leave the relay: the hold ends with the next restart of
    kubelet. If none was planned, that restart comes when the relay has answered, and the pods are compared
    after it."""
    clear = Step(StepKind.CLEAR_HOLD, paths.HOLD, Part.KUBELET)
    for n, step in enumerate(rest):
        if step.kind is StepKind.RESTART and step.target == unit:
            return (*rest[:n], clear, *rest[n:])
        if step.kind is StepKind.CHECK_PODS:
            return (*rest[:n], clear, *restart_kubelet_steps(unit), *rest[n:])
    return (*rest, clear, *restart_kubelet_steps(unit))
