"""The lists with digests that the build of an image takes: what `hack/lock` has made of the versions."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
LISTS = ("requirements.txt", "requirements-extension.txt", "requirements-build.txt")


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(name: str) -> dict[str, str]:
    found = re.findall(r"(?m)^([\w.-]+)==(\S+)", (TOP / "image" / name).read_text())
    return {normal(package): version for package, version in found}


@pytest.mark.parametrize("name", LISTS)
def test_each_file_of_each_library_has_its_digest(name: str) -> None:
    for block in re.split(r"(?m)^(?=[A-Za-z])", (TOP / "image" / name).read_text())[1:]:
        assert re.fullmatch(r"\S+==\S+( ; [^\n]+)?( \\\n    --hash=sha256:[0-9a-f]{64})+\n", block), block


def test_the_versions_are_those_that_people_have_chosen() -> None:
    locked = [pins(name) for name in LISTS]
    assert {name: version for each in locked for name, version in each.items()} == pins("constraints.txt")
    assert sum(map(len, locked)) == len(pins("constraints.txt"))


def test_what_the_program_needs_is_locked() -> None:
    project = tomllib.loads((TOP / "pyproject.toml").read_text())
    for needed, name in (
        (project["project"]["dependencies"], "requirements.txt"),
        (project["project"]["optional-dependencies"]["extension"], "requirements-extension.txt"),
        (project["build-system"]["requires"], "requirements-build.txt"),
    ):
        assert {normal(re.split(r"[^\w.-]", each)[0]) for each in needed} <= set(pins(name))
