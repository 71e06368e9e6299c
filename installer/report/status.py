"""Shows the state of the host, unit by unit, against the desired state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TextIO

from installer.model.codes import Code
from installer.model.history import NO_PAST, Past
from installer.model.host import KubeletSnapshot, ProcessState, UnitState
from installer.model.jsontext import to_camel
from installer.model.names import Mode, spell
from installer.model.paths import HOLDS
from installer.model.plan import Assessment, Desired, describe_generation
from installer.report.planned import finding_lines, summarise_plan
from installer.report.terminal import BOLD, GREEN, RED, YELLOW, one_line, paint, pick, wants_color, write_json

_SCHEMA = 1
_NOTHING_INSTALLED = "no installation was completed here; to compare, give --payload and any --configs"
_AT_WORK = "an installation is being carried out here now"
_UNFINISHED = (
    "an installation was begun here and has not ended: `cri-resmgr-installer install` finishes it, "
    "`cri-resmgr-installer remove` takes it away"
)
_AS_INSTALLED = "compared with what was installed last, because no payload and configs were given"


def print_status(assessment: Assessment, output: str, stream: TextIO, past: Past = NO_PAST) -> int:
    """Write the status to `stream`; return the exit code: 0, or 3 where not converged or not healthy."""
    if output == "json":
        write_json(status_json(assessment, past), stream)
    else:
        stream.write(render_status(assessment, past, wants_color(stream)))
    return 0 if is_well(assessment) else 3


def is_well(assessment: Assessment) -> bool:
    """Whether the host is converged and healthy, and nothing prevents us from serving it."""
    return is_converged(assessment) and not assessment.plan.refusals and not complaints(assessment)


def is_converged(assessment: Assessment) -> bool:
    """Whether nothing differs from what was asked for or installed; False where neither is known."""
    return not assessment.plan.steps and (bool(assessment.plan.desired.files) or not assessment.as_installed)


def complaints(assessment: Assessment) -> list[str]:
    """Return what is not healthy, whether or not a file or a unit differs."""
    snapshot, installed = assessment.snapshot, assessment.plan.mode is Mode.INSTALL
    found = []
    if installed and snapshot.proxy.starting:
        found.append("the proxy is still starting, and its relay does not answer yet")
    elif installed and not snapshot.proxy.unit.running:
        found.append(f"{snapshot.proxy.unit.name} is not running")
    elif installed and not snapshot.proxy.relay_answers:
        found.append("the relay does not answer")
    if snapshot.kubelet.foreign_healthz:
        found.append(f"a process other than {snapshot.kubelet.unit.name} answers on its healthz")
    elif not snapshot.kubelet.healthy:
        found.append(f"{snapshot.kubelet.unit.name} is not healthy")
    if installed and not snapshot.kubelet.on_relay:
        found.append("kubelet runs on its base endpoint, not on the relay")
    if not installed and snapshot.kubelet.on_relay:
        found.append("kubelet still runs on the relay")
    return found


def render_status(assessment: Assessment, past: Past, color: bool = False) -> str:
    """Return the text for people; the last line is the verdict."""
    snapshot, plan = assessment.snapshot, assessment.plan
    wanted_proxy, wanted_kubelet = _wanted(plan.desired)
    known = bool(plan.desired.files) or plan.mode is Mode.REMOVE or not assessment.as_installed
    lines = [
        _unit_line(snapshot.proxy.unit, color),
        f"    relay: {'answers' if snapshot.proxy.relay_answers else 'does not answer'}",
        *_proxy_lines(assessment, past),
        *_generation_lines(snapshot.proxy.process, wanted_proxy, known),
        _unit_line(snapshot.kubelet.unit, color),
        f"    endpoint: {'relay' if snapshot.kubelet.on_relay else 'base endpoint'}",
        f"    health: {_health(snapshot.kubelet)}",
    ]
    if past.guard:
        earlier = "" if _decided_this_start(assessment, past) else ", for an earlier start"
        lines.append(f"    guard: {one_line(past.guard)}  ({one_line(past.guard_time)}{earlier})")
    lines += _generation_lines(snapshot.kubelet.process, wanted_kubelet, known)
    lines += _file_lines(assessment)
    lines += _installed_lines(assessment, past)
    if past.last_change is not None:
        lines.append(f"last change: {one_line(f'{past.last_change.time} {past.last_change.describe}')}")
    if assessment.snapshot.hold:
        reason = one_line(assessment.snapshot.hold)
        when = " from its next start on" if snapshot.kubelet.on_relay else ""
        held = f"kubelet is held on its base endpoint{when}: {reason}"
        lines.append(paint(held, YELLOW, color))
        end = f"`cri-resmgr-installer install`, or `rm -f {' '.join(HOLDS)}` for kubelet's next start"
        lines.append(f"    hint: to end the hold: {end}")
    if assessment.remembered_failure:
        reason = one_line(assessment.remembered_failure)
        lines.append(paint(f"this generation failed here and is not retried: {reason}", YELLOW, color))
    for finding in plan.findings:
        lines += finding_lines(finding, paint(f"{finding.severity}:", YELLOW, color))
    lines.append(paint(verdict(assessment), GREEN if is_well(assessment) else RED, color))
    return "\n".join(lines) + "\n"


def _wanted(desired: Desired) -> tuple[str, str]:
    """Return the generations that the proxy and kubelet should run; empty: none."""
    proxy, kubelet = desired.proxy, desired.kubelet
    return proxy.generation if proxy else "", kubelet.unit.generation if kubelet else ""


def verdict(assessment: Assessment) -> str:
    """Return the status in one line."""
    plan = assessment.plan
    if is_well(assessment):
        return "converged and healthy"
    if assessment.as_installed and not plan.desired.files:
        if assessment.unfinished:
            at_work = any(finding.code == Code.RUN_AT_WORK for finding in plan.findings)
            return _AT_WORK if at_work else _UNFINISHED
        exists = assessment.snapshot.proxy.unit.exists
        return _NOTHING_INSTALLED if exists else "not installed"
    said = [f"not converged: {summarise_plan(plan)}"] if plan.steps else []
    said += [f"not healthy: {complaint}" for complaint in complaints(assessment)]
    said += [f"refused: {refusal.code}" for refusal in plan.refusals]
    return "; ".join(said)


def _proxy_lines(assessment: Assessment, past: Past) -> Iterator[str]:
    if assessment.policy is not None:
        yield f"    policy: {one_line(assessment.policy.describe)}"
    if endpoint := _runtime_endpoint(assessment):
        yield f"    runtime endpoint: {one_line(endpoint)}"


def _installed_lines(assessment: Assessment, past: Past) -> Iterator[str]:
    """What is installed, what was given if that is something else, and what was compared."""
    installed, wanted = assessment.installed, assessment.plan.desired.generation
    if installed:
        version = assessment.installed_version or _noted_version(past, installed)
        yield f"installed: {one_line(describe_generation(installed, version))}"
    if wanted and wanted != installed:
        yield f"given: {one_line(describe_generation(wanted, _payload_version(assessment, past)))}"
    if wanted and assessment.as_installed:
        yield _AS_INSTALLED
    if assessment.asked:
        yield f"the last run by hand had {one_line(spell(assessment.asked))}"


def _decided_this_start(assessment: Assessment, past: Past) -> bool:
    """Whether the guard's last decision was for the running kubelet. Without our drop-in there is none."""
    return past.guard_invocation == assessment.snapshot.kubelet.unit.invocation_id


def _runtime_endpoint(assessment: Assessment) -> str:
    """Return where the running proxy finds the runtime, else where it would."""
    process = assessment.snapshot.proxy.process
    return (process.flag("--runtime-socket") if process else "") or assessment.base_endpoint


def _payload_version(assessment: Assessment, past: Past) -> str:
    """Return the payload's own version, else that of the last installation in the journal."""
    return assessment.payload_version or _noted_version(past, assessment.plan.desired.generation)


def _noted_version(past: Past, generation: str) -> str:
    change = past.last_change
    return change.payload_version if change and change.generation == generation else ""


def _health(kubelet: KubeletSnapshot) -> str:
    if kubelet.foreign_healthz:
        return "unknown: another process answers on its healthz"
    return "ok" if kubelet.healthy else "not ok"


def _unit_line(unit: UnitState, color: bool) -> str:
    name = paint(unit.name, BOLD, color)
    if not unit.exists:
        return f"{name}: not found"
    said = [f"{unit.active_state} ({unit.sub_state})"]
    said += [f"pid {unit.main_pid}"] if unit.main_pid else []
    said += [unit.unit_file_state] if unit.unit_file_state else []
    said += [f"restarted by systemd {unit.n_restarts} times"] if unit.n_restarts else []
    said += [f"result {unit.result}"] if unit.result not in ("success", "") else []
    said += ["daemon-reload required"] if unit.need_daemon_reload else []
    return f"{name}: {', '.join(said)}"


def _generation_lines(process: ProcessState | None, wanted: str, known: bool) -> Iterator[str]:
    """Of what a unit runs that differs. `known`: whether it is known what should run."""
    running = process.generation if process is not None else ""
    if running != wanted and known:
        started = f"started with digest {one_line(running)}" if running else "not started by this installer"
        yield f"    {started} (expected {f'digest {wanted}' if wanted else 'none'})"


def _file_lines(assessment: Assessment) -> Iterator[str]:
    if assessment.unfinished:
        yield f"files of an installation that has not ended: {len(assessment.unfinished)}"
        yield from (f"    {one_line(path)}" for path in assessment.unfinished)
        return
    changes = assessment.plan.changes.files
    changed = {change.path for change in changes}
    correct = sum(file.path not in changed for file in assessment.plan.desired.files)
    yield f"files: {correct} correct, {len(changes)} different"
    for change in changes:
        yield f"    {one_line(change.path)}: {one_line(change.why)}"
    for unit in assessment.plan.changes.units:
        for why in unit.why:
            yield f"{one_line(unit.name)} needs a reload or restart: {one_line(why)}"


def status_json(assessment: Assessment, past: Past) -> dict[str, object]:
    """Return the status for machines; the keys are stable. `hold`, `rememberedFailure` and `pause` are
    empty, `policy` and `lastChange` null where there is none. `thisStart`: whether the guard decided for
    the running kubelet. `installed`: the last good generation. `asInstalled`: compared with that, because
    payload or configs were not given. `unfinished`: files of an installation that has not ended."""
    snapshot, plan = assessment.snapshot, assessment.plan
    wanted_proxy, wanted_kubelet = _wanted(plan.desired)
    return {
        "schema": _SCHEMA,
        "converged": is_converged(assessment),
        "healthy": not complaints(assessment),
        "complaints": complaints(assessment),
        "summary": summarise_plan(plan),
        "relayAnswers": snapshot.proxy.relay_answers,
        "kubeletOnRelay": snapshot.kubelet.on_relay,
        "kubeletHealthy": snapshot.kubelet.healthy,
        "hold": assessment.snapshot.hold,
        "rememberedFailure": assessment.remembered_failure,
        "units": [
            _unit_json(snapshot.proxy.unit, snapshot.proxy.process, wanted_proxy),
            _unit_json(snapshot.kubelet.unit, snapshot.kubelet.process, wanted_kubelet),
        ],
        "differences": [pick(change, "path part verb why") for change in plan.changes.files],
        "findings": to_camel(plan.findings),
        "policy": assessment.policy and pick(assessment.policy, "name source pending"),
        "runtimeEndpoint": _runtime_endpoint(assessment),
        "payloadVersion": _payload_version(assessment, past),
        "pause": snapshot.pause,
        "guard": {
            "time": past.guard_time,
            "decision": past.guard,
            "thisStart": bool(past.guard) and _decided_this_start(assessment, past),
        },
        "lastChange": to_camel(past.last_change),
        **pick(assessment, "as_installed installed installed_version"),
        "unfinished": assessment.unfinished,
    }


def _unit_json(unit: UnitState, process: ProcessState | None, wanted: str) -> dict[str, object]:
    names = "name load_state active_state sub_state unit_file_state main_pid"
    return {
        **pick(unit, f"{names} result invocation_id need_daemon_reload"),
        "restarts": unit.n_restarts,
        "generation": process.generation if process is not None else "",
        "wantedGeneration": wanted,
    }
