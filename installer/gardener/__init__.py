"""Gardener's extension: decides what becomes of the Extension resources of our type on a seed.

Level-triggered: each reconciliation reads an Extension, its Cluster and its ManagedResources as they are
now, and decides what to write, delete and report. The controller remembers nothing in between, so one that
was killed at any step continues where it was.
"""
