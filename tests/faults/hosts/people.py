"""What people other than the operator, and accidents, do to the node of a random life."""

from __future__ import annotations

import json
import posixpath
from pathlib import Path

from installer.model.names import Mode
from installer.model.paths import RECORD
from tests.faults.hosts.ground import Edit
from tests.faults.hosts.life import Life
from tests.faults.hosts.lifemodel import (
    CACHE,
    DROP_INS,
    EXTRA,
    FORCE,
    MASK,
    OUR_DROP_INS,
    PAUSE,
    Asked,
)
from tests.host.flavours import NEW_FLAG, UNIT_FILE
from tests.host.mortal import Instant
from tests.host.node import DROP_IN, GUARD, KUBELET_ENVIRONMENT, OURS, PROXY
from tests.lib.throwaway.kubelet import UNIT, running_arguments


class People:
    """Each tells the life's model what it has done."""

    def __init__(self, life: Life) -> None:
        self._life = life

    def in_place(self) -> list[str]:
        """The files of ours that lie there as files."""
        life = self._life
        found = [path for path in (*OURS, OUR_DROP_INS[1], FORCE, EXTRA) if path not in life.foreign]
        places = ((path, life.node.path(path)) for path in found)
        return [path for path, place in places if place.is_file() and not place.is_symlink()]

    def edit(self, edit: Edit, finish: bool) -> None:
        """Kubelet's owner writes a file of theirs, and reloads and restarts, or has not yet done so."""
        life = self._life
        place = life.node.path(edit.path)
        if not place.parent.exists():
            place.parent.mkdir()
            life.note(posixpath.dirname(edit.path))
        place.write_text(edit.text)
        life.note(edit.path)
        if edit.of_unit:
            life.since.reload_pending = not finish
            life.since.base_edited = True
        if finish:
            life.host.systemctl("daemon-reload")
            life.since.reload_pending = False
            life.restart(UNIT)
            if not edit.of_unit:
                assert (NEW_FLAG in running_arguments(life.host)) == (NEW_FLAG in edit.text), "of their flags"

    def wipe(self) -> None:
        """As gardener-node-agent does it: the whole directory goes, and kubelet restarts."""
        life = self._life
        life.host.run("rm", "-rf", DROP_INS)
        life.ground.lay_drop_ins()
        life.note(DROP_INS)
        life.since.drifted = life.since.base_edited = True
        life.since.reload_pending = False
        life.since.edits.pop(DROP_IN, None)
        life.since.in_the_way = [path for path in life.since.in_the_way if path != DROP_IN]
        life.host.systemctl("daemon-reload")
        life.restart(UNIT)
        assert life.node.path(OUR_DROP_INS[1]).is_file() or not life.ground.on_relay()

    def stop_kubelet(self) -> None:
        """Somebody works on kubelet, and will start it again; or that is now."""
        life = self._life
        if life.since.stopped:
            life.restart(UNIT)
        else:
            life.host.systemctl("stop", UNIT)
            life.since.stopped = True

    def mask_kubelet(self) -> None:
        """Somebody wants kubelet not to start, or tries to: where its unit lies in /etc, systemd refuses."""
        life = self._life
        life.host.systemctl("mask", UNIT, check=False)
        life.note(UNIT_FILE)

    def pause(self) -> None:
        """Somebody wants to be alone with the node, or not any more."""
        life = self._life
        place = life.node.path(PAUSE)
        if not place.parent.exists():
            place.parent.mkdir()
            life.note(posixpath.dirname(PAUSE))
        if life.paused:
            place.unlink()
        else:
            place.touch()
        life.paused = not life.paused
        life.note(PAUSE)

    def put(self, path: str) -> None:
        """Before us, somebody has something of their own where ours would be."""
        life = self._life
        place = life.node.path(path)
        life.host.run("mkdir", "-p", str(Path(path).parent))
        place.write_text(f"# somebody else's {path}\n")
        place.chmod(0o640)
        life.host.run("chown", "12:12", path)
        life.foreign.append(path)
        for one in [*reversed(Path(path).parents), Path(path)]:
            if len(one.parts) > 2 and one != Path("/etc/default"):
                life.note(str(one))

    def drift(self, path: str, how: str, reload: bool) -> None:
        """Somebody does something to a file of ours."""
        life = self._life
        place, since = life.node.path(path), life.since
        since.drifted = True
        since.edits.pop(path, None)
        if how in ("edit", "empty", "link", "mask", "directory") or path == EXTRA:
            since.proxy_edited |= path not in (GUARD, *OUR_DROP_INS, KUBELET_ENVIRONMENT)
        if how == "chmod":
            place.chmod(0o600)
        elif how == "chown":
            life.host.run("chown", "12:12", path)
        elif how in ("edit", "empty"):
            text = f"# somebody's {path}, {len(life.story)}\n" if how == "edit" else ""
            place.write_text(text)
            since.edits[path] = text
        else:
            place.unlink()
        if how in ("link", "mask"):
            place.symlink_to("/srv/somewhere" if how == "link" else "/dev/null")
        elif how == "directory":
            place.mkdir()
            since.in_the_way.append(path)
        if reload:
            life.host.systemctl("daemon-reload")

    def kill(self, mode: Mode, asked: Asked, instant: Instant) -> None:
        """A pass dies at that instant, if it comes so far."""
        life = self._life
        life.ask(asked)
        may_refuse = life.may_refuse()
        ended = life.run(mode, instant)
        assert ended.how in ["killed", "changed", "nothing"] + ["UnservableHostError"] * may_refuse, ended
        if ended.how != "UnservableHostError":
            life.since.unknown = True
            if mode is Mode.REMOVE:
                life.converged = None
                if not life.node.path(RECORD).exists():
                    life.keep_directories()

    def command_proxy(self, verb: str) -> None:
        """Somebody thinks that the proxy is theirs to command."""
        life = self._life
        life.host.systemctl(*verb.split(), PROXY, check=False)
        life.since.proxy_started |= verb in ("stop", "restart")
        life.note(MASK)
        life.since.drifted = True

    def be_the_agent(self) -> None:
        """The cluster's agent sends a configuration, or had done so before it was switched off."""
        life = self._life
        cache = life.node.path(CACHE)
        if cache.exists():
            agents = {"NodeName": "node", "Data": {"policy": "Active: none\n"}}
            cache.write_text(json.dumps({**json.loads(cache.read_text()), "Cfg": agents}))
            life.since.agent_goes = life.asked.forgets_agent

    def boot(self, cut: bool) -> None:
        """R12: no installer is there to help."""
        life = self._life
        clean = life.is_clean()
        life.kill_watcher()
        if life.ground.is_masked():
            life.unmask()
        if cut:
            life.host.kill()
        else:
            life.host.poweroff()
        life.host.boot(wait=False)
        life.since.reload_pending = life.since.stopped = False
        life.since.proxy_started = life.since.kubelet_started = True
        life.ground.wait_healthy()
        life.since.pod_beside = not life.ground.run_containers_anew()
        life.note(MASK)
        if life.ground.on_relay():
            assert life.ground.relay_answers(), "R12: kubelet has started on a relay that does not answer"
        elif clean:
            raise AssertionError(f"R12: on its base:\n{life.host.journal(UNIT)[-2000:]}")
