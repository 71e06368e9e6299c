"""What about this host cannot or should not be served: facts in, findings out."""

from __future__ import annotations

from installer.preflight.check import cached_configuration, check_change, check_host, check_removal
from installer.preflight.file_system import check_places

__all__ = ["cached_configuration", "check_change", "check_host", "check_places", "check_removal"]
