"""The pictures of the documentation are what the script draws, and pages show them."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
import yaml

from hack.pictures import CHARTS, PICTURES, icon, icon_address
from tests.lib.documents import PAGES, ROOT


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_what_the_script_draws_and_a_page_shows_it(name: str) -> None:
    drawn = PICTURES[name]()
    assert (ROOT / "docs" / name).read_text() == drawn
    root = ElementTree.fromstring(drawn)
    _, _, width, height = (int(each) for each in root.attrib["viewBox"].split())
    for box in root.iter("{http://www.w3.org/2000/svg}rect"):
        assert int(box.get("x", 0)) + int(box.attrib["width"]) <= width
        assert int(box.get("y", 0)) + int(box.attrib["height"]) <= height
    assert any(f"]({path}{name})" in page.read_text() for page in PAGES for path in ("", "docs/"))


def test_the_charts_have_the_icon_and_need_no_server_for_it() -> None:
    assert ElementTree.fromstring(icon()).attrib["viewBox"] == "0 0 96 96"
    for chart in CHARTS:
        assert yaml.safe_load(chart.read_text())["icon"] == icon_address()
