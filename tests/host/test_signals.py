"""R10, R11: one run at a time; a signal ends it between two steps, and nothing is undone for it."""

import signal

import pytest

from installer.model.names import Mode
from tests.faults.hosts import signals
from tests.faults.hosts.bench import Bench
from tests.faults.hosts.command import start_command
from tests.faults.hosts.ways import Way
from tests.lib.rules import rule

STRIDE = 7  # so that both signals come, and now and then twice
SEED = 1


@rule("R11")
@pytest.mark.parametrize("way", signals.WAYS, ids=[way.name.replace(" ", "-") for way in signals.WAYS])
def test_r11_a_signal_ends_the_run_between_two_steps_and_the_next_one_goes_on(bench: Bench, way: Way) -> None:
    tried = signals.at_each_step(bench, way, SEED, STRIDE, first=signals.WAYS.index(way))
    assert not tried.bad, "\n".join(tried.bad)


@rule("R10")
def test_r10_of_several_at_once_one_works_and_the_others_say_who(bench: Bench) -> None:
    tried = signals.several(bench, 2)
    assert not tried.bad, "\n".join(tried.bad)


@rule("R11")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_r11_a_run_that_waits_ends_at_once_when_asked_and_plan_needs_no_lock(
    bench: Bench, number: signal.Signals
) -> None:
    node = bench.node
    node.command.set(kubelet={"settleSeconds": 300})
    with start_command(node, Mode.INSTALL) as first:
        try:
            assert first.stdout is not None
            for line in first.stdout:
                if "restart kubelet.service" in line:
                    break
            assert str(first.pid) in node.run("install", code=75).err
            # It settles: what it has still to do then is in the plan.
            assert "check that the proxy knows all pods" in node.run("plan", code=3).out
            first.send_signal(number)
            assert first.wait(60) == 128 + number
        finally:
            first.kill()
    node.command.set()
    assert node.on_relay()
    node.run("install")
    node.expect_good()
    node.run("remove")
    node.expect_untraced()


@rule("R7")
def test_a_reader_that_goes_away_does_not_stop_an_installation(bench: Bench) -> None:
    """`install | head -1`: what nobody reads any more is dropped, and the run ends as it would have."""
    node = bench.node
    node.run("remove")
    with start_command(node, Mode.INSTALL) as run:
        assert run.stdout is not None
        assert run.stdout.readline()
        run.stdout.close()
        assert run.wait(180) == 0
    node.expect_good()
