"""Renders charts with Helm's own engine, which tests/lib/helm.txt pins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.lib import yamltext


def render_chart(
    chart: bytes | Path, values: dict[str, Any], namespace: str, name: str = "release"
) -> list[dict[str, Any]]:
    """All objects of a chart, packed or a directory: its definitions (`crds/`) first. Helm merges `values`
    into those of the chart.

    Raises HelmRenderError with the place in the template.
    """
    with load_chart(chart) as loaded:
        rendered = loaded.render(values, name=name, namespace=namespace)
        texts = [each["data"] for each in loaded.crds]
    texts += [text for path, text in sorted(rendered.items()) if not path.endswith("NOTES.txt")]
    return [each for text in texts for each in yamltext.load_all(text) if each]


def load_chart(chart: bytes | Path) -> Any:
    helm = engine()
    return helm.Chart.load(chart) if isinstance(chart, Path) else helm.Chart.load_archive(chart)


def lint_chart(chart: Path, values: dict[str, Any]) -> list[str]:
    """What `helm lint --strict` says of a chart's directory."""
    found = engine().lint(chart, values, strict=True)
    return [f"{each['path']}: {each['error']}" for each in found["messages"]]


def engine() -> Any:
    return pytest.importorskip("helm_python", reason="PyPI has helm-python-sdk for x86_64 only")
