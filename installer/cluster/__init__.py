"""What a node reports to the Kubernetes API and asks of it, and how the nodes of a fleet share permits.

There is no controller. Nodes agree through Leases in a namespace of their own, each written with the
resourceVersion that was read. All decisions are pure: from objects and a time to what is written, or why the
node waits. Short-lived processes make the requests, one JSON text in and one out, so that the daemon stays
small.
"""
