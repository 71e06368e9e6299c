"""What the record's claims mean."""

from __future__ import annotations

import pytest

from installer.model import paths
from installer.model.host import ABSENT, FileState, Kind, Part
from installer.node.record import Owned, Record, base_claims

THEIRS = FileState(Kind.FILE, 0o644, 0, 0, 3, "a" * 64)
OURS = ("b" * 64,)
DROP_INS = "/etc/systemd/system/kubelet.service.d"


@pytest.mark.parametrize(
    ("path", "claim", "is_base"),
    [
        (f"{DROP_INS}/10-kubeadm.conf", Owned(Part.KUBELET, before=THEIRS, wrote=OURS), True),
        ("/usr/lib/systemd/system/kubelet.service", Owned(Part.KUBELET, before=THEIRS, wrote=OURS), True),
        ("/etc/default/kubelet", Owned(Part.KUBELET, before=THEIRS, wrote=OURS), True),
        (f"{DROP_INS}/{paths.DROP_IN_NAME}", Owned(Part.KUBELET, before=THEIRS, wrote=OURS), False),
        (paths.KUBELET_ENVIRONMENT, Owned(Part.KUBELET, before=THEIRS, wrote=OURS), False),
        (f"{DROP_INS}/10-kubeadm.conf", Owned(Part.KUBELET, before=ABSENT, wrote=OURS), False),
        (paths.FALLBACK_CONFIG, Owned(Part.PROXY, before=THEIRS, wrote=OURS), False),
    ],
)
def test_which_claims_are_kubelets_own_files_that_a_takeover_repairs(
    path: str, claim: Owned, is_base: bool
) -> None:
    assert list(base_claims(Record(owned={path: claim}))) == ([path] if is_base else [])
