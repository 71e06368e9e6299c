"""Permission to do planned work on a node: permits, brake, canaries, pause.

There is no controller. Nodes agree through Leases in a namespace of their own, each written with the
resourceVersion that was read. All decisions are pure: objects and a time in,
what to write or why to wait out. `ask.py` alone makes requests.
"""
