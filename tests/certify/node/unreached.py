# ruff: noqa: E501
"""What the certificate of the node does not reach at its default bound, and why: branches of what decides and acts,
and whole modules about hosts of other kinds. A branch is named by its text, as `--coverage` prints it."""

#: By the reason.
BRANCHES: dict[str, tuple[str, ...]] = {
    "A port fails or hesitates: systemd, a disk, the runtime, a label. The suites `disk` and `misbehave` try it.": (
        "apply._Worker._move: except (InstallerError, OSError) as error:",
        "apply._Worker._restart_proxy: if not (slow and (following := self._leave())): -> return following",
        'kubelet_link.move: if host.clock.monotonic() > deadline: -> why = "it does not connect" if kubelet.linked else "it has not been started with our link"',
        "kubelet_link.move: if process is not None and kubelet.linked: -> host.clock.sleep(_POLL)",
        'kubelet_link.move: if marked and relay and not host.cri.answers(endpoint, HURRIED_SECONDS): -> why = "the relay stopped answering"  # and the guard has let kubelet leave',
        "rescue.hold_kubelet: except InstallerError as error:",
        "rescue.restart_proxy: except OSError as error:",
        "apply._Worker._check_pods: except (InstallerError, OSError) as error:",
        "apply._Worker._warn: not called",
        "apply._Worker._await_relay: if not self._relay_answers(): -> self._check_steady(unit)",
        "await_kubelet.await_calm: except InstallerError:",
        "await_kubelet.KubeletStart.check_effective: if kubelet is None: -> return",
        'await_kubelet.KubeletStart.check_effective: if wrong: -> raise self._failure(step.target, f"our lines have no effect: {wrong}")',
        "await_proxy.why_not_ready: if status.ready: -> reason = status.reason",
        "converge._claim: except OSError as error:",
        "converge._verify: if left: -> message = f\"the host still differs from what was applied: {'; '.join(left.describe())}\"",
        "converge._verify: except (StepFailedError, InterruptedRunError):",
        "file_steps.write_hold: except (InstallerError, OSError) as error:",
        'reconcile._seal_runtime_directory: if why: -> message = f"{paths.OUR_RUNTIME} {why}: only root may now, and what others had put there is deleted"',
        "reconcile._seal_runtime_directory: except OSError as error:",
        'reconcile._warn_unlabelled: if unlabelled: -> more = f", and {len(unlabelled) - 1} more" if len(unlabelled) > 1 else ""',
        "rollback.roll_back: if unit: -> failure = _with_causes(failure, assessment, progress, run)",
        "rollback.roll_back: if after.runtime and not after.kubelet_unwell and after.as_before: -> return runtime_away(failure, second, after, journal)",
        "rollback.roll_back: if progress.cut_short and back.left_relay:  # it had less time than even the good proxy needs here -> failure = StepFailedError(failure.message, _SLOW, interfered=True)",
        "rollback._is_cache_unreadable: return False",
        "rollback._close: except OSError as error:",
        "rollback._blame: if runtime_error(run.host, assessment.base_endpoint): -> return False",
    ),
    "An earlier version, whose flag names the relay. tests/unit/test_before_the_link.py and test_takeover.py have it.": (
        "await_kubelet.KubeletStart._check_endpoint: if self._plan.desired.names_relay: -> right = kubelet.on_relay",
        "rollback.roll_back: elif progress.cut_short and not assessment.snapshot.kubelet.moves: -> failure = StepFailedError(failure.message, _HANGS, interfered=True)",
    ),
    "Kubelet leaves the relay if a start is slow: permits, a person's hold, and deadlines that have passed before.": (
        'apply._Worker._leave: if endpoint and not self._host.cri.answers(endpoint):  # no endpoint would be better -> endpoint, self._runtime_away = "", True',
        "apply._Worker._leave: if not endpoint: -> self._progress.cut_short = True",
        "relay_steps.check_restart: if restarts_left < 1: -> raise KubeletKeptError(",
        'apply._Worker._check_weights: if self._late == _ADOPTIONS: -> message = f"new containers keep being created outside the proxy: {lost[0].how}"',
        "apply._Worker._restart_proxy: if self._limits.hanging and 0 < self._relay_deadline <= now:  # kubelet has hung all that time -> if not (leaving := self._leave()):",
        "apply._Worker._restart_proxy: if self._host.systemd.unit(step.target).restarts_itself: -> self._stop(step)  # else a restart by systemd would use up the announcement",
        "apply._Worker._leave: if not self._limits.cuts_short: -> return ()",
        "apply._Worker._await_start: not called",
        "await_proxy.why_not_started: not called",
        "await_proxy.why_not_taken: for line in activity.logged: -> if host.systemd.unit(unit.name).main_pid != unit.main_pid:",
        "await_proxy.why_not_taken: if _REFUSED in line: -> for line in activity.logged:",
        'diff._diff_proxy: if awaited: -> reasons.insert(0, "it is still starting")',
        "plan._Builder.proxy_forward: if unit.awaited: -> yield Step(StepKind.AWAIT_START, unit.name, Part.PROXY)",
        'relay_steps.check_way_back: if held: -> raise KubeletKeptError(f"an operator still holds kubelet on its base endpoint: {held}")',
        'rollback.roll_back: kept = f", but {error.message}"',
    ),
    "No start of the certificate leads here yet.": (
        "assess._failed_before: if failed is None or not failed.made_with or settings_digest(facts.settings) in failed.made_with: -> return None",
        'assess._reduced_findings: for how in _reduced(facts): -> hint = "`install` with proxy.existingContainers: adopt, or with the policy none, gives it back"',
        "diff.diff: elif desired.proxy is None: -> return Changes(files, tuple(unit for unit in units if unit is not None))",
        'diff._why_different: if (before.uid, before.gid) != (0, 0): -> return f"owner is {before.uid}:{before.gid}, not 0:0"',
        "rollback._rescue_kubelet: if well and units.kubelet.on_relay and not moved_proxy and host.cri.answers(paths.RELAY_ENDPOINT): -> return  # the good proxy was never away",
        "apply._Worker._do: except InstallerError as error:",
        "apply._Worker._adopt: if not leaving: -> return (*leaving, step)",
        'apply._Worker._check_pods: if plan.harms or self._again == _AGAIN or not can_save(files): -> self._warn("pods-unknown", why)',
        'apply._Worker._await_job: if error.lost or self._host.systemd.unit(step.target).active_state != "deactivating": -> raise StepFailedError(',
        'assess._why_agent: if facts.forgets_agent: -> return "its agent is switched off, but the agent\'s last configuration is in force"',
        'await_kubelet.check_steady: if is_stopped(now): -> meanwhile = "somebody else stopped it"',
        'await_kubelet.check_steady: elif starts and not (stops or now.flapping) and now.n_restarts <= before.n_restarts: -> meanwhile = "somebody else restarted it"',
        "await_kubelet.KubeletStart._check_endpoint: if relay: -> raise error",
        'kept.check_kept: if file.path in lost and file.digest not in obtainable: -> hint = "a failed installation leaves kubelet on its base endpoint: a rollback is not possible"',
        'reconcile.reconcile: if assessment.as_installed: -> emit(Event("good.asked", f"{AS_GOOD}: {assessment.describe_installed}"))',
        "record.last_options: not called",
    ),
    "Kubelet is or falls ill, or another process answers in its place. The suite `misbehave` tries it.": (
        "await_kubelet.await_calm: if not awaited: -> if not told:",
        'await_kubelet.KubeletStart.wait: if unwell: -> raise self._failure(name, f"{self._limits.healthz_url} stopped being ok")',
        'await_kubelet.KubeletStart._check_relay: if not answers: -> raise self._failure(proxy.name, "the relay stopped answering under kubelet")',
        "await_kubelet.KubeletStart._check_endpoint: if desired is not None and not desired.unit.generation: -> return  # an earlier installation is back, whose relay may be in kubelet's configuration",
        'converge.limits_of: if snapshot.kubelet.ails(limits.kubelet_start) and not explained: -> limits = replace(limits, healthz_url="")',
        "converge.converge: if healthy and after.kubelet.unwell: -> if not progress.moved_kubelet:  # then somebody else may have",
        "reconcile._warn_of_health: if after.kubelet.foreign_healthz: -> message = \"another process answers on kubelet's healthz: kubelet's health is unknown\"",
        "rollback._plan_off_relay: if not changes.restarts(Part.KUBELET) and snapshot.kubelet.unwell: -> steps += restart_kubelet_steps(unit)",
        "rollback._blame: if run.host.healthz.ask(run.settings.kubelet.healthz_url, pid) is not Health.OK: -> return False",
    ),
    "Originals and the good generation are damaged or lost.": (
        "kept._with_content: for place in (kept, file.path): -> return replace(file, content=HostPath(kept))",
        "kept._with_content: if state.digest == file.digest: -> for place in (kept, file.path):",
        "kept.without_lost_originals: not called",
        "ownership.RecordStore.reconstruct: if everything and self.status is RecordStatus.OK: -> self._claim(self.there_still(), drop_ins)",
        "ownership.RecordStore.with_damage: if give_up: -> self.record = without_lost_originals(self.record, damaged)",
        "ownership.RecordStore._set_aside: if self._files.state(object_path(name)).kind is not Kind.FILE: -> continue",
        "ownership.RecordStore._set_aside: if kind in (Kind.DIRECTORY, Kind.OTHER):  # nothing can be written there -> self._files.make_directory(_EDITED, 0o700)",
    ),
    "Kubelets with the relay in their unit or configuration, or with ties to the proxy's unit. The suite `takeovers` tries them.": (
        "ownership.RecordStore.repairs: if content is None or state.digest not in (claim.before.digest, *claim.wrote): -> del owned[path]",
        "ownership.RecordStore.close_installed: if desired.proxy is None or not desired.proxy.generation: -> self.close_as_good()  # an earlier installation was repaired, which was good before",
        'takeover.repair_base: if text.path in sources and "ExecStart=" in after and _RUNTIME not in after: -> lost, after = _LOST, _APPENDED.sub(_in_front, after)',
        'takeover.ties_of: if line.key in _TIES and PROXY_UNIT in line.value.split(): -> yield f"{line.key}={PROXY_UNIT} in {text.path}"',
        'takeover._with_endpoint: if not line.lstrip().startswith(("#", ";")): -> for number, line in enumerate(lines):',
        "takeover._without_proxy_unit: not called",
        "takeover._in_front: not called",
        'takeover._required_by_link: if files.state(link).exists: -> yield f"the link {link}"',
        "takeover._exec_start: except ValueError:",
        'takeover._runtime: if wanted != "auto": -> return wanted',
        "takeover._taken_over: if not earlier.unit_file: -> return record  # ours is installed, or nothing serves the relay that the files name",
        "takeover._check_configs: if found and request.configs is None and not request.default_configs and not request.inspect: -> raise InvalidInputError(",
        'takeover._by_config: if process is None or process.flag("--container-runtime-endpoint") is not None: -> configured = replace(snapshot.base, texts=(), environment_files={})',
        "takeover._taken: if earlier.lost: -> yield warning(",
    ),
    "A signal, a second run at the same time, or what only shows and never runs.": (
        "reconcile.inspect: not called",
        'reconcile._beside: if not holder: -> message = f"another run is at work on this host: {holder}"',
        "record.load_record: except UnservableHostError:  # a link that leads out of the host root",
        "rollback._UnstoppableClock.sleep: except InterruptedRunError:",
        "rollback._UnstoppableClock.check: not called",
    ),
}

#: Of these, only how much is reached is counted.
MODULES: dict[str, tuple[str, ...]] = {
    "The other kinds of kubelet, and of units that others have written. The suites `kubelets` and `unitfiles` try them.": (
        "kubelet_command",
        "kubelet_endpoint",
        "kubelet_strategy",
        "ordering",
        "sandbox",
        "preflight_units",
    ),
    "What the proxy sets in the kernel and in containers, the pods of an API, adoption that fails. The suites `policies` and `machine` try it.": (
        "adoption",
        "controls",
        "known_pods",
        "pinning",
    ),
    "Refusals, and facts of hosts that the fake host does not vary; the unit tests have a case for each.": (
        "desired",
        "facts",
        "header",
        "preconditions",
        "preflight",
        "preflight_files",
        "preflight_proxy",
        "snapshot",
    ),
    "What is said about a run, and the daemon's own runs.": (
        "carry_out",
        "failure_report",
        "history",
        "inspection",
        "links",
        "unattended",
    ),
}


def unlisted(missed: list[str]) -> list[str]:
    """What is not reached, and has no reason."""
    modules = {name for names in MODULES.values() for name in names}
    known = _listed()
    return [each for each in missed if each not in known and each.partition(".")[0] not in modules]


def reached_of_listed(missed: list[str]) -> list[str]:
    """What is listed, though it is reached."""
    return sorted(_listed() - set(missed))


def _listed() -> set[str]:
    return {branch for branches in BRANCHES.values() for branch in branches}
