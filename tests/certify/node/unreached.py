# ruff: noqa: E501
"""What the certificate of the node does not reach at its default bound, and why. A branch is named by its text, as
`--coverage` prints it."""

#: By the reason.
BRANCHES: dict[str, tuple[str, ...]] = {
    "A start of the proxy that a killed run has left in progress: a start of the world's proxy is done when its job is. tests/unit/test_slow_start.py tries it.": (
        "apply._Worker._restart_proxy: if self._limits.hanging and 0 < self._relay_deadline <= now:  # kubelet has hung all that time -> if not (leaving := self._leave()):",
        "apply._Worker._await_start: not called",
        "await_proxy.why_not_started: not called",
        'diff._diff_proxy: if awaited: -> reasons.insert(0, "it is still starting")',
        "plan._Builder.proxy_forward: if unit.awaited: -> yield Step(StepKind.AWAIT_START, unit.name, Part.PROXY)",
        "rollback.roll_back: if progress.cut_short and back.left_relay:  # it had less time than even the good proxy needs here -> failure = StepFailedError(failure.message, _SLOW, interfered=True)",
        "rollback.roll_back: elif progress.cut_short and not assessment.snapshot.kubelet.moves: -> failure = StepFailedError(failure.message, _hint_of_hanging(assessment), interfered=True)",
        "rollback._hint_of_hanging: not called",
        "snapshot._last_start: if socket is None or pid_file is None: -> seconds = pid_file.st_mtime - socket.st_mtime",
    ),
    "A link leads out of the host root, which only a root below / has: the adapter of files refuses it. tests/contract has it.": (
        "pinning.running_containers: except (OSError, InstallerError):  # unreadable, or not below the host root",
        "pinning.read_managers: except UnservableHostError:  # a link leads out of the host root, so kubelet could not read it either",
        "pinning.read_cache: except UnservableHostError:  # a link leads out of the host root, so the proxy could not read it either",
        "record.load_record: except UnservableHostError:  # a link that leads out of the host root",
        "snapshot._last_start: except UnservableHostError:",
        "snapshot._exists: except UnservableHostError:  # a link leads out of the host root, so none of our files can be there",
        "snapshot._read_small: except InstallerError:",
        "snapshot._unwritable: except UnservableHostError as error:",
        "snapshot._obstacle: except UnservableHostError as error:",
    ),
    "An answer between two calls of one step, where a run has no effect that a trouble could begin at. The suites `disk` and `misbehave` and the unit tests try it.": (
        'adoption._check_adoptable: for container, why in divide(containers, cache)[1]: -> message = f"{container.title} was created meanwhile and cannot be adopted: {why}"',
        "apply._Worker._check_pods: except (InstallerError, OSError) as error:",
        "apply._Worker._warn: not called",
        "await_kubelet.await_calm: except InstallerError:",
        "await_proxy.why_not_ready: if status.ready: -> reason = status.reason",
        "carry_out._finish_removal: except OSError as error:",
        "controls._list: except (InstallerError, OSError):",
        "controls.return_controls: except (InstallerError, OSError) as error:",
        "converge._verify: except (StepFailedError, InterruptedRunError):",
        'kubelet_strategy.effective: if unit.load_state != "loaded": -> return f"{unit.name} is {unit.load_state}"',
        'kubelet_strategy.effective: if unit.loaded_digest != desired.unit.unit_digest: -> return f"systemd has not loaded the current {desired.unit.unit_file}: daemon-reload required"',
        "snapshot._read_hold: return None",
    ),
    "Containers and configurations of more kinds: CRI-O's, one with CPUs of its own, one that was adopted and resized. The suites `policies` and `machine` and tests/unit/test_pinning.py have them.": (
        'adoption.raise_low: for one in low: -> now, data = host.cri.cgroup(one.container), {"id": one.container.id, "code": "weight-low"}',
        "adoption._keep_old: if kept is not None and parse_cache(kept).torn: -> files.remove(OLD_CACHE)",
        'adoption._requirements: if of("cpu_shares") > LOWEST: -> if of("memory_limit_in_bytes") > 0:',
        'adoption._requirements: if guaranteed: -> limits |= {"cpu": requests["cpu"]} if "cpu" in requests else {}',
        'assess._reduced_findings: for how in _reduced(facts): -> hint = "`install` with proxy.existingContainers: adopt, or with the policy none, gives it back"',
        'pinning.Reset.missing: if self.write.shares and now.is_lower_than(self.write.shares): -> has = f"cpu.weight is {now.weight}" if now.weight else f"cpu.shares are {now.shares}"',
        "pinning.Reset._differences: if self.write.cpus: -> if self.write.mems:",
        'pinning.Reset._differences: if self.write.shares: -> before = f"cpu.weight {now.weight}" if now.weight else f"{now.shares}"',
        "pinning._reset: if container.created is None and known.request is None and not (known.weighed or container.asked): -> if not container.pinned and not now.is_lowest:",
        "pinning._estimate: not called",
        "preflight_proxy.check_placed: if left: -> named = name_some(",
        "preflight_proxy.check_capacity: if requested > capacity: -> end",
        "preflight_proxy._cpus: except ValueError:",
    ),
    "What the tree of the world has not: owners, labels, a program's machine, a unit without a file; and a rename to another directory, which the power losses do not know.": (
        'diff._why_different: if (before.uid, before.gid) != (0, 0): -> return f"owner is {before.uid}:{before.gid}, not 0:0"',
        "kubelet_strategy._unreadable: not called",
        "ownership.RecordStore._set_aside: if kind in (Kind.DIRECTORY, Kind.OTHER):  # nothing can be written there -> self._files.make_directory(_EDITED, 0o700)",
        "preflight._check_machine: if payload and payload.machine and host and payload.machine != host: -> yield refusal(",
        'reconcile._warn_unlabelled: if unlabelled: -> more = f", and {len(unlabelled) - 1} more" if len(unlabelled) > 1 else ""',
    ),
    "Nobody can get there but by a mistake in this program: a generation that is no word, and a template without its line.": (
        'header.with_generation: if not re.fullmatch(r"[A-Za-z0-9-]+", generation): -> raise ValueError(f"not a generation: {generation!r}")',
        'header.with_generation: if count != 1: -> raise ValueError(f"{count} generation lines, not one")',
    ),
    "Earlier installations with ties to the proxy's unit, and a repair that nobody watches on a kubelet that cannot be served. The suite `takeovers` and tests/unit try them.": (
        "ownership.RecordStore.close_installed: if desired.proxy is None or not desired.proxy.generation: -> self.close_as_good()  # an earlier installation was repaired, which was good before",
        "takeover._without_proxy_unit: not called",
        "takeover._in_front: not called",
        "unattended._without_kubelet: not called",
    ),
}

#: Functions that no run calls: they read for people, and decide and change nothing.
FOR_PEOPLE = frozenset(
    {
        "history._entry",
        "history._time",
        "history.read_history",
        "history.read_past",
        "reconcile.inspect",
        "record.last_options",
    }
)


def unlisted(missed: list[str]) -> list[str]:
    """What is not reached, and has no reason."""
    known = _listed()
    return [each for each in missed if each not in known and each.partition(":")[0] not in FOR_PEOPLE]


def reached_of_listed(missed: list[str]) -> list[str]:
    """What is listed, though it is reached."""
    return sorted(_listed() - set(missed))


def _listed() -> set[str]:
    return {branch for branches in BRANCHES.values() for branch in branches}
