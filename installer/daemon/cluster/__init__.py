"""What is said to the Kubernetes API and asked of it, for one node. Run in processes that soon end.

Each call is one JSON text in and one out, because the daemon, which must stay small, starts a process for
it. The daemon itself uses only the pod context (who and where we are).
"""

from __future__ import annotations

from installer.daemon.cluster.heartbeat import decommission, heartbeat

__all__ = ["decommission", "heartbeat"]
