"""Read the inputs and the host, and assess them. Touches nothing."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum, auto

from installer.errors import InvalidInputError, UnservableHostError, failed_on_disk
from installer.host.ports import Files, Host
from installer.inputs.load import Inputs, Request, load_inputs
from installer.inputs.reading import is_roots_own
from installer.inputs.settings import Settings
from installer.model import paths
from installer.model.event import Emit, silent
from installer.model.hold import is_operators
from installer.model.host import HostSnapshot
from installer.model.names import Mode
from installer.model.plan import Assessment, Desired, Finding
from installer.model.proxy import DEFAULT_FALLBACK
from installer.model.result import Tally
from installer.node.assess import assess, may_start_units, needs_probe
from installer.node.header import without_header
from installer.node.kept import good_desired, lost_files
from installer.node.kubelet_strategy import possible_drop_ins, with_drop_in_directory
from installer.node.ownership import RecordStore
from installer.node.record import Record, is_ours, load_record, may_be_earlier, takes_over
from installer.node.run import Run
from installer.node.snapshot import kubelet_root, read_machine, take_snapshot, with_probe


@dataclass(frozen=True, slots=True)
class Inspection:
    """What a run would do, and what it would be carried out with."""

    run: Run
    inputs: Inputs
    assessment: Assessment


class Probed(Enum):
    """How much is read of what only a change needs."""

    NOTHING = auto()
    HOST = auto()  # without the runtime
    ALL = auto()


def assess_host(
    request: Request, host: Host, emit: Emit = silent, tally: Tally | None = None, probed: Probed = Probed.ALL
) -> Inspection:
    """What a run would do. Touches nothing.

    Raises InvalidInputError, UnservableHostError.
    """
    try:
        machine = read_machine(host)
        store = RecordStore(host.files, load_record(host.files, machine.machine_id, machine.hostname))
        settings = _with_moved_kubelet(request, store.record, host.files)
        request = replace(request, settings=with_drop_in_directory(settings, machine))
        inputs = load_inputs(request, store.record.known_digest)
        forgotten = _forgotten_configs(request, store.record, host)
        repairs = request.payload is None and request.mode is Mode.INSTALL
        if repairs and not request.inspect:
            _check_repairable(request, store.record)
        elif forgotten and not request.inspect:
            raise _configs_missing(forgotten, store.record)
        installed = repairs or (request.inspect and bool(forgotten))
        desired = (good_desired(store.record, host.files) or Desired()) if installed else None
        if request.payload is not None and request.mode is Mode.INSTALL:
            store.asked = request.asked
        kubelet = request.settings.kubelet
        store.reconstruct(possible_drop_ins(kubelet), inputs.payload_digest, request.consent.without_record)
        snapshot = take_snapshot(host, machine, request.settings, store.record)
        host = replace(host, kubelet_root=kubelet_root(snapshot))
        snapshot, noted = _consider_earlier(request, host, store, snapshot)
        snapshot = store.with_damage(snapshot, give_up=request.consent.without_record)
        if repairs and not request.inspect and (lost := lost_files(store.record, snapshot)):
            raise _payload_missing(f"nothing else has the content of {lost[0]} any more", store.record)
        nonce = os.urandom(8).hex()
        assessment = assess(inputs, snapshot, store.record, store.status, nonce, desired, noted)
        if request.inspect and not assessment.plan.desired.files and store.record.claims:
            # The inputs cannot be compared, because kubelet cannot be served now.
            desired = good_desired(store.record, host.files) or Desired()
            assessment = assess(inputs, snapshot, store.record, store.status, nonce, desired, noted)
        may_probe = probed is not Probed.NOTHING and (desired is None or desired.files)
        if may_probe and needs_probe(assessment):
            starts = may_start_units(assessment)
            endpoint = assessment.base_endpoint if starts and probed is Probed.ALL else ""
            snapshot = with_probe(snapshot, host, assessment.plan, endpoint, starts=starts)
            assessment = assess(inputs, snapshot, store.record, store.status, nonce, desired, noted)
    except OSError as error:
        failure = failed_on_disk("the host could not be read", error)
        raise UnservableHostError(failure.message, f"{failure.hint}; nothing was touched") from error
    return Inspection(Run(host, store, request.settings, emit, tally or Tally()), inputs, assessment)


def _with_moved_kubelet(request: Request, record: Record, files: Files) -> Settings:
    """A removal, and a run without a payload, serve the kubelet that we have moved, even if the settings name
    another unit: by hand they are easily forgotten. Without a record, the drop-in itself tells."""
    settings, units = request.settings, paths.drop_in_units(record.owned or _drop_ins(files))
    of_settings = request.mode is not Mode.REMOVE and request.payload is not None
    if of_settings or not units or settings.kubelet.unit in units:
        return settings
    return settings.model_copy(update={"kubelet": settings.kubelet.model_copy(update={"unit": units[0]})})


def _drop_ins(files: Files) -> Iterator[str]:
    """Our drop-ins, of whatever units."""
    for directory in paths.drop_in_directories(paths.AUTO):
        for name in files.list(directory):
            path = f"{directory}/{name}/{paths.DROP_IN_NAME}"
            if is_ours(files.state(path), ()):
                yield path


def assess_good(
    request: Request, host: Host, emit: Emit = silent, tally: Tally | None = None, probed: Probed = Probed.ALL
) -> Inspection | None:
    """What would repair the last good generation. None if there is none, if its content is lost, or if a
    person holds kubelet."""
    consent = replace(request.consent, take_over=False)
    asked = replace(request, payload=None, configs=None, inspect=True, consent=consent)
    found = assess_host(asked, host, emit, tally, probed)
    record, snapshot = found.run.store.record, found.assessment.snapshot
    held = is_operators(snapshot.hold)
    lost = record.good is None or lost_files(record, snapshot)
    return None if held or lost else found


def _consider_earlier(
    request: Request, host: Host, store: RecordStore, snapshot: HostSnapshot
) -> tuple[HostSnapshot, tuple[Finding, ...]]:
    """The snapshot with which the run continues, and the findings about another installer's work, if any."""
    if not may_be_earlier(snapshot, store.record):
        return snapshot, ()
    from installer.node.takeover import consider  # late: most nodes have none

    def look(record: Record) -> HostSnapshot:
        return take_snapshot(host, snapshot.machine, request.settings, record)

    return consider(host.files, request, store, snapshot, look)


def _forgotten_configs(request: Request, record: Record, host: Host) -> list[str]:
    """The configs that this node was installed with, if none are given now: the policy would become none."""
    if request.configs is not None or request.default_configs or request.mode is Mode.REMOVE:
        return []
    good = good_desired(record, host.files) or Desired()
    kept = {file.path: file.content for file in good.files if file.path in paths.CONFIG_FILES}
    fallback = kept.get(paths.FALLBACK_CONFIG)
    if isinstance(fallback, bytes) and without_header(fallback) == DEFAULT_FALLBACK:
        del kept[paths.FALLBACK_CONFIG]
    return list(kept)


def _configs_missing(found: list[str], record: Record) -> InvalidInputError:
    last = record.asked.get("configs", "")
    again = f"--configs {shlex.quote(last)}" if last and is_roots_own(last) else "--configs"
    return InvalidInputError(
        [f"--configs is missing: this node was installed with configs ({', '.join(found)})"],
        f"give the same directory again with {again} or, if you want the policy none, --default-configs; "
        "nothing was touched",
    )


def _check_repairable(request: Request, record: Record) -> None:
    """A run without a payload repairs what is installed, and can do nothing else. Raises
    InvalidInputError."""
    given = (request.configs, "--configs"), (request.default_configs, "--default-configs")
    needs = [option for asked, option in (*given, (request.consent.retry, "--retry")) if asked]
    if record.good is None or takes_over(record):
        raise _payload_missing("no installation was completed here that could be repaired", record)
    if needs:
        raise _payload_missing(f"{needs[0]} needs one", record)


def _payload_missing(why: str, record: Record) -> InvalidInputError:
    hint = "--payload names the directory of the unpacked cri-resource-manager-<version>.<machine>.tar.gz"
    if (last := record.asked.get("payload")) and is_roots_own(last):
        hint = f"the last run had --payload {shlex.quote(last)}"
    return InvalidInputError([f"--payload is missing: {why}"], f"{hint}; nothing was touched")
