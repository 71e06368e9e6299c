"""The pictures of the documentation are what the script draws, and pages show them."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from hack.pictures import PICTURES
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
