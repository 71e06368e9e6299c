"""Small wrong changes, each of which the certificate has to find."""

from __future__ import annotations

import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.certify.node.certify import all_jobs

_REPOSITORY = Path(__file__).parents[3]
_NOT_COPIED = {"installer", ".git", ".venv", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis"}


class Defect(NamedTuple):
    """In `module` below installer/, `old` becomes `new`. `only`: the ways of that bound in which it is looked
    for. With a bound of 2, rare ways have every cut, too."""

    name: str
    module: str
    old: str
    new: str
    only: str = "-> "
    every: int = 5
    bound: int = 1


DEFECTS = (
    Defect(
        "plan: kubelet moves before the proxy answers",
        "node/plan.py",
        "    steps += builder.kubelet_forward(answered=answered)\n",
        "    steps = [*builder.kubelet_forward(answered=True), *steps]\n",
        "former: nothing -> install",
    ),
    Defect(
        "plan: kubelet moves while the hold is in force",
        "node/plan.py",
        "            if self._options.hold:\n",
        "            if self._options.hold and not answered:\n",
        "hold: ours",
        50,
    ),
    Defect(
        "plan: a removal leaves kubelet on the relay",
        "node/plan.py",
        "        if unit is not None and restarts:\n"
        "            yield from restart_kubelet_steps(unit.name)\n        yield from map(_file_step, late)",
        "        yield from map(_file_step, late)",
        "as usual -> removal",
        50,
    ),
    Defect(
        "plan: a removal stops the proxy under kubelet",
        "node/plan.py",
        "return (*builder.kubelet_back(), *builder.proxy_back(), *leftovers)",
        "return (*builder.proxy_back(), *builder.kubelet_back(), *leftovers)",
        "as usual -> removal",
        1,
    ),
    Defect(
        "diff: another generation is no reason for a restart",
        "node/diff.py",
        "    elif process.generation != unit.generation:\n        reasons.append",
        "    elif not process.generation:\n        reasons.append",
        "as usual -> upgrade",
    ),
    Defect(
        "diff: the text that systemd has loaded does not matter",
        "node/diff.py",
        "state.need_daemon_reload or state.loaded_digest != unit.unit_digest",
        "False",
        "former: nothing -> install",
        1,
    ),
    Defect(
        "diff: an edited file that a process was started from leaves it running",
        "node/diff.py",
        "        edited = (*drifted(files, _unread(unit, state, record)), ",
        "        edited = (*(), ",
        "proxy: restarted",
        50,
    ),
    Defect(
        "diff: a mode is no difference",
        "node/diff.py",
        "    if before.mode != file.mode:\n",
        "    if before.mode == 0:\n",
        "guard: mode",
        50,
    ),
    Defect(
        "record: the claim is not written",
        "node/ownership.py",
        "        self._save(replace(record, unproven=self._unproven(record)))\n",
        "        self.record = replace(record, unproven=self._unproven(record))\n",
        "former: nothing -> install",
    ),
    Defect(
        "record: what nothing proves is noted at the end only",
        "node/ownership.py",
        "        self._save(replace(record, unproven=self._unproven(record)))\n",
        "        self._save(record)\n",
        "record: missing",
        10,
    ),
    Defect(
        "record: objects that nothing refers to stay",
        "node/reconcile.py",
        "    unkept = unkept or run.store.has_strays or HEALTH_OWED in run.store.record.owed\n",
        "    unkept = unkept or HEALTH_OWED in run.store.record.owed\n",
        "as usual -> upgrade",
        1,
    ),
    Defect(
        "record: a reload that a killed run owes is forgotten",
        "node/assess.py",
        "    rewrote = RELOAD_OWED in record.owed\n",
        "    rewrote = False\n",
        "drop-in: edited, reloaded: yes -> install",
        1,
        2,
    ),
    Defect(
        "ownership: originals are not kept",
        "node/ownership.py",
        "            if file.path not in self.record.claims and before.kind is Kind.FILE:\n",
        "            if file.path in self.record.claims and before.kind is Kind.FILE:\n",
        "former: nothing -> install",
    ),
    Defect(
        "ownership: edits are overwritten",
        "node/ownership.py",
        "            if change.before.digest not in (*claim.wrote, claim.before.digest):\n",
        "            if not claim.wrote:\n",
        "edited",
        50,
    ),
    Defect(
        "ownership: the record goes first",
        "node/ownership.py",
        "        self._settle()\n        files.remove_tree(paths.OUR_RUNTIME)\n",
        "        files.remove(paths.RECORD)\n        files.remove_tree(paths.OUR_RUNTIME)\n",
        "-> removal",
        1,
    ),
    Defect(
        "apply: the hold is not ended",
        "node/file_steps.py",
        "    for path in paths.HOLDS:\n",
        "    for path in paths.HOLDS[1:]:\n",
        "hold: ours",
        50,
    ),
    Defect(
        "apply: kubelet's start is not announced",
        "node/known_pods.py",
        '        files.write(paths.KUBELET_START_OURS, b"", 0o644)\n',
        "",
        "former: nothing -> install",
        50,
    ),
    Defect(
        "apply: unknown containers are not adopted",
        "node/assess.py",
        '        adopts=runtime if adopts else "",\n',
        '        adopts="",\n',
        "former: nothing, containers: two -> ",
        50,
    ),
    Defect(
        "pinning: a removal leaves containers their CPUs",
        "node/pinning.py",
        "    wanted = _wanted(container, now, known, managers)\n",
        "    wanted = CpuResources(now.cpus, now.mems, now.shares)\n",
        "containers: two",
        50,
    ),
    Defect(
        "rollback: the good proxy's files stay replaced",
        "node/rollback.py",
        "        target = good_desired(run.store.record, run.host.files) or Desired()\n",
        "        target = assessment.plan.desired\n",
        "as usual -> bad upgrade",
    ),
    Defect(
        "rollback: no generation is blamed",
        "node/rollback.py",
        "    blamed = _blame(assessment, failure, run)\n",
        "    blamed = False\n",
        "as usual -> bad upgrade",
    ),
    Defect(
        "rollback: a first installation that failed leaves the record",
        "node/rollback.py",
        "        if target.proxy is None or is_earlier(run.store.record):\n            run.store.close",
        "        if is_earlier(run.store.record):\n            run.store.close",
        "former: nothing -> bad upgrade",
    ),
    Defect(
        "preflight: a directory in the way is noticed half-way",
        "node/preflight_files.py",
        "for change in going if change.before.obstacle)",
        "for change in going if change.before is None)",
        "directory",
        50,
    ),
    Defect(
        "files: content need not be durable",
        "host/files.py",
        "            self._kernel.sync(file.fileno())\n",
        "",
        "as usual -> upgrade",
    ),
    Defect(
        "files: names need not be durable",
        "host/files.py",
        "        disk.sync_directory(directory, self._kernel)\n\n    def remove(",
        "\n    def remove(",
        "as usual -> upgrade",
    ),
    Defect(
        "rescue: a person's hold is overwritten",
        "node/plan.py",
        "    if not is_operators(snapshot.hold):\n        steps",
        "    if reason:\n        steps",
        "-> rescue",
    ),
    Defect(
        "rescue: kubelet is left on the dead relay",
        "node/plan.py",
        "    elif leaves:\n",
        "    elif not leaves:\n",
        "-> rescue",
    ),
    Defect(
        "rollback: kubelet stays on the relay that did not come back",
        "node/rollback.py",
        "            _rescue_kubelet(assessment, run, limits, progress, back)\n",
        "            pass\n",
        "nature: ",
    ),
    Defect(
        "takeover: the proxy is stopped before kubelet's own file is repaired",
        "node/plan.py",
        "    steps = [*builder.base_repaired(), *builder.proxy_forward()]\n",
        "    steps = [*builder.proxy_forward(), *builder.base_repaired()]\n",
        "earlier -> ",
        1,
    ),
    Defect(
        "record: that kubelet has to become healthy is forgotten with a run that is killed",
        "node/ownership.py",
        "        if owed is None and begins:\n",
        "        if owed is None and begins and False:\n",
        "former: nothing, containers: two, nature: ill behind it -> install",
        1,
    ),
    Defect(
        "await_kubelet: a generation is blamed for somebody's drop-in",
        "node/await_kubelet.py",
        "            error.interfered = True\n            raise error\n",
        "            raise error\n",
        "former: nothing, containers: two -> install, in trouble",
        1,
    ),
    Defect(
        "reconcile: a run that was killed at its end is not closed while kubelet is ill",
        "node/reconcile.py",
        "(unkept and not mute)",
        "(unkept and not mute and snapshot.sound)",
        "containers: two, nature: ill -> upgrade",
        1,
        2,
    ),
)


class DefectError(Exception):
    """It cannot be tried."""


def why_lost(defect: Defect) -> str:
    """Why it cannot be tried any more: the program has changed, or no way of the certificate is of that name.
    Empty if it can be."""
    count = (_REPOSITORY / "installer" / defect.module).read_text().count(defect.old)
    if count != 1:
        return f"{defect.name}: {count} places in {defect.module} read {defect.old!r}"
    if not any(defect.only in name for name in _ways(defect.bound)):
        return f"{defect.name}: no way has {defect.only!r} in its description"
    return ""


@cache
def _ways(bound: int) -> tuple[str, ...]:
    return tuple(map(str, all_jobs(bound)))


def sow(defect: Defect, directory: Path) -> None:
    """A copy of the program with the defect, below an empty directory."""
    for place in _REPOSITORY.iterdir():
        if place.name not in _NOT_COPIED:
            (directory / place.name).symlink_to(place)
    shutil.copytree(_REPOSITORY / "installer", directory / "installer")
    module = directory / "installer" / defect.module
    module.write_text(module.read_text().replace(defect.old, defect.new))


def find(defect: Defect, directory: Path) -> str:
    """What the certificate says of it."""
    if lost := why_lost(defect):
        raise DefectError(lost)
    sow(defect, directory)
    options = ("--first", "--only", defect.only, "--every", str(defect.every), "--bound", str(defect.bound))
    done = subprocess.run(
        [sys.executable, "-m", "tests.certify", "node", *options],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if done.returncode not in (0, 1):
        raise DefectError(f"{defect.name}: {done.stdout}{done.stderr}")
    return done.stdout if done.returncode else ""
