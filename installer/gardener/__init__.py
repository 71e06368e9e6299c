"""Gardener's extension: decides what becomes of the Extension resources of our type on a seed.

Level-triggered: each pass looks at an Extension, its Cluster and its ManagedResources as they are now, and
decides what to write, to delete and to report. Nothing is remembered in between, so a controller that was
killed at any step continues where it was.

Pure but for the files that `desired.py` reads. Nothing else in the package imports it.
"""
