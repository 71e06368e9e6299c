"""What is said to the Kubernetes API and asked of it, for one node. Run in processes that soon end.

Each call is one JSON text in and one out, because the resident, which must stay small, starts a
process for it. Only the place (who and where we are) is also used by the resident itself.
"""

from __future__ import annotations

from installer.daemon.cluster.heartbeat import evidence, heartbeat

__all__ = ["evidence", "heartbeat"]
