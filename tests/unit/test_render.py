"""Templates are filled strictly, and once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import jinja2
import pytest
from pytest_mock import MockerFixture

from installer.rendering import fill, render

ROOT = Path(__file__).parents[2]


def test_each_place_is_filled_once_and_an_empty_line_vanishes(mocker: MockerFixture) -> None:
    mocker.patch("installer.rendering.template_text", return_value="# @HEADER@\nA=@a@ @b@\n@c@\n@d@\nB=@c@\n")
    assert fill("x", a="@b@", b=2, c="", d="D=1\nE=@a@") == "# @HEADER@\nA=@b@ 2\nD=1\nE=@a@\nB=\n"
    with pytest.raises(KeyError):
        fill("x", a="", b="", c="")


def test_a_missing_value_of_a_manifest_is_an_error() -> None:
    with pytest.raises(jinja2.UndefinedError):
        render("manifests/service-account.yaml.j2")


def test_the_files_of_a_host_need_no_jinja2() -> None:
    script = "import sys; from installer.rendering import fill; "
    script += "fill('kubelet.env.in', variable='A', flag='b', base='c', guard_seconds=5); "
    script += "print('jinja2' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"
