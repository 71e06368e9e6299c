"""Which phase the daemon reports, and why. Pure: from what the policy knows now.

It reports `converged` only while no child works and nothing differs from what the last pass has verified:
rollouts, removals of a fleet and people rely on it.
"""

from __future__ import annotations

from dataclasses import dataclass

from installer.daemon.configuration import Configuration
from installer.daemon.poller import PollSnapshot
from installer.model.daemon import Phase
from installer.model.hold import is_of_a_run
from installer.model.names import Mode

_REFUSED_HINT = "Fix it and the node retries by itself, or exclude this node with nodeSelector"
_GO_ON_HINT = "; with rollout.refused: ready a rollout does not wait for such nodes"


@dataclass(frozen=True, slots=True)
class Standing:
    """What the policy knows, beside what is seen. Each text is empty where it does not apply.

    `blind` is why the host cannot be looked at, once that has lasted; `unservable`: this is not a host that
    we can serve. `said` is what the last pass or plan has said that did not end well, `failed` whether a pass
    has failed since one ended well, and `refused` whether that was a refusal (exit 4). `limited`: how often
    kubelet was restarted, if one more restart is not allowed now. `awaits`: why planned work may not begin
    now. `sick`: what is not healthy. `difference`: what differs from the host that the last pass has
    verified. `at_work`: a child runs. `well`: the last look found everything correct. `unplaced`: which
    containers the policy still does not serve.
    """

    superseded: bool
    tried: bool
    blind: str
    unservable: bool
    removed: bool
    said: str
    failed: bool
    refused: bool
    limited: str
    awaits: str
    sick: str
    difference: str
    new_inputs: bool
    at_work: bool
    well: bool
    unplaced: str


def judge(now: Standing, seen: PollSnapshot, configuration: Configuration) -> tuple[Phase, str, bool]:
    """The phase, why, and whether the node is ready."""
    installs = configuration.mode is Mode.INSTALL
    phase, reason = _phase(now, seen, installs)
    if phase is Phase.REFUSED and installs:
        hint = _REFUSED_HINT + ("" if configuration.refused_is_ready else _GO_ON_HINT)
        left = "what is installed stays" if seen.proxy.loaded_digest else "nothing was touched"
        return phase, f"{reason}; {left}. {hint}", configuration.refused_is_ready
    fit = now.well and not now.sick and not now.difference
    certain = phase in (Phase.CONVERGED, Phase.CHECKING, Phase.REMOVED)
    return phase, reason, certain or (phase is Phase.PAUSED and fit)


def _phase(now: Standing, seen: PollSnapshot, installs: bool) -> tuple[Phase, str]:
    failure = Phase.REFUSED if now.refused else Phase.FAILED
    if now.superseded:
        return Phase.YIELDED, "a newer daemon has taken over this host"
    if seen.paused:
        return Phase.PAUSED, now.said or "paused: nothing is changed"
    if now.removed:
        return Phase.REMOVED, ""
    if installs and now.blind:
        return Phase.REFUSED if now.unservable else Phase.FAILED, now.blind
    if installs and seen.hold and not (now.at_work and is_of_a_run(seen.hold)):
        return Phase.HELD, f"kubelet is held on its base endpoint: {seen.hold}"
    if installs and now.limited:
        return Phase.LIMITED, f"a repair needs a restart of kubelet, not allowed now: {now.limited}"
    if now.awaits:
        return Phase.WAITING, now.awaits
    if now.failed:
        return failure, now.said
    if now.at_work and not installs:
        return Phase.CONVERGING, "cri-resmgr is being removed"
    if not installs or not now.tried:
        return Phase.STARTING, now.said
    if now.sick:
        return Phase.UNWELL, now.sick
    if now.difference:
        return Phase.CONVERGING if now.new_inputs else Phase.REPAIRING, now.difference
    return Phase.CHECKING if now.at_work else Phase.CONVERGED, now.unplaced
