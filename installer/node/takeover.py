"""Recognise cri-resmgr that another installer, or a person, has put on the node, and take it over on request.

Taking over means to describe that installation in the record as if it were ours: its files are claimed with
nothing before them, kubelet's files with a repaired text before them. The difference, the plan, the rollback
and the removal then follow from the record as usual.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from installer.errors import InvalidInputError
from installer.host.ports import Files
from installer.inputs.load import Request
from installer.inputs.systemd_syntax import parse_exec, parse_unit
from installer.model import paths
from installer.model.host import (
    DesiredFile,
    FileState,
    HostSnapshot,
    Kind,
    KubeletBase,
    Part,
    ProcessState,
    UnitText,
    last_flag,
)
from installer.model.jsontext import sha256_hex
from installer.model.names import Mode
from installer.model.paths import PROXY_UNIT, normalise_endpoint
from installer.model.plan import Desired, DesiredKubelet, DesiredUnit, Finding, Strategy, refusal, warning
from installer.node.links import find_links
from installer.node.ownership import RecordStore
from installer.node.record import Goes, Owned, Record, is_earlier, is_ours

if TYPE_CHECKING:
    from installer.inputs.settings import Settings


# Kubelet's own files without the relay: texts in, texts out. Pure.
#
# The shell installer of the Gardener extension for cri-resmgr deletes each line of kubelet.service that
# contains "containerd", and adds the relay's flag after $KUBELET_EXTRA_ARGS, followed by a backslash. Others
# name the relay in an environment file, or in kubelet's configuration.

_RELAY = r"(?:/var)?/run/cri-resmgr/cri-resmgr\.sock(?![\w./-])"
_NAMES_RELAY = re.compile(_RELAY)
_AS_ENDPOINT = re.compile(rf"(endpoint[\"']?\s*[=:\s]\s*[\"']?)(?:unix:(?://)?)?{_RELAY}", re.IGNORECASE)
_ORDERS = re.compile(r"^(?:After|Wants|Requires|Requisite|BindsTo|PartOf|Upholds)[ \t]*=.*\n?", re.M)
_TIES = frozenset(("Requires", "Requisite", "BindsTo", "PartOf", "StopPropagatedFrom"))
# The flag as the shell installer leaves it: on the last line of the command, with a stray backslash.
_APPENDED = re.compile(
    r"^(?P<before>.*)(?P<variable>\$\{?KUBELET_EXTRA_ARGS\}?)[ \t]*\\\n"
    rf"[ \t]*(?P<flag>--container-runtime-endpoint=\S*?{_RELAY})[ \t]*\\?[ \t]*"
    r"(?=\n[ \t]*(?:\n|\[|\Z)|\n?\Z)",
    re.M,
)
_RUNTIME = "containerd"
# What the shell installer deletes from Gardener's kubelet.service.
_LOST = (
    "After=containerd.service",
    "Wants=containerd.service",
    "--runtime-cgroups=/system.slice/containerd.service",
)


class Repaired(NamedTuple):
    """Kubelet's repaired files."""

    texts: Mapping[str, str]  # those that change
    lost: tuple[str, ...] = ()  # what was probably deleted from kubelet's unit


def sources_of(base: KubeletBase) -> tuple[str, ...]:
    """Kubelet's own files that name the relay."""
    return tuple(text.path for text in base.configured() if _NAMES_RELAY.search(_effective(text.text)))


def repair_base(base: KubeletBase, endpoint: str) -> Repaired:
    """Kubelet's files with the runtime's `endpoint` in place of the relay, and without dependencies on the
    proxy's unit, which will not always exist."""
    texts: dict[str, str] = {}
    lost: tuple[str, ...] = ()
    sources = sources_of(base)
    units = {text.path for text in base.texts}
    for text in base.configured():
        after = text.text
        if text.path in units:
            after = _ORDERS.sub(_without_proxy_unit, after)
            # The lines of the unit that name containerd are gone.
            if text.path in sources and "ExecStart=" in after and _RUNTIME not in after:
                lost, after = _LOST, _APPENDED.sub(_in_front, after)
        after = _with_endpoint(after, endpoint)
        if after != text.text:
            texts[text.path] = after
    return Repaired(texts, lost)


def ties_of(base: KubeletBase) -> Iterable[str]:
    """What remains in kubelet's unit that stops or restarts kubelet with the proxy: a line each, with its
    file. `repair_base` removes such dependencies, except those that span several lines."""
    for text in base.texts:
        for line in parse_unit(text):
            if line.key in _TIES and PROXY_UNIT in line.value.split():
                yield f"{line.key}={PROXY_UNIT} in {text.path}"


def with_texts(base: KubeletBase, texts: Mapping[str, str]) -> KubeletBase:
    """The base with some of its files replaced by `texts`."""

    def changed(text: UnitText) -> UnitText:
        return UnitText(text.path, texts.get(text.path, text.text))

    return replace(
        base,
        texts=tuple(map(changed, base.texts)),
        config=changed(base.config) if base.config else None,
        config_dir=None if base.config_dir is None else tuple(map(changed, base.config_dir)),
        environment_files={
            name: tuple(map(changed, found)) for name, found in base.environment_files.items()
        },
    )


def _effective(text: str) -> str:
    """The text without its comments."""
    return "\n".join(line for line in text.split("\n") if not line.lstrip().startswith(("#", ";")))


def _with_endpoint(text: str, endpoint: str) -> str:
    path = normalise_endpoint(endpoint)
    lines = text.split("\n")
    for number, line in enumerate(lines):
        if not line.lstrip().startswith(("#", ";")):
            line = _AS_ENDPOINT.sub(lambda found: f"{found[1]}unix://{path}", line)
            lines[number] = _NAMES_RELAY.sub(lambda _found: path, line)
    return "\n".join(lines)


def _without_proxy_unit(found: re.Match[str]) -> str:
    """A line of dependencies without the proxy's unit; empty if that was the only one."""
    key, _equals, value = found[0].partition("=")
    words = value.split()
    if PROXY_UNIT not in words:
        return found[0]
    left = " ".join(word for word in words if word != PROXY_UNIT)
    return f"{key}={left}\n" if left else ""


def _in_front(found: re.Match[str]) -> str:
    """The flag before the variable, where the distribution has it, so that the last word stays the
    variable."""
    before, variable, flag = found["before"], found["variable"], found["flag"]
    if before.lstrip().startswith("ExecStart"):
        return f"{before}\\\n    {flag} \\\n    {variable}"
    return f"    {flag} \\\n{before}{variable}"


# Find an installation of cri-resmgr that is not ours. Read-only.
#
# It may come from upstream's release archive, which the Gardener extension's shell installer copies, or from
# upstream's packages (unit and environment file elsewhere), unpacked by hand. The proxy's unit tells which.

_DEFAULT_RUNTIME = "/var/run/containerd/containerd.sock"  # cri-resmgr's default for --runtime-socket
_PROGRAM = "cri-resmgr"
_SAMPLE = "/etc/cri-resmgr/fallback.cfg.sample"
_TREES = ("/opt/intel/licenses/cri-resource-manager", "/opt/intel/share/doc/cri-resource-manager")
_PACKAGED = re.compile(r"/(?:etc/(?:default|sysconfig)/cri-res|(?:usr/)?(?:local/)?(?:bin|sbin)/cri-resmgr)")


class Earlier(NamedTuple):
    """What another installer, or a person, has put on this node."""

    unit_file: str
    on_relay: bool  # kubelet's own files name the relay
    sources: tuple[str, ...] = ()  # those files
    endpoint: str = ""  # the runtime's; empty: unknown
    repairs: Mapping[str, bytes] = {}  # kubelet's files as they have to be without that installation
    files: tuple[str, ...] = ()  # its own, which are removed
    trees: tuple[str, ...] = ()  # directories of its documentation
    lost: tuple[str, ...] = ()  # what it has deleted from kubelet's unit
    obstacles: tuple[str, ...] = ()  # why it cannot be taken over
    ties: tuple[str, ...] = ()  # what would stop kubelet with the proxy's unit


def find_earlier(
    files: Files, snapshot: HostSnapshot, settings: Settings, claimed: Collection[str]
) -> Earlier | None:
    """The installation that is not ours, or None. `claimed` are the paths that are ours.

    Raises OSError.
    """
    sources = sources_of(snapshot.base)
    unit = _foreign_unit(files, snapshot, claimed)
    if unit is None and not sources:
        return None
    endpoint = _runtime(snapshot.proxy.process, settings)
    repaired = repair_base(snapshot.base, endpoint) if endpoint else Repaired({})
    found = list(_candidates(unit)) if unit else []
    states = {path: files.state(path) for path in (*found, *repaired.texts)}
    present = {path: state for path, state in states.items() if state.kind is not Kind.ABSENT}
    return Earlier(
        unit_file=unit.path if unit else "",
        on_relay=bool(sources) or snapshot.kubelet.on_relay,
        sources=sources,
        endpoint=f"unix://{paths.normalise_endpoint(endpoint)}" if endpoint else "",
        repairs={path: text.encode("utf-8", "surrogateescape") for path, text in repaired.texts.items()},
        files=tuple(path for path in found if path in present),
        trees=tuple(tree for tree in _TREES if files.state(tree).kind is Kind.DIRECTORY) if unit else (),
        lost=repaired.lost,
        obstacles=tuple(
            f"{path} is {state.kind.words}, not a file"
            for path, state in present.items()
            if state.kind is not Kind.FILE
        ),
        ties=(
            *(ties_of(with_texts(snapshot.base, repaired.texts)) if endpoint else ()),
            *_required_by_link(files, settings.kubelet.unit),
        ),
    )


def _required_by_link(files: Files, kubelet_unit: str) -> Iterable[str]:
    """The links that systemd creates for `RequiredBy=` in the proxy's unit."""
    for directory in paths.UNIT_DIRECTORIES:
        link = f"{directory}/{kubelet_unit}.requires/{paths.PROXY_UNIT}"
        if files.state(link).exists:
            yield f"the link {link}"


def _foreign_unit(files: Files, snapshot: HostSnapshot, claimed: Collection[str]) -> UnitText | None:
    """The proxy's unit, if it runs cri-resmgr and is not ours."""
    for path in dict.fromkeys((snapshot.proxy.unit.fragment_path, paths.PROXY_UNIT_FILE)):
        if path in claimed or path.removesuffix(f"/{paths.PROXY_UNIT}") not in paths.UNIT_DIRECTORIES:
            continue
        state = files.state(path)
        unit = UnitText(path, (state.content or b"").decode("utf-8", "surrogateescape"))
        if not is_ours(state, ()) and _PROGRAM in _exec_start(unit):
            return unit
    return None


def _exec_start(unit: UnitText) -> str:
    """The name of the program that the unit runs; empty if none."""
    lines = [line for line in parse_unit(unit) if (line.section, line.key) == ("Service", "ExecStart")]
    try:
        return posixpath.basename(parse_exec(lines[-1]).words[0]) if lines else ""
    except ValueError:
        return ""


def _candidates(unit: UnitText) -> Iterable[str]:
    """Where that installation may have files: upstream's places, and those of a package that its unit
    names."""
    upstream = (paths.BINARY, paths.PROXY_UNIT_FILE, paths.PROXY_ENVIRONMENT, *paths.CONFIG_FILES, _SAMPLE)
    named = []
    for line in parse_unit(unit):
        if line.section == "Service" and line.key in ("ExecStart", "EnvironmentFile"):
            words = line.value.lstrip("@-:+!").split()
            named += words[:1] if words and _PACKAGED.match(words[0]) else []
    return dict.fromkeys((*upstream, unit.path, *named))


def _runtime(process: ProcessState | None, settings: Settings) -> str:
    """Where the real runtime listens: as the settings say, or by the running proxy's own command line."""
    wanted = settings.proxy.runtime_endpoint
    if wanted != "auto":
        return wanted
    if process is None:
        return ""
    # Go accepts flags with one hyphen or two.
    argv = tuple(f"-{word}" if re.match(r"-[a-z]", word) else word for word in process.argv)
    return last_flag(argv, "--runtime-socket") or _DEFAULT_RUNTIME


# How the record describes another installer's work. Read-only.

# Created by upstream's archive; deleted only if they are empty.
_DIRECTORIES = (
    "/etc/cri-resmgr",
    "/opt/intel",
    "/opt/intel/bin",
    "/opt/intel/licenses",
    "/opt/intel/share",
    "/opt/intel/share/doc",
)
_WHY = "as the earlier installation had it"


def _taken_over(files: Files, record: Record, earlier: Earlier, kubelet_unit: str) -> Record:
    """The record including the `earlier` installation as it is now. One that kubelet does not use is recorded
    without units, so that a rollback starts nothing."""
    places = (*earlier.files, *earlier.repairs, *_DIRECTORIES, *paths.PROXY_STATE, *earlier.trees)
    states = {path: files.state(path) for path in places}
    base = {path: _repair(states[path], content) for path, content in earlier.repairs.items()}
    record = replace(record, owned={**record.owned, **base})
    if not earlier.unit_file:
        return record  # ours is installed, or nothing serves the relay that the files name
    theirs = {path: Owned(wrote=(states[path].digest,)) for path in earlier.files}
    links = find_links(files)
    theirs |= {path: Owned(before=state) for path, state in links.items()}
    directories = {posixpath.dirname(path) for path in links} - {paths.LINKS}
    states |= {path: files.state(path) for path in directories}
    theirs |= {path: Owned(goes=Goes.EMPTY, before=states[path]) for path in (*_DIRECTORIES, *directories)}
    for path in (*paths.PROXY_STATE, *earlier.trees):
        theirs[path] = Owned(goes=Goes.WHOLE, before=FileState(states[path].kind))
    of_proxy = (_good_file(path, states[path], Part.PROXY) for path in earlier.files)
    good = Desired((*of_proxy, *(_good_file(path, states[path], Part.KUBELET) for path in base)))
    if earlier.on_relay:
        proxy = DesiredUnit(paths.PROXY_UNIT, earlier.unit_file, "", "")
        unit = DesiredUnit(kubelet_unit, next(iter(base), ""), "", "")
        good = replace(good, proxy=proxy, kubelet=DesiredKubelet(unit, Strategy.ENVIRONMENT, _WHY, "", ()))
    return replace(record, owned={**record.owned, **theirs}, good=good)


def _repair(state: FileState, content: bytes) -> Owned:
    digest = sha256_hex(content)
    before = replace(state, digest=digest, size=len(content), content=content, identity=None)
    return Owned(Part.KUBELET, before=before, wrote=(state.digest,))


def _good_file(path: str, state: FileState, part: Part) -> DesiredFile:
    return DesiredFile(path, state.mode, part, state.digest, state.size)


# Whether this run takes over an earlier installation, and its findings about one. Read-only: the store writes
# the record before the first change of the host.


def consider(
    files: Files,
    request: Request,
    store: RecordStore,
    snapshot: HostSnapshot,
    look: Callable[[Record], HostSnapshot],
) -> tuple[HostSnapshot, tuple[Finding, ...]]:
    """The snapshot with which the run continues, and the findings. In a takeover, including an interrupted
    one, it has kubelet's base as repaired, which is what kubelet will have. `look` takes a snapshot with
    everything that a record claims.

    Raises OSError, UnservableHostError, and InvalidInputError if a takeover would lose configs.
    """
    by_config = _by_config(snapshot, store.record)
    snapshot = _repaired(snapshot, store, by_config=by_config)
    if request.mode is Mode.REMOVE:
        return snapshot, ()
    earlier = find_earlier(files, snapshot, request.settings, store.record.claims)
    if earlier is None:
        return snapshot, ()
    if not request.consent.take_over and not is_earlier(store.record):
        return snapshot, tuple(_offer(earlier))
    obstacles = _obstacles(earlier)
    if obstacles:
        return snapshot, obstacles
    _check_configs(request, earlier)
    record = _taken_over(files, store.record, earlier, request.settings.kubelet.unit)
    store.take_over(record, earlier.repairs.values())
    return _repaired(look(store.record), store, by_config=by_config), tuple(_taken(earlier))


def _repaired(snapshot: HostSnapshot, store: RecordStore, *, by_config: bool) -> HostSnapshot:
    repairs = store.repairs()
    base = with_texts(snapshot.base, repairs)
    base = replace(base, repaired=bool(repairs) or is_earlier(store.record))
    return replace(snapshot, base=base, kubelet=replace(snapshot.kubelet, by_config=by_config))


def _check_configs(request: Request, earlier: Earlier) -> None:
    """Without configs the policy would become none, because someone forgot an option."""
    found = [path for path in earlier.files if path in paths.CONFIG_FILES]
    if found and request.configs is None and not request.default_configs and not request.inspect:
        raise InvalidInputError(
            [f"--configs is missing: the installation to take over has configs ({', '.join(found)})"],
            "give a directory with the same files or, if you want the policy none, --default-configs; "
            "nothing was touched",
        )


def _by_config(snapshot: HostSnapshot, record: Record) -> bool:
    """Whether the running kubelet has the relay from its configuration: no flag names an endpoint. In an
    interrupted takeover, the configuration may have been repaired since kubelet's start."""
    process, unit = snapshot.kubelet.process, snapshot.kubelet.unit
    if process is None or process.flag("--container-runtime-endpoint") is not None:
        return False
    configured = replace(snapshot.base, texts=(), environment_files={})
    return bool(sources_of(configured)) or record.owed.get(unit.name, "") == unit.invocation_id != ""


def _offer(earlier: Earlier) -> Iterable[Finding]:
    """No takeover was requested. Kubelet's analysis refuses a base that names the relay."""
    what = f"{earlier.unit_file} is not ours" if earlier.unit_file else "the relay is in kubelet's own files"
    ours = "" if earlier.on_relay else ": its files are replaced, and `remove` restores them"
    yield warning(
        "earlier-installation",
        f"another installation of cri-resmgr is on this node ({what}){ours}",
        "`install --take-over` (settings: takeOver: true) takes it over for good; see `plan --take-over`",
    )


def _obstacles(earlier: Earlier) -> tuple[Finding, ...]:
    put = "put a file there, or remove that installation by hand"
    untie = f"delete it, then `systemctl daemon-reload`; After= and Wants= with {paths.PROXY_UNIT} may stay"
    obstacles = [("earlier-obstacle", obstacle, put) for obstacle in earlier.obstacles]
    obstacles += [
        ("earlier-tie", f"{tie} stops kubelet whenever the proxy stops", untie) for tie in earlier.ties
    ]
    if not earlier.endpoint and earlier.on_relay:
        why = f"{paths.PROXY_UNIT} is not running, so the container runtime's endpoint is unknown"
        start = f"`systemctl start {paths.PROXY_UNIT}`, or set proxy.runtimeEndpoint"
        obstacles.insert(0, ("earlier-runtime-unknown", why, start))
    refused = "the installation of cri-resmgr on this node cannot be taken over"
    return tuple(refusal(code, f"{refused}: {why}", hint) for code, why, hint in obstacles)


def _taken(earlier: Earlier) -> Iterable[Finding]:
    repaired = f"; {earlier.endpoint} is restored in {', '.join(earlier.repairs)}" if earlier.repairs else ""
    what = earlier.unit_file or "cri-resmgr"
    yield warning("takeover", f"taking over an earlier installation ({what}){repaired}")
    where = ", ".join(earlier.sources)
    if earlier.lost:
        yield warning(
            "takeover-lost",
            f"lines that name containerd were deleted from {where}; they are lost, but probably were "
            f"{', '.join(earlier.lost)}",
            "gardener-node-agent restores them with its next change of the unit; elsewhere, restore them by "
            "hand, as on a node that the other installer never touched",
        )
