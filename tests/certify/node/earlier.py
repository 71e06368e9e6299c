"""Earlier installations of other kinds: how kubelet's own files name the relay, and what ties kubelet to the
proxy's unit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from installer.model import paths
from tests.certify.node.kubelets import BASE, CONFIG, PROGRAM, WORD
from tests.faults.disks.crash import Entry, Tree
from tests.faults.disks.node import BASE_ENVIRONMENT, KUBELET, RUNTIME, bare_node, earlier_node

_OWN = f"[Service]\nEnvironmentFile=-{BASE_ENVIRONMENT}\nExecStart=\n"
_RELAY = f"--container-runtime-endpoint={paths.RELAY_ENDPOINT}"
_LINE = f"ExecStart={PROGRAM} {WORD}\n"
_BACK = f"--container-runtime-endpoint={RUNTIME}"
_ORDERED = f"[Unit]\nAfter={paths.PROXY_UNIT}\nRequires={paths.PROXY_UNIT} a.service\nWants=b.service\n"
_REQUIRED = f"/etc/systemd/system/{KUBELET}.requires"


def _earlier(
    files: Mapping[str, str], links: Mapping[str, str] | None = None, without: str = ""
) -> Callable[[], Tree]:
    def tree() -> Tree:
        found = {path: one for path, one in earlier_node().items() if path != without}
        for path, text in files.items():
            found[path] = Entry("f", 0o644, text.encode())
        for path, target in (links or {}).items():
            found[path] = Entry("l", 0, target=target)
        for path in [*files, *(links or {})]:
            found.setdefault(path.rpartition("/")[0], Entry("d", 0o755))
        return found

    return tree


_PLAIN = bare_node()[BASE_ENVIRONMENT].content.decode()
EARLIER: dict[str, Callable[[], Tree]] = {
    "by a shell": _earlier(
        {
            BASE: f"{_OWN}ExecStart={PROGRAM} --v=2 \\\n    {WORD} \\\n    {_RELAY} \\\n",
            BASE_ENVIRONMENT: _PLAIN,
        }
    ),
    "by a shell, in one line": _earlier(
        {BASE: f"{_OWN}ExecStart={PROGRAM} {WORD} \\\n    {_RELAY} \\\n", BASE_ENVIRONMENT: _PLAIN}
    ),
    "ordered": _earlier({BASE: f"{_ORDERED}{_OWN}{_LINE}"}),
    "tied": _earlier({BASE: f"[Unit]\nRequires=a.service \\\n  {paths.PROXY_UNIT}\n{_OWN}{_LINE}"}),
    "tied by a link": _earlier({}, {f"{_REQUIRED}/{paths.PROXY_UNIT}": paths.PROXY_UNIT_FILE}),
    "with a comment": _earlier({BASE_ENVIRONMENT: f"# ours\nKUBELET_EXTRA_ARGS=--v=2 {_RELAY}\n"}),
    "by its configuration": _earlier(
        {
            BASE: f"{_OWN}ExecStart={PROGRAM} --config={CONFIG} {WORD}\n",
            CONFIG: f"containerRuntimeEndpoint: {paths.RELAY_ENDPOINT}\n",
            BASE_ENVIRONMENT: _PLAIN,
        }
    ),
    "of no unit": _earlier({}, without=paths.PROXY_UNIT_FILE),
    "with a broken line": _earlier(
        {paths.PROXY_UNIT_FILE: '[Service]\nExecStart="/opt/intel/bin/cri-resmgr\n'}
    ),
}
EARLIER = {f"earlier, {name}": tree for name, tree in EARLIER.items()}
#: Kubelet's own files as a takeover has to leave them, by what they were: by hand, not by the program.
_REPAIRED = {
    f"{_OWN}ExecStart={PROGRAM} --v=2 \\\n    {WORD} \\\n    {_RELAY} \\\n": (
        f"{_OWN}ExecStart={PROGRAM} --v=2 \\\n    {_BACK} \\\n    {WORD}\n"
    ),
    f"{_OWN}ExecStart={PROGRAM} {WORD} \\\n    {_RELAY} \\\n": (
        f"{_OWN}ExecStart={PROGRAM} \\\n    {_BACK} \\\n    {WORD}\n"
    ),
    f"{_ORDERED}{_OWN}{_LINE}": f"[Unit]\nRequires=a.service\nWants=b.service\n{_OWN}{_LINE}",
    f"containerRuntimeEndpoint: {paths.RELAY_ENDPOINT}\n": f"containerRuntimeEndpoint: {RUNTIME}\n",
    f"# ours\nKUBELET_EXTRA_ARGS=--v=2 {_RELAY}\n": f"# ours\nKUBELET_EXTRA_ARGS=--v=2 {_BACK}\n",
    f"KUBELET_EXTRA_ARGS=--v=2 {_RELAY}\n": f"KUBELET_EXTRA_ARGS=--v=2 {_BACK}\n",
}
_KUBELETS = (BASE, BASE_ENVIRONMENT, CONFIG)


def kubelets_own(disk: Tree) -> Tree:
    """Kubelet's own files there."""
    return {path: disk[path] for path in _KUBELETS if path in disk and disk[path].kind == "f"}


def repairs(disk: Tree) -> Tree:
    """Those of kubelet's own files on that disk that a takeover repairs, as it has to leave them."""
    return {
        path: replace(entry, content=_REPAIRED[text].encode())
        for path, entry in kubelets_own(disk).items()
        if (text := entry.content.decode("utf-8", "replace")) in _REPAIRED
    }
