"""Draws the pictures of the documentation: a node before and after, its states, and a rollout; and the icon
of the charts.

    .venv/bin/python -m hack.pictures     writes docs/*.svg except fleet.svg, and an icon into each Chart.yaml

Each has a white background of its own, so that a dark page shows it as a light one does. A unit test compares
the files with what this draws.
"""

from __future__ import annotations

import base64
import re
from pathlib import Path
from xml.sax.saxutils import escape

_TOP = Path(__file__).parents[1]
_DOCS = _TOP / "docs"
CHARTS = (_TOP / "charts/cri-resmgr-installer/Chart.yaml", _TOP / "templates/chart/Chart.yaml")
_BLUE, _ORANGE, _GREY, _GREEN, _RED = "#0b5cad", "#b45309", "#555", "#1a7f37", "#b42318"
_FILLS = {_BLUE: "#e8f1fb", _ORANGE: "#fdf1e3", _GREY: "#f3f3f3", _GREEN: "#e6f4ea", _RED: "#fdecea"}


class Picture:
    """An SVG that grows by boxes, arrows and text."""

    def __init__(self, title: str, width: int, height: int) -> None:
        self._lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            'font-family="sans-serif" font-size="13">',
            f"<title>{escape(title)}</title>",
            f'<rect width="{width}" height="{height}" rx="8" fill="white"/>',
        ]

    def text(
        self, x: int, y: int, text: str, colour: str = "#222", anchor: str = "start", size: int = 13
    ) -> None:
        looks = f'fill="{colour}" text-anchor="{anchor}" font-size="{size}"'
        self._lines.append(f'<text x="{x}" y="{y}" {looks}>{escape(text)}</text>')

    def box(self, x: int, y: int, width: int, height: int, colour: str, *lines: str) -> None:
        """The first line names the box."""
        self._lines.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" '
            f'fill="{_FILLS[colour]}" stroke="{colour}" stroke-width="1.5"/>'
        )
        top = y + height // 2 + 5 - 8 * (len(lines) - 1)
        for number, line in enumerate(lines):
            size, ink = (12, "#444") if number else (13, "#111")
            self.text(x + width // 2, top + 16 * number, line, ink, "middle", size)

    def arrow(self, *points: tuple[int, int], colour: str = _GREY, dashed: bool = False) -> None:
        """Along the points; the last stretch is horizontal or vertical."""
        path = "L".join(f"{x} {y}" for x, y in points)
        dashes = ' stroke-dasharray="6 4"' * dashed
        self._lines.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>')
        (x0, y0), (x, y) = points[-2:]
        dx, dy = (x > x0) - (x < x0), (y > y0) - (y < y0)
        left, right = (x - 9 * dx - 5 * dy, y - 9 * dy - 5 * dx), (x - 9 * dx + 5 * dy, y - 9 * dy + 5 * dx)
        self._lines.append(f'<path d="M{x} {y}L{left[0]} {left[1]}L{right[0]} {right[1]}Z" fill="{colour}"/>')

    def render(self) -> str:
        return "\n".join([*self._lines, "</svg>"]) + "\n"


def node() -> str:
    """A node before and after the installation."""
    picture = Picture("A node before and after the installation", 760, 250)
    picture.text(20, 48, "before", _GREY)
    picture.box(100, 20, 110, 46, _GREY, "kubelet")
    picture.arrow((210, 43), (576, 43))
    picture.box(580, 20, 160, 46, _GREY, "containerd", "or CRI-O")
    picture.text(20, 138, "after", _BLUE)
    picture.box(100, 110, 110, 46, _GREY, "kubelet", "+ 1 drop-in")
    picture.arrow((210, 133), (250, 133), colour=_BLUE)
    picture.box(254, 110, 90, 46, _BLUE, "link", "in /run")
    picture.arrow((344, 133), (388, 133), colour=_BLUE)
    picture.box(392, 110, 130, 46, _BLUE, "cri-resmgr", "places containers")
    picture.arrow((522, 133), (576, 133), colour=_BLUE)
    picture.box(580, 110, 160, 46, _GREY, "containerd", "or CRI-O")
    picture.arrow((299, 156), (299, 200), (660, 200), (660, 160), colour=_ORANGE, dashed=True)
    picture.text(479, 222, "while cri-resmgr cannot serve: no restart of kubelet", _ORANGE, "middle", 12)
    return picture.render()


def states() -> str:
    """What a node does, and what keeps it from that: phases, hold, pause, permit."""
    picture = Picture("The states of a node: phases, hold, pause, permit", 760, 342)
    picture.box(20, 44, 120, 46, _GREY, "starting", "first pass")
    picture.box(200, 44, 130, 46, _ORANGE, "waiting", "for a permit")
    picture.box(400, 44, 140, 46, _ORANGE, "converging", "or repairing")
    picture.box(610, 44, 130, 46, _GREEN, "converged", "pod is Ready")
    picture.arrow((140, 67), (196, 67))
    picture.arrow((330, 67), (396, 67))
    picture.text(363, 58, "permit", _GREY, "middle", 11)
    picture.arrow((540, 67), (606, 67))
    picture.arrow((80, 44), (80, 28), (470, 28), (470, 40))
    picture.text(270, 24, "a repair that restarts no kubelet", _GREY, "middle", 11)
    picture.arrow((675, 90), (675, 118), (470, 118), (470, 94))
    picture.text(572, 112, "drift, new inputs", _GREY, "middle", 11)
    picture.box(20, 164, 160, 62, _RED, "refused (exit 4)", "the node is not served", "nothing was touched")
    picture.box(205, 164, 160, 62, _RED, "failed (exit 5)", "the last good", "generation is back")
    picture.box(390, 164, 160, 62, _RED, "limited", "restarts of kubelet", "used up for an hour")
    picture.box(575, 164, 165, 62, _RED, "held", "kubelet is on its", "base endpoint")
    picture.arrow((440, 90), (440, 142), (100, 142), (100, 160), colour=_RED)
    picture.arrow((285, 142), (285, 160), colour=_RED)
    picture.arrow((440, 142), (470, 142), (470, 160), colour=_RED)
    picture.arrow((715, 90), (715, 160), colour=_RED)
    picture.text(708, 142, "dead relay, or a person", _RED, "end", 11)
    picture.text(
        20, 258, "Each state is left as soon as its cause is gone; a person's hold only by a person.", "#222"
    )
    picture.box(
        20,
        274,
        355,
        54,
        _BLUE,
        "pause (a person, on the node or its Node)",
        "nothing is changed, whatever the phase",
    )
    picture.box(
        390,
        274,
        350,
        54,
        _BLUE,
        "pause of a rollout (a person, on a Lease)",
        "no node gets a permit; repairs go on",
    )
    return picture.render()


def rollout() -> str:
    """How a generation goes through a fleet."""
    picture = Picture("A rollout: canaries, soaking, the rest with permits, and what stops it", 760, 230)
    picture.box(20, 30, 140, 62, _GREY, "apply", "a new image,", "config or setting")
    picture.arrow((160, 61), (206, 61))
    picture.box(210, 30, 150, 62, _ORANGE, "canaries", "labelled, or the first", "1 % that ask")
    picture.arrow((360, 61), (406, 61))
    picture.box(410, 30, 140, 62, _ORANGE, "watched", "soakSeconds", "(5 minutes)")
    picture.arrow((550, 61), (596, 61))
    picture.box(600, 30, 140, 62, _GREEN, "all others", "1 % at a time,", "by permits")
    picture.box(
        210,
        150,
        340,
        56,
        _RED,
        "stopped (circuit breaker)",
        "1 canary, or 1 % of the nodes, failed and went back",
    )
    picture.arrow((285, 92), (285, 146), colour=_RED)
    picture.arrow((480, 92), (480, 146), colour=_RED)
    picture.arrow((670, 92), (670, 178), (554, 178), colour=_RED)
    picture.arrow((210, 178), (90, 178), (90, 96), dashed=True)
    picture.text(82, 212, "correct it, apply again", _GREY, "start", 11)
    return picture.render()


def icon() -> str:
    """Four CPUs, one of them taken, and a line that leads there. No letter: no font draws it anew."""
    lines = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 96 96">',
        "<title>cri-resmgr-installer</title>",
        '<rect width="96" height="96" rx="18" fill="white"/>',
    ]
    for number, colour in enumerate((_BLUE, _GREY, _GREY, _GREY)):
        x, y = 20 + 32 * (number % 2), 20 + 32 * (number // 2)
        looks = f'fill="{_FILLS[colour]}" stroke="{colour}" stroke-width="3"'
        lines.append(f'<rect x="{x}" y="{y}" width="24" height="24" rx="4" {looks}/>')
    lines.append(f'<path d="M4 32H32" fill="none" stroke="{_ORANGE}" stroke-width="4"/>')
    lines.append(f'<circle cx="32" cy="32" r="5" fill="{_ORANGE}"/>')
    return "".join([*lines, "</svg>"])


def icon_address() -> str:
    """The icon itself, as an address that needs no server."""
    return f"data:image/svg+xml;base64,{base64.b64encode(icon().encode()).decode()}"


PICTURES = {"node.svg": node, "states.svg": states, "rollout.svg": rollout}


def main() -> None:
    for name, draw in PICTURES.items():
        _DOCS.joinpath(name).write_text(draw())
    for chart in CHARTS:
        chart.write_text(re.sub(r"(?m)^icon: .*$", f"icon: {icon_address()}", chart.read_text()))


if __name__ == "__main__":
    main()
