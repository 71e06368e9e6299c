"""What a node's own kubelet unit says, and how our endpoint can come behind it.

Pure: reads unit texts, environment files and the running command line that
`installer.observe` has collected. Decides nothing about the proxy.
"""

from __future__ import annotations

from installer.kubelet.effective import effective
from installer.kubelet.endpoint import base_endpoint, kubelet_policies
from installer.kubelet.strategy import Choice, Refusal, choose_strategy

__all__ = ["Choice", "Refusal", "base_endpoint", "choose_strategy", "effective", "kubelet_policies"]
