"""`report --output html` in a real browser: what a person sees and finds, by mouse and keyboard."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from installer.model.instant import plain_time
from installer.model.names import Mode
from installer.model.overview import (
    FleetInstallation,
    Generation,
    NodeHealth,
    NodeView,
    Overview,
    Progress,
    Rollout,
)
from installer.report.overview import render_page
from tests.lib.browser import PROGRAM, Browser

pytestmark = pytest.mark.skipif(not PROGRAM, reason="needs chromium")

NOW = 1_767_355_200.0
NASTY = "</script><img src=http://example.org/x onerror=alert(1)> `no space`"
SHOWN = "document.querySelector('#shown').textContent"
DIALOG = "document.querySelector('#node').open"
FIRST = "document.querySelector('#nodes .link').textContent"


def nodes() -> Iterator[NodeView]:
    for at in range(300):
        sick = at % 100 == 7
        health = NodeHealth.TROUBLE if sick else NodeHealth.WORKING if at > 250 else NodeHealth.WELL
        phase = "failed" if sick else "waiting" if at > 250 else "converged"
        changed = plain_time(NOW - 10 * at)
        yield NodeView(f"n{at}", health, NASTY if sick else "", phase=phase, changed=changed)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    begun = Generation(
        "0123456789abcdef",
        plain_time(NOW - 2000),
        ("n299",),
        ("n299",),
        {"n7": "no space"},
        plain_time(NOW - 1900),
    )
    rollout = Rollout("resources/installer", 300, 49, "a Friday", (("n260", plain_time(NOW)),), 3, (begun,))
    installed = FleetInstallation("resources", "installer", "installer", Mode.INSTALL, "image:1")
    order = list(NodeHealth)
    found = sorted(nodes(), key=lambda node: order.index(node.health))
    progress = Progress(49, 0, 0, 360, 490)
    path = tmp_path_factory.mktemp("page") / "fleet.html"
    path.write_text(
        render_page(Overview(plain_time(NOW), (installed,), tuple(found), 0, (rollout,), progress))
    )
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as found:
        yield found


def text(browser: Browser, selector: str) -> str:
    return str(browser.see(f"document.querySelector('{selector}').textContent"))


def test_a_person_sees_what_is_wrong_and_finds_why_with_the_keyboard(browser: Browser, page: Path) -> None:
    browser.open(page)
    assert text(browser, "#summary").startswith("STOPPED: planned work waits for an operator; 3 not ready")
    assert "360 per hour, about 8 min left" in text(browser, "#rollouts")
    assert "Failed on n7: no space" in text(browser, "#rollouts")
    assert browser.see("document.querySelectorAll('#nodes tr').length") == 200
    browser.press("/", *"n207")
    browser.wait(SHOWN, "1 of 300 nodes")
    browser.press("ArrowDown", "Enter")
    browser.wait(DIALOG)
    told = text(browser, "#node")
    assert "Why is n207 not ready?" in told
    assert NASTY in told
    assert "To do: fix what the reason names" in told
    assert "kubectl describe node n207" in told
    assert "| head -n 1) -- cri-resmgr-installer status" in told
    browser.press("Escape")
    browser.wait(DIALOG, False)
    browser.press("Escape", "Escape")
    browser.wait(SHOWN, "300 of 300 nodes")


def test_what_is_wrong_comes_first_and_the_runbook_can_be_read(browser: Browser, page: Path) -> None:
    browser.open(page)
    sections = browser.see("[...document.querySelectorAll('main > section')].map((each) => each.id).join()")
    assert str(sections).startswith("why,rollout,history")
    browser.see("document.querySelector('#groups .wide .link').click()")
    assert browser.see("document.querySelector('#runbook').open")
    assert text(browser, "#entry").startswith("Failed (exit 5)")
    browser.press("Escape")
    browser.wait("document.querySelector('#runbook').open", False)


def test_a_view_is_kept_in_the_address(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.see("document.querySelector('#groups .link').click()")
    browser.see("document.querySelector('[data-key=name] button').click()")
    browser.see("document.querySelector('[data-key=name] button').click()")
    assert (browser.see(SHOWN), browser.see(FIRST)) == ("3 of 300 nodes", "n207")
    browser.open(page, str(browser.see("location.hash"))[1:])
    assert (browser.see(SHOWN), browser.see(FIRST)) == ("3 of 300 nodes", "n207")
    assert browser.see("document.querySelector('[aria-sort=descending]').dataset.key") == "name"
    browser.open(page, "state=waiting&sort=nothing&group=99&q=%E0%A4&node=gone&since=never")
    assert browser.see(SHOWN) == "300 of 300 nodes"


def test_the_rollout_is_a_curve_that_can_be_read(browser: Browser, page: Path) -> None:
    browser.open(page, "since=rollout")
    assert text(browser, "#readout").startswith("201 of 300 nodes by")
    assert browser.see("document.querySelector('#plot').getAttribute('aria-label')").startswith("201 nodes")
    assert browser.see("document.querySelectorAll('#plot .mark').length") == 2


def test_it_is_readable_in_the_dark_and_asks_nobody(browser: Browser, page: Path) -> None:
    colors = set()
    for scheme in ("light", "dark"):
        feature = {"name": "prefers-color-scheme", "value": scheme}
        browser.call("Emulation.setEmulatedMedia", features=[feature])
        browser.open(page)
        colors.add(browser.see("getComputedStyle(document.body).backgroundColor"))
    assert len(colors) == 2
    assert {address.partition(":")[0] for address in browser.asked} == {"file"}
    assert browser.complaints == []
