"""Faults that are tried by the thousand: they need time, and no host."""
