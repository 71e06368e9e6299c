"""What kubectl reads is what we have written: another parser, in Go, which is the one that counts.

`kubectl apply --dry-run=client` asks an API server for what it serves; `annotate --local` asks nobody.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from installer.manifests import ManifestOptions, render_manifests
from tests.unit.manifests.rendering import NAMES, rendered

pytestmark = pytest.mark.skipif(not shutil.which("kubectl"), reason="needs kubectl")

MARK = {"example.org/read-by": "kubectl"}
HOSTILE = (
    "quote\" and ' and \\",
    "two\nlines: {{ name }}\n---\nkind: Secret\n",
    "!!binary x",
    "ä \U0001f600 \u2028 \u0085 \ufeff end",
    "  indented\n text\n",
    "\n\n  a\n\n",
    "a\n...\n---\n",
    *("yes", "y", "n", "on", "1e3", "012", "0o17", "0x1f", "1_000", "2026-01-01", "~", "", "\n", "=", ".inf"),
)


def read_by_kubectl(file: Path, home: Path) -> list[dict[str, Any]]:
    words = "=".join(*MARK.items())
    done = subprocess.run(
        ["kubectl", "annotate", "--local", "--dry-run=client", "-f", str(file), words, "-o", "json"],
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found, rest, decoder = [], done.stdout.strip(), json.JSONDecoder()
    while rest:
        each, end = decoder.raw_decode(rest)
        found.append(each)
        rest = rest[end:].strip()
    return found


def marked(text: str) -> list[dict[str, Any]]:
    """The objects as we read them, with the annotation that kubectl was asked for."""
    found = list(yaml.safe_load_all(text))
    for each in found:
        each["metadata"]["annotations"] = {**each["metadata"].get("annotations", {}), **MARK}
    return found


@pytest.mark.parametrize("case", NAMES)
def test_kubectl_reads_the_same(case: str, tmp_path: Path) -> None:
    file = tmp_path / "manifests.yaml"
    file.write_text(rendered(case))
    assert read_by_kubectl(file, tmp_path) == marked(file.read_text())


def test_kubectl_reads_hostile_values_as_they_are(tmp_path: Path) -> None:
    values, file = tmp_path / "values.yaml", tmp_path / "manifests.yaml"
    notes = {f"example.org/note-{number}": text for number, text in enumerate(HOSTILE)}
    notes |= dict.fromkeys(("y", "n", "on", "1e3", "0o17", "1_000", "null", "a" * 63), "a key")
    images = {"installer": "registry.example.org/cri-resmgr-installer:0.1.0"}
    values.write_text(yaml.safe_dump({"images": images, "annotations": notes}))
    file.write_text(render_manifests(ManifestOptions(values=values)))
    found = read_by_kubectl(file, tmp_path)
    assert found
    for each in found:
        assert each["metadata"]["annotations"] == {**notes, **MARK}
