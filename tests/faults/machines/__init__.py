"""Faults of a real machine: its power, its disk, its kernel."""
