"""The pages of the documentation, and what stands in their sections."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
OPERATIONS = (ROOT / "docs/operations.md").read_text()
MONITORING = (ROOT / "docs/monitoring.md").read_text()
RUNBOOKS = (ROOT / "docs/runbooks.md").read_text()
ARCHITECTURE = (ROOT / "docs/architecture.md").read_text()
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "tests").rglob("README.md")])


def section(title: str, page: str = OPERATIONS) -> str:
    """The text of the page below the heading `title`, down to the next heading."""
    match = re.search(rf"(?ms)^#+ {re.escape(title)}$(.*?)(?=^#|\Z)", page)
    assert match, f"no section {title}"
    return match[1]


def yaml_block(text: str) -> str:
    match = re.search(r"(?ms)^```yaml\n(.*?)^```", text)
    assert match, "no block of YAML"
    return match[1]


def first_cells(text: str) -> list[str]:
    """What stands in backquotes in the first cell of each row of the tables in `text`."""
    cells = [row.split("|")[1] for row in text.splitlines() if row.startswith("|")]
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


def anchors(path: Path) -> set[str]:
    """The anchors that GitHub makes of the headings of a page."""
    titles = re.findall(r"(?m)^#+ (.*)$", re.sub(r"(?ms)^```.*?^```", "", path.read_text()))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
