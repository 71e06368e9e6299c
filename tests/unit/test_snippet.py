"""The policy that README has people paste is one that the installer takes."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent

from installer.inputs.configs import load_configs
from tests.lib.documents import ROOT


def test_the_policy_of_readme_can_be_pasted(tmp_path: Path) -> None:
    found = re.findall(
        r"(?ms)^( +)mkdir -p \S+ && cat > \S+/(fallback\.cfg) <<'END'\n(.*?)^\1END$",
        (ROOT / "README.md").read_text(),
    )
    ((_, name, text),) = found
    tmp_path.joinpath(name).write_text(dedent(text))
    asked = load_configs(tmp_path).asked
    assert asked.policy == "topology-aware"
