"""A run on a host of values: looks as reconcile does, claims, does the steps, closes."""

from __future__ import annotations

from dataclasses import replace

from installer.inputs.load import Inputs
from installer.model.names import Mode
from installer.model.plan import Assessment, Finding
from installer.node.assess import assess, may_start_units, needs_probe
from installer.node.kubelet_strategy import possible_drop_ins, with_drop_in_directory
from installer.node.ownership import RecordStore
from installer.node.record import load_record, may_be_earlier
from installer.node.takeover import consider
from tests.lib.plancases.case import CaseError, line_of
from tests.lib.plancases.host import MemoryHost


class Node:
    """A host of values and a run on it; `assess` does what reconcile does before it changes anything."""

    def __init__(self, host: MemoryHost, inputs: Inputs) -> None:
        self.host, self.inputs = host, inputs

    def copy(self) -> Node:
        """The same node, to go another way from here."""
        return Node(self.host.copy(), self.inputs)

    def look(self) -> Assessment:
        """What the run would do."""
        return self._look("0a1b")[1]

    def _look(self, nonce: str) -> tuple[RecordStore, Assessment]:
        host, known = self.host, self.host.machine
        settings = with_drop_in_directory(self.inputs.request.settings, known)
        inputs = replace(self.inputs, request=replace(self.inputs.request, settings=settings))
        store = RecordStore(host.files, load_record(host.files, known.machine_id, known.hostname))
        places = possible_drop_ins(settings.kubelet)
        store.reconstruct(places, inputs.payload_digest, inputs.request.consent.without_record)
        snapshot = host.snapshot(settings, store.record)
        noted: tuple[Finding, ...] = ()
        if may_be_earlier(snapshot, store.record):
            snapshot, noted = consider(
                host.files, inputs.request, store, snapshot, lambda record: host.snapshot(settings, record)
            )
        found = assess(inputs, snapshot, store.record, store.status, nonce, None, noted)
        if needs_probe(found):
            asked = may_start_units(found)
            probe = host.probe if asked else replace(host.probe, runtime_error="", containers=())
            snapshot = replace(snapshot, probe=probe)
            found = assess(inputs, snapshot, store.record, store.status, nonce, None, noted)
        return store, found

    def run(self, until: str = "", steps: int | None = None) -> Assessment:
        """Everything that is to be done; or cut off after the step that reads like `until` (`claim`: before
        the first), or after so many steps. Raises CaseError."""
        store, found = self._look("beef")
        plan = found.plan
        if plan.refusals:
            raise CaseError(f"refused: {', '.join(finding.code for finding in plan.refusals)}")
        if plan.steps:
            store.claim(plan, found.snapshot)
        if until:
            lines = ["claim", *map(line_of, plan.steps)]
            if until not in lines:
                raise CaseError(f"no step {until!r} among: {', '.join(lines)}")
            steps = lines.index(until)
        for step in plan.steps[:steps]:
            self.host.do(step, resets_all=plan.resets_all)
        if steps is None:
            self.close(store, found)
        return found

    def close(self, store: RecordStore, found: Assessment) -> None:
        """What follows the last step."""
        store.note_applied(found.plan, self.host.proxy.invocation_id)
        if found.plan.mode is Mode.REMOVE:
            store.close_removed()
            self.host.hold, self.host.composed = "", False
        else:
            after = self.host.snapshot(self.inputs.request.settings, store.record)
            store.close_installed(found.plan.desired, after, "")
