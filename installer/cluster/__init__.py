"""What a node says to the Kubernetes API and asks of it, and how the nodes of a fleet share permits.

There is no controller. Nodes agree through Leases in a namespace of their own, each written with the
resourceVersion that was read. All decisions are pure: objects and a time in, what to write or why to wait
out. Requests are made in processes that soon end, each one JSON text in and one out, because the daemon must
stay small.
"""
