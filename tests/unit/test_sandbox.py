"""Which settings of a unit hide from our lines what they need."""

import pytest

from installer.model.host import UnitText
from installer.node.sandbox import confines, needed_paths


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("ProtectSystem=strict", False),
        ("BindReadOnlyPaths=/sys /proc", False),
        ("BindPaths=/opt", False),
        ("BindPaths=/run:/run:rbind", False),
        ("BindPaths=-/srv:/opt", True),
        ("BindPaths=/run/cri-resmgr:/run", True),
        ("TemporaryFileSystem=/tmp /var/run:ro", True),
        ("TemporaryFileSystem=/opt:ro\nTemporaryFileSystem=", False),
        ("TemporaryFileSystem=/opt\nBindReadOnlyPaths=/opt/intel", False),
        ("TemporaryFileSystem=/option", False),
        ("TemporaryFileSystem=/", True),
        ('TemporaryFileSystem="/opt" /x', True),
        ("TemporaryFileSystem=%S:ro", True),
        ("TemporaryFileSystem=%t/cri-resmgr", True),
        ("BindPaths=%t", False),
        ("BindPaths=%S/x:%S/cri-resmgr", True),
        ("MountImages=/srv/image:/opt", True),
        ("InaccessiblePaths=%t/cri-resmgr", True),
        ("RootDirectory=/", False),
        ("RootDirectory=/srv\nRootDirectory=", False),
        ("RootImage=/srv/image", True),
        ("User=root", False),
        ("User=kubelet", True),
        ("InaccessiblePaths=/opt", False),
        ("InaccessiblePaths=-/run/cri-resmgr", True),
    ],
)
def test_what_confines_kubelet(line: str, found: bool) -> None:
    assert bool(confines((UnitText("x.conf", f"[Service]\n{line}\n"),), kubelet=True)) is found


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ("WorkingDirectory=/srv", ["/srv"]),
        ("WorkingDirectory=/srv\nWorkingDirectory=/x", ["/x"]),
        ("WorkingDirectory=-/srv\nBindPaths=-/srv:/x\nEnvironmentFile=-/srv\nReadOnlyPaths=-+/srv", []),
        ("WorkingDirectory=~\nWorkingDirectory=%h/x", []),
        ("BindPaths=/a:/b /c\nBindReadOnlyPaths=+/d", ["/a", "/c", "/d"]),
        ("BindPaths=/a\nBindPaths=\nBindPaths=%t/b", ["/run/b"]),
        ("LoadCredential=x:/a\nLoadCredential=y", ["/a"]),
        ("EnvironmentFile=/etc/default/*", []),
        ("StandardOutput=append:/var/log/x/%N.log\nStandardError=journal", ["/var/log/x"]),
        ("ExecStartPre=+/bin/a /b\nExecStartPre=-/bin/c\nExecStartPost=@/bin/d e", ["/bin/a", "/bin/d"]),
        ("ExecPaths=/a /b\nMountImages=/c:/d", ["/a", "/b", "/c"]),
        ("ExecStart=/nowhere\nSyslogIdentifier=/a", []),
    ],
)
def test_what_has_to_exist_for_a_unit_to_start(lines: str, found: list[str]) -> None:
    texts = (UnitText("x.conf", f"[Service]\n{lines}\n[Unit]\nWorkingDirectory=/of/no/effect\n"),)
    assert sorted(path for path, _line in needed_paths(texts)) == found
