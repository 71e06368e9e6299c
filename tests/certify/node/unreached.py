# ruff: noqa: E501
"""What the certificate of the node does not reach at its default bound, and why. A branch is named by its text, as
`--coverage` prints it."""

#: By the reason.
BRANCHES: dict[str, tuple[str, ...]] = {
    "It takes two things in one run that go wrong, or a person who intervenes in one that fails: the certificate has one at a time. tests/unit/test_relay_steps.py, test_reconcile.py, test_blame.py, test_rollback_report.py and test_failed_rollback.py try them.": (
        "proxy_start.ProxyStart.restart: if self.limits.hanging and 0 < self._deadline <= self.host.clock.monotonic(): -> if not (leaving := self.leave()):",
        "await_kubelet.KubeletStart._check_endpoint: if proxy is not None: -> raise error",
        'failure_report._state: elif kubelet.foreign_healthz: -> found.append(f"{after.kubelet_unit} runs on {where}, and another process answers on its healthz")',
        "failure_report._state: elif kubelet.process is not None: -> found.append(",
        "relay_steps.check_restart: if restarts_left < 1: -> raise KubeletKeptError(",
        'relay_steps.check_way_back: if held: -> raise KubeletKeptError(f"an operator still holds kubelet on its base endpoint: {held}")',
        "rollback._plan_off_relay: if not changes.restarts(Part.KUBELET) and snapshot.kubelet.unwell: -> steps += restart_kubelet_steps(unit)",
        "rollback.roll_back: if cut_short and back.left_relay:  # it had less time than even the good proxy needs here -> failure = StepFailedError(failure.message, _SLOW, interfered=True)",
        'rollback.roll_back: kept = f", but {error.message}"',
        "rollback._with_causes: if meddled := tuple(_changed_by_others(assessment, run)): -> message += f\"; someone else has changed {', '.join(meddled)} during this run\"",
        "rollback._changed_by_others: if now != before.get(path, ABSENT) and not ours: -> yield path",
    ),
    "A job of ours that waits until its time is over: for another unit's, or somebody else's. tests/unit/test_slow_node.py tries both.": (
        "proxy_start.ProxyStart.restart: if stops or self.relay_answers() or not (leaving := self.leave()): -> return (*leaving, step)",
        'unit_jobs.await_job: if result == "timeout": -> unit = host.systemd.unit(step.target)',
        'unit_jobs._why_waiting: if unit.invocation_id == before: -> return "another unit\'s job came first", "`systemctl list-jobs` on the host may show it"',
    ),
    "Every file of the world is root's, as a host's are that nobody but root can write to: no test needs root for the certificate. tests/unit/test_diff.py tries other owners.": (
        'diff.why_different: if (before.uid, before.gid) != (0, 0): -> return f"owner is {before.uid}:{before.gid}, not 0:0"',
    ),
    "Nobody can get there but by a mistake in this program: a generation that is no word, and a template without its line. tests/unit/test_desired.py tries both.": (
        'header.with_generation: if count != 1: -> raise ValueError(f"{count} generation lines, not one")',
        'header.with_generation: if not re.fullmatch(r"[A-Za-z0-9-]+", generation): -> raise ValueError(f"not a generation: {generation!r}")',
    ),
    "A generation of an earlier version of ours, whose kubelet has the relay itself as its endpoint. tests/unit/test_before_the_link.py tries it.": (
        "await_kubelet.KubeletStart._check_endpoint: if self.plan.desired.names_relay: -> right = kubelet.on_relay",
    ),
    "It depends on a directory of the machine that runs the certificate, which only root could have written to. tests/unit/test_last_run.py tries it.": (
        'inspection._payload_missing: if (last := record.asked.get("payload")) and is_roots_own(last): -> hint = f"the last run had --payload {shlex.quote(last)}"',
    ),
    "Somebody edits kubelet's own files in the middle of a takeover, or nobody watches when one that failed is repaired. tests/unit/test_takeover.py, tests/faults/disks/test_takeover.py and the suite `takeovers` try it.": (
        "ownership.RecordStore.close_installed: if desired.proxy is None or not desired.proxy.generation: -> self.close_as_good()  # an earlier installation was repaired, which was good before",
        "ownership.RecordStore.repairs: if content is None or state.digest not in (claim.before.digest, *claim.wrote): -> del owned[path]",
    ),
    "Containers of CRI-O, which says nothing of how they were created, of the lowest weight, or with less than the policy in force may take. The suites `policies` and `machine`, tests/unit/test_pinning.py and test_adoption.py have them.": (
        'adoption._requirements: if of("cpu_shares") > LOWEST: -> if of("memory_limit_in_bytes") > 0:',
        'assess._reduced_findings: for how in _reduced(facts): -> hint = "`install` with proxy.existingContainers: adopt, or with the policy none, gives it back"',
        "pinning._reset: if container.created is None and known.request is None and not (known.weighed or container.asked): -> if not container.pinned and not now.is_lowest:",
    ),
    "A container that has too little weight before a run, because one that was killed has started a proxy that takes it: finer cuts reach it. tests/unit/test_adoption.py tries it.": (
        'adoption.raise_low: if one.container.id in complaints or (now is not None and now.is_lower_than(one.due)): -> emit(Event("pinning.reset", f"{one.how}, and had no more before this run: restored", data))',
    ),
    "It takes an answer that changes between two questions of one step, and back: the troubles of the certificate last. tests/unit/test_relay_steps.py, test_known_pods.py, test_lost_record.py and the suites `disk` and `misbehave` try them.": (
        "adoption.bring_back: if policy: -> host.files.write(paths.PROXY_CACHE, json.dumps(cache).encode(), host.files.state(OLD_CACHE).mode)",
        "adoption.forget_agent: if raw and not parse_cache(raw).torn: -> end",
        "apply._Worker._move: if to_relay and progress.proxy is not None and isinstance(error, StepFailedError): -> self._proxy.check_steady(progress.proxy)  # which then is the cause",
        "controls._list: except (InstallerError, OSError):",
        "known_pods._beside: if can_save(host.files) or not started or started.st_mtime > now + 1:  # `now`: whole seconds -> return started.st_mtime - _MADE, moved.st_mtime + _MADE if moved else inf",
        'kubelet_link.move: if marked and relay and not host.cri.answers(endpoint, HURRIED_SECONDS): -> why = "the relay stopped answering"  # and the guard has let kubelet leave',
        'kubelet_link.move: if now > deadline: -> why = "it does not connect" if kubelet.linked else "it has not been started with our link"',
        'kubelet_strategy.effective: if unit.load_state != "loaded": -> return f"{unit.name} is {unit.load_state}"',
        "ownership.RecordStore._set_aside: if self._files.state(object_path(name)).kind is not Kind.FILE: -> continue",
    ),
    "An error that this program does not foresee, which only a mistake in it raises. tests/unit/test_reconcile.py raises one in the middle of a plan.": (
        "apply._Worker._do: except Exception as error:  # must not leave the node half changed either",
    ),
    "A signal that ends a run while its last look at the host is under way, or a rescue while kubelet leaves: the certificate's signals come at effects and few questions. tests/unit/test_in_between.py sends both.": (
        "converge._verify: raise",
        "rescue.hold_kubelet: write_entry(host.journal, entry_of_hold(reason, describe_end(error), moved=moves))",
    ),
    "Nothing that kubelet asks the simulated relay is in flight, and no restart of its unit takes time. tests/unit/test_relay_steps.py has calls in flight, a kubelet that is being restarted, and a link that leads elsewhere again and again; tests/cluster/test_moves.py has a real kubelet's call.": (
        "kubelet_link.move: if draining and now < cut_at: -> deadline = now + TAKEN_UP",
        "kubelet_link.move: if process is not None and kubelet.linked: -> host.clock.sleep(_POLL)",
        "kubelet_link.move: if process.pid not in drained: -> elif not draining or now >= cut_at:",
    ),
    "A relay that is silent as soon as kubelet is to be moved to it by a run that has not looked whether it answers. tests/unit/test_relay_steps.py tries it.": (
        'apply._Worker._await_calm: if self._progress.proxy is not None: -> raise self._progress.failure(paths.PROXY_UNIT, "the relay stopped answering")',
    ),
    "A proxy that ends, or falls silent, while a run waits for its start, or for its answer to a signal: the simulated one is silent from its start on, or ends before the wait. tests/unit/test_apply.py, test_relay_steps.py and test_slow_node.py try it.": (
        'await_proxy.why_not_started: if not now.main_pid or now.main_pid != unit.main_pid: -> return "it ended"',
        'proxy_signal.why_not_taken: if asked - answered >= silence: -> return f"its relay does not answer, {asked - began:.0f} s after the signal", answered',
    ),
    "What answered during the whole run does not when it ends: the bus when a difference is to be explained, healthz when a generation may be to blame, the runtime when block I/O is given back. tests/unit/test_blame.py and tests/faults/disks/test_controls.py try it.": (
        "converge._why_unsteady: except InstallerError as error:  # the bus is lost",
        "rollback._blame: except (InstallerError, OSError):",
        "controls.return_controls: except (InstallerError, OSError) as error:",
    ),
    "systemd has loaded a line that starts another program than kubelet's unit does, and it is not ours. tests/unit/test_desired_kubelets.py tries it.": (
        "kubelet_endpoint._started_line: elif ours: -> at = line.index(launch.program) if launch.program in line else 0",
    ),
    "Two orders of units that lead to the same unit: no unit of the simulated node but kubelet's and the proxy's has an order. tests/unit/test_ordering.py tries it.": (
        "ordering._path: if other not in ways and len(ways) < _MOST: -> for other in following(name):",
    ),
    "A container whose creation does not tell kubelet's weight, and whose request the proxy has estimated. tests/unit/test_pinning.py tries it.": (
        "pinning._kubelets_shares: if created and _estimate(created) == request: -> return max(LOWEST, -(-(2 * request - 1) * 1024 // 2000))",
    ),
    "A removal beside a directory of programs that is mounted noexec. tests/unit/test_preflight.py tries it.": (
        "preflight_files.check_deletions: if place in places and why != Unwritable.NOEXEC: -> for place, why in sorted(probe.unwritable.items()):",
    ),
    "A proxy has served, and its socket or its pid file is gone, or is a link out of the host root. tests/unit/test_slow_start.py tries both.": (
        "snapshot._last_start: if socket is None or pid_file is None: -> return 0.0",
        "snapshot._last_start: except UnservableHostError:",
    ),
    "The good generation cannot be assessed either, where what is wanted is refused. tests/unit/test_picture.py tries it.": (
        "picture._refused: except InstallerError:",
    ),
    "Systemd has started the proxy of a good generation, and other inputs are refused. tests/unit/test_picture.py tries it.": (
        "picture._refused: if repair is None and good.assessment.unchecked and not seen.remembered: -> return replace(seen, due=True, repairs=True, unchecked=_last_start(good.assessment))",
    ),
}

#: Functions that no run calls: they read for people or for the daemon, and decide and change nothing.
FOR_PEOPLE = frozenset(
    {
        "history._entry",
        "history._time",
        "history.read_history",
        "history.read_past",
        "picture.Picture.is_clean",
        "picture.Picture.problem",
        "picture.Picture.repairs_first",
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
