"""Whether this run takes an earlier installation over, and what it has to say about one. Only reads; what the
record is to say is put into the store, which writes it before the first change of the host."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from installer.errors import InvalidInputError
from installer.host.ports import Files
from installer.inputs.load import Request
from installer.model import paths
from installer.model.finding import Finding, refusal, warning
from installer.model.snapshot import HostSnapshot
from installer.model.state import Mode
from installer.model.takeover import Earlier
from installer.record.schema import Record, is_earlier
from installer.record.store import RecordStore
from installer.takeover.find import find_earlier
from installer.takeover.repair import names_relay, with_texts


def consider(
    files: Files,
    request: Request,
    store: RecordStore,
    snapshot: HostSnapshot,
    look: Callable[[Record], HostSnapshot],
) -> tuple[HostSnapshot, tuple[Finding, ...]]:
    """The snapshot that the run continues with, and what is to be said. In a takeover, also one that was cut
    off, kubelet's base in it is the repaired one: it is what kubelet will have. `look` takes a snapshot with
    everything that a record claims.

    Raises OSError, UnservableHostError, and InvalidInputError where a takeover would lose configs.
    """
    by_config = _by_config(snapshot, store.record)
    snapshot = _repaired(snapshot, store, by_config=by_config)
    if request.mode is Mode.REMOVE:
        return snapshot, ()
    earlier = find_earlier(files, snapshot, request.settings, store.record.claims)
    if earlier is None:
        return snapshot, ()
    if not request.adopt and not is_earlier(store.record):
        return snapshot, tuple(_offer(earlier))
    obstacles = tuple(_obstacles(earlier))
    if obstacles:
        return snapshot, obstacles
    _check_configs(request, earlier)
    store.take_over(earlier, request.settings.kubelet.unit)
    return _repaired(look(store.record), store, by_config=by_config), tuple(_taken(earlier))


def _repaired(snapshot: HostSnapshot, store: RecordStore, *, by_config: bool) -> HostSnapshot:
    repairs = store.repairs()
    base = with_texts(snapshot.base, repairs)
    base = replace(base, repaired=bool(repairs) or is_earlier(store.record))
    return replace(snapshot, base=base, kubelet=replace(snapshot.kubelet, by_config=by_config))


def _check_configs(request: Request, earlier: Earlier) -> None:
    """Without configs the policy would become none, because a person forgot an option."""
    found = [path for path in earlier.files if path in paths.CONFIG_FILES]
    if found and request.configs is None and not request.default_configs and not request.inspect:
        raise InvalidInputError(
            [f"--configs is missing: the installation that is taken over has configs ({', '.join(found)})"],
            "give a directory with the same files, or, if the policy none is what you want, "
            "--default-configs; nothing was touched",
        )


def _by_config(snapshot: HostSnapshot, record: Record) -> bool:
    """Whether the running kubelet has the relay from its configuration: no flag names an endpoint. After a
    takeover that was cut off, the configuration may have been repaired since kubelet's start."""
    process, unit = snapshot.kubelet.process, snapshot.kubelet.unit
    if process is None or process.flag("--container-runtime-endpoint") is not None:
        return False
    configured = replace(snapshot.base, texts=(), environment_files={})
    return names_relay(configured) or record.owed.get(unit.name, "") == unit.invocation_id != ""


def _offer(earlier: Earlier) -> Iterable[Finding]:
    """Not taken over: kubelet's analysis refuses a base that names the relay by itself."""
    what = f"{earlier.unit_file} is not ours" if earlier.unit_file else "the relay is in kubelet's own files"
    ours = "" if earlier.on_relay else ": its files are replaced, and come back with `remove`"
    yield warning(
        "earlier-installation",
        f"another installation of cri-resmgr is on this node ({what}){ours}",
        "`install --adopt` (settings: adopt: true) takes it over for good; `plan --adopt` shows how",
    )


def _obstacles(earlier: Earlier) -> Iterable[Finding]:
    if not earlier.endpoint and earlier.on_relay:
        yield refusal(
            "earlier-runtime-unknown",
            f"the installation of cri-resmgr on this node cannot be taken over: {paths.PROXY_UNIT} does not "
            "run, so nothing says where the container runtime listens",
            f"`systemctl start {paths.PROXY_UNIT}`, or set proxy.runtimeEndpoint",
        )
    for obstacle in earlier.obstacles:
        yield refusal(
            "earlier-obstacle",
            f"the installation of cri-resmgr on this node cannot be taken over: {obstacle}",
            "put a file there, or remove that installation by hand",
        )
    for tie in earlier.ties:
        yield refusal(
            "earlier-tie",
            f"the installation of cri-resmgr on this node cannot be taken over: {tie} stops kubelet whenever "
            "the proxy stops",
            f"delete it, then `systemctl daemon-reload`; After= and Wants= with {paths.PROXY_UNIT} may stay",
        )


def _taken(earlier: Earlier) -> Iterable[Finding]:
    repaired = f"; {', '.join(earlier.repairs)} is given {earlier.endpoint} back" if earlier.repairs else ""
    what = earlier.unit_file or "cri-resmgr"
    yield warning("takeover", f"an earlier installation is taken over ({what}){repaired}")
    where = ", ".join(earlier.sources)
    if earlier.returned:
        yield warning(
            "takeover-returned",
            f"lines that name containerd were deleted from {where}; put back as Gardener has them: "
            f"{', '.join(earlier.returned)}",
            "if this node had others, gardener-node-agent brings them with its next change of the unit",
        )
    if earlier.lost:
        yield warning(
            "takeover-lost",
            f"lines that name containerd were deleted from {where}, and what they said is not known: "
            f"probably {', '.join(earlier.lost)}",
            "compare with a node that the other installer has never seen, and put them back by hand",
        )
