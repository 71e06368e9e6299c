"""Defects of the program that the certificate of fleets has to find."""

from __future__ import annotations

from tests.certify.defects import Defect

_CLUSTER, _DAEMON = "installer/cluster", "installer/daemon"

SEEDED = (
    Defect(
        "a conflict is taken for a permit",
        f"{_CLUSTER}/permit_client.py",
        "            if answer.code != _CONFLICT:\n                _checked(answer)\n",
        "            if True:\n",
        "fleet any --faults 0",
    ),
    Defect(
        "a paused fleet goes on",
        f"{_CLUSTER}/rollout.py",
        "        if state.paused is not None:\n",
        "        if state.paused:\n",
        "fleet any --kinds pause",
    ),
    Defect(
        "a stopped generation begins",
        f"{_CLUSTER}/rollout.py",
        "        if why and self.me.node not in breaker.failures:\n",
        "        if why and self.me.node in breaker.failures:\n",
        "fleet any --kinds pass",
    ),
    Defect(
        "nobody waits for the canaries",
        f"{_CLUSTER}/rollout.py",
        "        return None if goes_first else self._await_canaries(breaker)\n",
        "        return None\n",
        "fleet canary --faults 0",
    ),
    Defect(
        "a permit never expires",
        f"{_CLUSTER}/leases.py",
        "bool(self.holder) and now < self.expires)",
        "bool(self.holder))",
        "fleet any --kinds dead",
    ),
    Defect(
        "a daemon that ends gives back the permit of the newer one",
        f"{_CLUSTER}/client.py",
        "        member = self.member.handed_over() if replaced else self.member\n",
        "        member = self.member\n",
        "fleet surge --kinds surge",
    ),
    Defect(
        "a permit is not given back",
        f"{_CLUSTER}/sync_plan.py",
        "    if member.node.uid and (member.results or returned):\n",
        "    if member.node.uid and member.results:\n",
        "fleet any --faults 0",
    ),
    Defect(
        "a permit is given back before the node is Ready",
        f"{_CLUSTER}/member.py",
        "        return self.is_spare and self.used and not (self.node.ready and not self.awaited)\n",
        "        return False\n",
        "fleet any --kinds pass",
    ),
    Defect(
        "a permit is over before the longest pass is",
        f"{_CLUSTER}/leases.py",
        '        "leaseDurationSeconds": round(seconds),\n',
        '        "leaseDurationSeconds": round(seconds / 2),\n',
        "fleet any --kinds slow",
    ),
    Defect(
        "a daemon that follows a pass of an earlier one takes itself for idle",
        f"{_DAEMON}/fleet.py",
        "    busy = policy.working is not Action.NOTHING or not policy.had_lock or policy.keeps_permit\n",
        "    busy = policy.working is not Action.NOTHING and not policy.is_following\n",
        "fleet any --kinds crash",
    ),
    Defect(
        "one permit more than there are",
        f"{_CLUSTER}/rollout.py",
        "        return permits_of(self.rules.concurrent_restarts, self.state.nodes)\n",
        "        return 1 + permits_of(self.rules.concurrent_restarts, self.state.nodes)\n",
        "fleet any --faults 0",
    ),
    Defect(
        "what was granted may begin when the permit is over",
        f"{_CLUSTER}/member.py",
        "GRANT_SECONDS = 45.0 ",
        "GRANT_SECONDS = 4500.0 ",
        "fleet any --kinds stall",
    ),
    Defect(
        "work begins unasked",
        f"{_DAEMON}/policy.py",
        "            ask_first = AskFirst.ALL\n",
        "            ask_first = AskFirst.NOTHING\n",
        "fleet any --faults 0",
    ),
    Defect(
        "what was told is told for ever",
        f"{_CLUSTER}/sync_plan.py",
        "    if answer.told and end.result:\n",
        "    if answer.denied and end.result:\n",
        "fleet canary --faults 0",
    ),
    Defect(
        "a permit comes back before the result is told",
        f"{_CLUSTER}/member.py",
        "used=self.held is not None)\n",
        "used=False)\n",
        "fleet any --kinds pass",
    ),
    Defect(
        "a shut window is open",
        f"{_CLUSTER}/rollout.py",
        "        if found.open:\n",
        "        if found.open or found.until:\n",
        "fleet window --faults 0",
    ),
    Defect(
        "nobody waits for pods that were Ready",
        f"{_CLUSTER}/sync_plan.py",
        "    is_over = now - member.worked_at >= member.rules.pod_seconds\n",
        "    is_over = True\n",
        "fleet pods --faults 0",
    ),
    Defect(
        "a removal waits for no plugin",
        f"{_CLUSTER}/member.py",
        "        return ends - now\n",
        "        return None\n",
        "fleet successor --faults 0",
    ),
)
