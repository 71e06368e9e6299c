"""Renders charts with Helm's own engine, which tests/lib/helm.txt pins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml


def render_chart(packed: bytes, values: dict[str, Any], namespace: str) -> list[dict[str, Any]]:
    """All objects of a packed chart. Helm merges `values` into those of the chart.

    Raises HelmRenderError with the place in the template.
    """
    helm = _engine()
    with helm.Chart.load_archive(packed) as chart:
        rendered = chart.render(values, name="release", namespace=namespace)
    return [each for _, text in sorted(rendered.items()) for each in yaml.safe_load_all(text) if each]


def lint_chart(chart: Path, values: dict[str, Any]) -> list[str]:
    """What `helm lint` says of a chart's directory, but for the icon that no chart of ours has."""
    found = _engine().lint(chart, values, strict=True)
    said = [f"{each['path']}: {each['error']}" for each in found["messages"]]
    return [each for each in said if each != "Chart.yaml: icon is recommended"]


def _engine() -> Any:
    return pytest.importorskip("helm_python", reason="PyPI has helm-python-sdk for x86_64 only")
