"""Branches that the fleets of `certify.py` do not reach within its bounds, and why."""

UNREACHED: dict[str, str] = {}
