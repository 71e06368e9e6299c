"""Which phase the daemon reports, and why. Pure: from what the policy knows now.

It reports `converged` only while no child works and the last picture shows nothing that a run would mend:
rollouts, removals of a fleet and people rely on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from installer.daemon.configuration import Configuration
from installer.daemon.pass_history import PassHistory
from installer.daemon.poller import PollSnapshot
from installer.model.daemon import Phase
from installer.model.hold import is_of_a_run
from installer.model.names import Mode

if TYPE_CHECKING:
    from installer.node.picture import Picture

_OTHERS = "another run is at work on this host"
_UNSERVABLE = 4
_REFUSED_HINT = "Fix the cause, and the node retries by itself; or exclude this node with nodeSelector"
_GO_ON_HINT = "; with rollout.refused: ready a rollout does not wait for such nodes"


@dataclass(frozen=True, slots=True)
class Obstacles:
    """What stands between the host and `converged`, beside the passes. Each text is empty if it does not
    apply.

    `replaced`: by a newer daemon. `blind`: why the host cannot be looked at, once that has lasted. `limited`:
    how often kubelet was restarted, if no further restart is allowed now. `waits`: why planned work may not
    begin now. `sick`: what is not healthy. `at_work`: a child runs."""

    replaced: bool
    blind: str
    limited: str
    waits: str
    sick: str
    at_work: bool


def judge_phase_and_readiness(
    passes: PassHistory, now: Obstacles, seen: PollSnapshot, configuration: Configuration
) -> tuple[Phase, str, bool]:
    """Return the phase, why, and whether the node is ready."""
    installs = configuration.mode is Mode.INSTALL
    phase, reason = _phase(passes, now, seen, installs)
    if phase is Phase.REFUSED and installs:
        hint = _REFUSED_HINT + ("" if configuration.refused_is_ready else _GO_ON_HINT)
        left = "what is installed stays" if seen.proxy.loaded_digest else "nothing was touched"
        return phase, f"{reason}; {left}. {hint}", configuration.refused_is_ready
    fit = seen.picture is not None and passes.is_content(seen.picture) and not now.sick
    certain = phase in (Phase.CONVERGED, Phase.CHECKING, Phase.REMOVED)
    return phase, reason, certain or (phase is Phase.PAUSED and fit)


def _phase(passes: PassHistory, now: Obstacles, seen: PollSnapshot, installs: bool) -> tuple[Phase, str]:
    picture = seen.picture
    if now.replaced and seen.foreign:
        other = f"another installation, {seen.foreign}, acts on this node"
        if not (installs or seen.foreign_lives):
            # Its DaemonSet may be gone for good: then a removal of ours cleans what it has left.
            return (
                Phase.WAITING,
                f"another installation, {seen.foreign}, acted on this node and may come back",
            )
        # Nothing here is of this installation: there is nothing to remove.
        return (Phase.REFUSED, other) if installs else (Phase.REMOVED, f"{other}, which stays as it is")
    if now.replaced:
        return Phase.YIELDED, "a newer daemon has taken over this host"
    if seen.paused:
        pending = _pending(passes, picture) if picture is not None else ""
        return Phase.PAUSED, pending or "paused: the daemon changes nothing"
    if passes.removed and not installs:
        return Phase.REMOVED, ""
    if installs and now.blind:
        return Phase.REFUSED if seen.unservable and picture is None else Phase.FAILED, now.blind
    if installs and seen.hold and not (now.at_work and is_of_a_run(seen.hold)):
        return Phase.HELD, f"kubelet is held on its base endpoint: {seen.hold}"
    if installs and now.limited:
        return Phase.LIMITED, f"a repair needs to restart kubelet, which is not allowed now: {now.limited}"
    if now.waits:
        return Phase.WAITING, now.waits
    if picture is not None and picture.code:
        return Phase.REFUSED if picture.code == _UNSERVABLE else Phase.FAILED, passes.why_refused(picture)
    if passes.failed:
        return Phase.REFUSED if passes.refused else Phase.FAILED, passes.said
    if now.at_work and not installs:
        return Phase.CONVERGING, "cri-resmgr is being removed"
    if not installs or picture is None:
        others = _OTHERS if picture is not None and picture.at_work else ""
        return Phase.STARTING, passes.said or now.blind or others
    why = picture.differs or "a run looks into it"
    if picture.at_work and not now.at_work:  # ours waits for it, perhaps for long
        why += f"; {_OTHERS} ({picture.at_work})"
    if picture.is_new and not picture.is_clean:
        return Phase.CONVERGING, why
    if now.sick:
        return Phase.UNWELL, now.sick
    if not passes.is_content(picture):
        return Phase.REPAIRING, why
    return Phase.CHECKING if now.at_work else Phase.CONVERGED, passes.remarks(picture)


def _pending(passes: PassHistory, picture: Picture) -> str:
    """Return what would happen, or why nothing would, if the node were not paused."""
    return passes.why_refused(picture) or (picture.pending and f"pending: {picture.pending}")
