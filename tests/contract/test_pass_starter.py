"""Where a pass is a child of the daemon, and the warnings about it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from installer.cli import main, passes
from installer.daemon.decision import Action, Order
from installer.daemon.pass_starter import PassStarter
from installer.daemon.transient import UNKNOWN_END, TransientService
from installer.errors import TIMEOUT, SystemdError
from installer.host.bus import SystemBus
from installer.host.files import RootedFiles
from installer.inputs.load import Request
from installer.model.daemon import Job
from installer.model.jsontext import to_json
from installer.model.paths import PASS_UNIT
from tests.lib.event_loop import Scene
from tests.lib.rules import rule

OURS, THEIRS = os.readlink("/proc/self/ns/mnt"), "mnt:[1]"
NO_NSENTER = "the host has no nsenter"
NO_BUS = "no system bus socket"


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    yield made
    assert not made.failures


@pytest.mark.parametrize(
    ("first", "ourselves", "nsenter", "said"),
    [
        ("", "", True, ""),  # no host at all
        (OURS, OURS, True, ""),  # on the host itself
        (THEIRS, "", True, ""),  # a host that is seen from outside
        (THEIRS, "mnt:[2]", True, ""),  # the same, and our number is another process's there
        (THEIRS, OURS, False, NO_NSENTER),
        (THEIRS, OURS, True, NO_BUS),
    ],
)
def test_a_pass_is_a_child_where_it_cannot_be_a_service(
    tmp_path: Path, scene: Scene, first: str, ourselves: str, nsenter: bool, said: str
) -> None:
    for number, namespace in ((1, first), (os.getpid(), ourselves)):
        if namespace:
            place = tmp_path / f"proc/{number}/ns"
            place.mkdir(parents=True)
            (place / "mnt").symlink_to(namespace)
    if nsenter:
        (tmp_path / "usr/bin").mkdir(parents=True)
        (tmp_path / "usr/bin/nsenter").touch()
    files, warnings = RootedFiles(tmp_path), list[str]()
    service = TransientService(SystemBus(files), PASS_UNIT)
    starter = PassStarter(scene.loop, files, service, lambda message, _hint: warnings.append(message))
    assert starter.unfinished() is None
    argv = (sys.executable, "-c", "print('one'); raise SystemExit(5)")
    job = Job(argv, scene.lines.append, scene.ends.append, 60.0, 60.0)
    run = starter.start(Order(Action.INSTALL, "a test"), job)
    assert scene.until(scene.ended)
    assert (scene.lines, scene.ends, run.outlives_us) == (["one"], [5], False)
    assert [warning.removeprefix("passes run inside this pod: ")[: len(said)] for warning in warnings] == [
        said
    ] * bool(said)


class BusySystemd(TransientService):
    """It is asked to start the service, and is too busy to answer in time; the service comes later."""

    asked = False

    def start(self, *_: object) -> None:
        self.asked = True
        raise SystemdError("systemd-run: Timeout was reached", name=TIMEOUT, lost=True)

    def exit_code(self) -> int | None:
        return 5 if self.asked else UNKNOWN_END


@rule("R11")
def test_a_pass_that_systemd_may_start_late_is_followed_instead_of_a_second_one(
    tmp_path: Path, scene: Scene
) -> None:
    for number, namespace in ((1, THEIRS), (os.getpid(), OURS)):
        place = tmp_path / f"proc/{number}/ns"
        place.mkdir(parents=True)
        (place / "mnt").symlink_to(namespace)
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/nsenter").touch()
    files = RootedFiles(tmp_path)
    service, warnings = BusySystemd(SystemBus(files), PASS_UNIT), list[str]()
    starter = PassStarter(scene.loop, files, service, lambda message, _hint: warnings.append(message))
    job = Job(("/bin/echo", "a child"), scene.lines.append, scene.ends.append, 60.0, 60.0)
    run = starter.start(Order(Action.INSTALL, "a test"), job)
    assert scene.until(scene.ended)
    assert (scene.lines, scene.ends, run.outlives_us, warnings) == ([], [5], True, [])


@rule("R4")
@pytest.mark.parametrize("action", [Action.RESTART_PROXY, Action.RESCUE, Action.HOLD, Action.INSTALL])
def test_invalid_settings_do_not_keep_kubelet_on_a_dead_relay(
    action: Action, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "settings.yaml"
    config.write_text("mode: away")
    carried_out = list[tuple[Action, str]]()
    monkeypatch.setattr(passes, "require_root", lambda: None)
    monkeypatch.setattr(passes, "install_signal_handlers", lambda: None)
    monkeypatch.setattr(passes, "build_host", lambda _root: None)

    def carry_out(order: Order, asked: Request, *_: object) -> None:
        carried_out.append((order.action, asked.settings.kubelet.unit))

    monkeypatch.setattr(passes, "carry_out", carry_out)
    order = Order(action, kubelet_unit="k.service")
    code = main([f"--config={config}", "--output=json", "pass", to_json(order)])
    assert (code, carried_out) == ((2, []) if action is Action.INSTALL else (0, [(action, "k.service")]))
