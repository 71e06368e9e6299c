"""Trees of kubelet's unit files, read as a host's."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from installer.host.files import RootedFiles
from installer.host.kubelet_files import configuration_files, matching
from installer.model.host import (
    KubeletBase,
    UnitText,
    last_flag,
)
from installer.node.kubelet_command import launch_of, next_command_line, parse_base
from installer.node.snapshot import is_script

CASES = Path(__file__).parent.parent / "cases" / "kubelets"
FLAVOURS = Path(__file__).parent / "throwaway" / "kubelets"
UNIT = "kubelet.service"
UNIT_DIRECTORIES = ("etc/systemd/system", "usr/lib/systemd/system")


def load_base(root: Path) -> KubeletBase:
    """What a snapshot has of the kubelet below `root`, which does not run."""
    fragment = next(root / d / UNIT for d in UNIT_DIRECTORIES if (root / d / UNIT).exists())
    drop_ins = [path for d in UNIT_DIRECTORIES for path in (root / d / f"{UNIT}.d").glob("*.conf")]
    texts = [text_of(root, path) for path in (fragment, *sorted(drop_ins, key=lambda path: path.name))]
    named = {path for text in texts for path in re.findall(r"^EnvironmentFile=-?(\S+)", text.text, re.M)}
    base = KubeletBase(
        texts=tuple(texts),
        environment_files={
            pattern: tuple(text_of(root, root / path[1:]) for path in matching(RootedFiles(root), pattern))
            for pattern in named
        },
    )
    argv = next_start(base)
    config, directory = last_flag(argv, "--config"), last_flag(argv, "--config-dir")
    found = root / config[1:] if config else None
    in_directory = configuration_files(RootedFiles(root), directory or "")
    return replace(
        base,
        config=text_of(root, found) if found and found.exists() else None,
        config_dir=tuple(text_of(root, root / path[1:]) for path in in_directory),
        scripted=is_scripted(root, base),
    )


def is_scripted(root: Path, base: KubeletBase) -> bool:
    try:
        commands = parse_base(base).commands()
    except ValueError:
        return False
    return len(commands) == 1 and is_script(RootedFiles(root), launch_of(commands[0]).program)


def next_start(base: KubeletBase) -> tuple[str, ...]:
    return next_command_line(parse_base(base), base)


def text_of(root: Path, path: Path) -> UnitText:
    return UnitText(f"/{path.relative_to(root)}", path.read_text())
