"""What the daemon reports to its fleet, and how long a node that leaves waits for a permit. It changes
nothing on the host."""

from __future__ import annotations

import random

from installer.daemon.decision import Action, Decision
from installer.daemon.policy import BUSY, Policy
from installer.daemon.poller import PollSnapshot
from installer.errors import RolledBackError
from installer.model.daemon import Cluster
from installer.model.fleet import NO_WORK, REMOVAL, PlannedWork, WorkResult
from installer.model.result import RunResult

_LEAVE_SECONDS = (60.0, 180.0)  # for a permit, the shortest and the longest; a pod has 600 s in all to end
LEAVE = PlannedWork(REMOVAL, removes=True)


def report_state(cluster: Cluster, policy: Policy, decision: Decision, snapshot: PollSnapshot) -> None:
    """Report the daemon's state, and the work that waits for a permit. A daemon that changes nothing asks for
    nothing. Until a pass of this daemon has had the host's lock, an earlier one may be at work with the
    permit. A node that looks idle would give its permit back."""
    changes_nothing = snapshot.paused or snapshot.superseded
    if not changes_nothing and (verdict := policy.take_verdict()) is not None:
        report_end(cluster, policy, Action.INSTALL, verdict)
    busy = policy.working is not Action.NOTHING or not policy.had_lock or policy.keeps_permit
    work, rules = None if changes_nothing else decision.wants, policy.configuration.rules
    cluster.update(policy.state, work, rules, busy=busy, read_node=decision.read_node)


def report_end(cluster: Cluster, policy: Policy, action: Action, outcome: RunResult) -> None:
    """Report how a child has ended, before the policy knows of it; or what a picture says without one."""
    permitted, begun = policy.permitted, cluster.permission().begun
    known_bad = begun is not None and outcome.remembered and outcome.fleet_generation == begun.generation
    if policy.is_following or (permitted is None and known_bad):
        permitted = begun  # by an earlier daemon, which has not reported its end
    if (result := build_result(action, outcome, permitted)) is not None:
        cluster.report_result(result)


def leave_seconds() -> float:
    """Return how long a node whose pod ends waits for a permit to be removed: not all give up at once."""
    return random.uniform(*_LEAVE_SECONDS)


def may_remove(cluster: Cluster, policy: Policy, snapshot: PollSnapshot) -> bool:
    """Ask for a permit to remove this node, unless that needs no restart, and whether the node is paused.
    Return whether the removal may begin now."""
    permission, rules = cluster.permission(), policy.configuration.rules
    may = permission.fresh and (not snapshot.on_relay or permission.allows(LEAVE))
    work = None if may or not snapshot.on_relay else LEAVE
    cluster.update(policy.state, work, rules, busy=may, read_node=not permission.fresh)
    return may


def build_result(action: Action, outcome: RunResult, permitted: PlannedWork | None) -> WorkResult | None:
    """Return the result of the permitted work, None if nothing was begun. A pass that converged without a
    permit still says that the generation works here, which a person may have put right; or that it failed."""
    met = outcome.planned.generation if outcome.planned else outcome.fleet_generation
    is_other = permitted is not None and met not in ("", permitted.generation)  # the inputs have changed
    if (outcome.planned is not None and not is_other) or outcome.code == BUSY:
        return None
    if action is Action.RESCUE:
        return WorkResult(NO_WORK, False, "the relay died soon afterwards") if outcome.code == 0 else None
    if action in (Action.INSTALL, Action.REMOVE) and permitted is not None:
        # A fault of the node's environment (rolled back, and nothing blamed) says nothing of the generation.
        failed = outcome.touched and (outcome.remembered or outcome.code != RolledBackError.exit_code)
        ok = True if outcome.code == 0 else False if failed else None
        return WorkResult(permitted, None if is_other else ok, outcome.reason)
    if action is Action.INSTALL and outcome.fleet_generation and (outcome.code == 0 or outcome.remembered):
        work = PlannedWork(outcome.fleet_generation, restarts_kubelet=False, begins=True)
        return WorkResult(work, outcome.code == 0, outcome.reason, recalled=outcome.remembered)
    return WorkResult(LEAVE, True) if action is Action.REMOVE and outcome.code == 0 else None
