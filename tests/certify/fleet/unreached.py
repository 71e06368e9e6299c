"""Branches that the fleets of `certify.py` do not reach within its bounds, and why."""

_ALONE = "each node is in a fleet here; one without a rollout's namespace asks for nothing"
_TWO = "a newer daemon takes over while the older one still runs: here a node has one daemon at a time"
_THWARTED = "it takes more writes that others thwart, within one sync, than two nodes and one fault make"
_PAGES = "all Leases of so small a fleet are on one page"
_AHEAD = "admission lets nobody date a permit further ahead than a day, and here nobody gets around it"
_TWICE = "the Node cannot be read when the daemon starts, and is denied afterwards: two faults"

UNREACHED = {
    "member.Member.with_work: if not self.context.rollout_namespace: -> return member": _ALONE,
    "member.Member.permission: if not self.context.rollout_namespace: -> "
    "return replace(FREE, paused=self.paused, fresh=fresh)": _ALONE,
    "member.Member.handed_over: not called": _TWO,
    "sync_plan._take_node: if not node.hidden or before.uid: -> "
    "return replace(before, denied_since=min(now, before.denied_since), why=_HIDDEN)": _TWICE,
    "sync_plan._take_grant: if before.replaced: -> return before": _TWO,
    "permit_client.PermitClient.begin: for _ in range(_MOVES): -> "
    'return self._answer(wait_for_others("wrote the circuit breaker"))': _THWARTED,
    "permit_client.PermitClient._report: for _ in range(2 * _TRIES): -> raise _FailedError(": _THWARTED,
    "permit_client.PermitClient._read_state: for _ in range(_PAGES): -> "
    "return read_fleet_state(leases, generation, self._now)": _PAGES,
    "permit_client.PermitClient._read_state: if not more: -> for _ in range(_PAGES):": _PAGES,
    "rollout.Rollout._find_permit: if not choice.held: -> return self._await_people(_LOST)": _AHEAD,
}
