"""The desired state: a pure function of settings, host facts, configs and payload."""

from __future__ import annotations

from installer.desired.build import build_desired
from installer.desired.header import with_generation

__all__ = ["build_desired", "with_generation"]
