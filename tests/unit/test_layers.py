"""The architecture, kept by reading the imports: arrows one way, one door per effect."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]

# From the top down: a module may import from its own package or from packages below.
LAYERS = (
    {"cli"},
    {"gardener"},
    {"operator"},
    {"daemon"},
    {"cluster"},
    {"node"},
    {"manifests", "report"},
    {"inputs"},
    {"host", "rendering"},
    {"model"},
    {"errors"},
)
# The same inside node/: the story, what carries it out, its stages, and what they work with.
NODE = (
    {"picture"},
    {"reconcile"},
    {"unattended"},
    {"carry_out", "rescue", "inspection"},
    {"rollback"},
    {"failure_report", "history"},
    {"converge"},
    {"assess", "takeover", "preconditions"},
    {"preflight", "snapshot", "diff", "plan", "apply"},
    {"adoption_steps", "proxy_signal"},
    {"proxy_start"},
    {"await_kubelet", "unit_jobs"},
    {"run", "file_steps"},
    {"desired", "preflight_proxy", "preflight_units", "preflight_files", "ownership"},
    {"facts", "await_proxy", "relay_steps"},
    {"adoption", "known_pods", "kept", "controls"},
    {"pinning", "record", "kubelet_strategy", "links", "ordering", "sandbox"},
    {"header", "kubelet_endpoint", "kubelet_link"},
    {"kubelet_command"},
)
DOORS = {
    "pydbus": {"installer/host/bus.py"},
    "gi": {"installer/host/bus.py", "installer/daemon/watch.py"},
    "psutil": {"installer/host/process.py"},
    "subprocess": {"installer/host/command.py", "installer/operator/credentials.py"},
    "grpc": {"installer/host/cri.py"},
    "kubernetes": {"installer/operator/kube.py"},
    "urllib3": {"installer/operator/kube.py", "installer/operator/bounded.py"},
    "ctypes": {"installer/host/connections.py", "installer/host/namespaces.py"},
    "fcntl": {"installer/host/connections.py", "installer/host/disk.py", "installer/host/lock.py"},
    "ssl": {
        "installer/cluster/kubeapi.py",
        "installer/operator/credentials.py",
        "installer/operator/kube.py",
        "installer/operator/kubeconfig.py",
    },
    "http": {"installer/cluster/kubeapi.py"},
}
MAY_WRITE_TO_A_TERMINAL = ("installer/report/", "installer/cli/")

MODULES = sorted(path for path in (ROOT / "installer").rglob("*.py"))


def every_module(check: Callable[[Path], None]) -> Callable[[], None]:
    """One test for all modules, which tells of each that fails: a test of its own for each took seconds."""

    def test() -> None:
        faults = []
        for path in MODULES:
            try:
                check(path)
            except AssertionError as error:
                faults.append(f"{name(path)}: {error}")
        assert not faults, "\n".join(faults)

    test.__name__, test.__doc__ = check.__name__, check.__doc__
    return test


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def owner(path: Path) -> str:
    """The module or package of a file, right below `installer`."""
    return path.relative_to(ROOT / "installer").parts[0].removesuffix(".py")


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree(path)))


@cache
def calls(path: Path) -> set[str]:
    """The full names of what is called, where it has one."""
    return set(map(full_name, (node.func for node in nodes(path) if isinstance(node, ast.Call))))


def full_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{full_name(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


@cache
def imports(path: Path, runtime_only: bool = False) -> tuple[str, ...]:
    """The full names of what is imported anywhere in the file; `runtime_only`: not for types alone."""
    found: list[str] = []
    skipped: set[ast.AST] = set()
    for node in nodes(path):
        if runtime_only and isinstance(node, ast.If) and full_name(node.test).endswith("TYPE_CHECKING"):
            skipped.update(child for statement in node.body for child in ast.walk(statement))
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            found += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{name(path)}:{node.lineno}: a relative import"
            found += (f"{node.module}.{alias.name}" for alias in node.names)
    return tuple(found)


def loaded_with(module: str) -> set[str]:
    """The modules of ours that are imported as soon as this one is: not late, in a function."""
    path = ROOT / module.replace(".", "/")
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    found = {module.rpartition(".")[0]} - {""}
    for node in tree(path).body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("installer"):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {node.module} | {each for each in names if is_module(each)}
    return found


def is_module(name: str) -> bool:
    path = ROOT / name.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").exists()


def our_imports(path: Path) -> Iterator[tuple[str, str]]:
    """What this file needs when it runs: (package or module right below `installer`, module in it or "")."""
    for full in imports(path, runtime_only=True):
        head, *rest = full.split(".")
        if head == "installer" and rest and not rest[0].startswith("__"):
            yield rest[0], rest[1] if is_module(".".join(("installer", *rest[:2]))) else ""


def floor(layers: tuple[set[str], ...], module: str) -> int:
    return next((number for number, layer in enumerate(layers) if module in layer), -1)


@every_module
def test_arrows_point_one_way(path: Path) -> None:
    package = owner(path)
    if package == "__init__":
        return
    assert floor(LAYERS, package) >= 0, f"{package} has no layer: put it into LAYERS"
    others = {other for other, _module in our_imports(path)} - {package}
    upward = [other for other in others if floor(LAYERS, other) <= floor(LAYERS, package)]
    assert not upward, f"{package} must not import {upward}"


@every_module
def test_arrows_within_the_node_point_one_way(path: Path) -> None:
    if owner(path) != "node" or path.stem == "__init__":
        return
    assert floor(NODE, path.stem) >= 0, f"{path.stem} has no layer: put it into NODE"
    others = {module for package, module in our_imports(path) if package == "node"} - {path.stem, ""}
    upward = [other for other in others if floor(NODE, other) <= floor(NODE, path.stem)]
    assert not upward, f"{path.stem} must not import {upward}"


def test_there_is_no_import_cycle() -> None:
    needs: dict[str, set[str]] = {}
    for path in MODULES:
        modules = {".".join(filter(None, ("installer", *each))) for each in our_imports(path)}
        ours = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        needs[ours] = {each for each in modules - {ours} if each in needs or is_module(each)}
    while needs:
        free = {module for module, others in needs.items() if not others & needs.keys()}
        assert free, f"a cycle among {sorted(needs)}"
        needs = {module: others for module, others in needs.items() if module not in free}


def test_few_modules_lie_loose() -> None:
    assert len([path for path in MODULES if path.parent == ROOT / "installer"]) <= 5


@every_module
def test_each_customer_gets_only_what_he_needs(path: Path) -> None:
    """A person's laptop has no host."""
    foreign = {
        "cluster": {"node"},
        "operator": {"node", "daemon"},
        "gardener": {"node", "daemon"},
    }
    assert not foreign.get(owner(path), set()) & {package for package, _module in our_imports(path)}


def test_a_run_that_has_nothing_to_do_loads_nothing_that_changes_a_host() -> None:
    """Most of its time is imports. And the daemon, which never changes a host itself, rests on every node."""
    loaded, new = (
        set[str](),
        {"installer.cli", "installer.cli.host", "installer.host.real", "installer.daemon.loop"},
    )
    while new:
        loaded |= new
        new = {other for module in new for other in loaded_with(module)} - loaded
    late = {
        f"installer.node.{module}" for module in ("carry_out", "converge", "apply", "rollback", "history")
    }
    assert not loaded & late


@every_module
def test_one_door_per_effect(path: Path) -> None:
    heads = {module.partition(".")[0] for module in imports(path)}
    for library, doors in DOORS.items():
        assert library not in heads or name(path) in doors, f"{library} belongs into {sorted(doors)}"


@every_module
def test_no_node_needs_the_client_of_kubernetes(path: Path) -> None:
    """Its library is an extra, and only the verbs that need it load it, inside a function."""
    packages = {"operator", "gardener"}
    if owner(path) in packages or not packages & {package for package, _module in our_imports(path)}:
        return
    assert owner(path) == "cli"
    top = {node.module for node in tree(path).body if isinstance(node, ast.ImportFrom)}
    assert not [each for each in top if each and each.split(".")[1:2] and each.split(".")[1] in packages]


@every_module
def test_only_reports_write_to_a_terminal(path: Path) -> None:
    if name(path).startswith(MAY_WRITE_TO_A_TERMINAL):
        return
    assert not calls(path) & {"print", "sys.stdout.write", "sys.stderr.write"}
    assert not any(isinstance(node, ast.Constant) and node.value == "\x1b[" for node in nodes(path))


@every_module
def test_only_the_cli_exits(path: Path) -> None:
    assert name(path).startswith("installer/cli/") or not calls(path) & {
        "sys.exit",
        "exit",
        "os._exit",
        "SystemExit",
    }


@every_module
def test_a_module_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(tree(path)), "a module opens with what it is for"


def test_what_runs_inside_a_machine_needs_no_pytest() -> None:
    """It has the program's own libraries alone."""
    for module in ("machine.agent", "machine.containers", "machine.manifest", "lib.nri_plugin"):
        code = f"import sys; sys.modules.update(pytest=None, _pytest=None); import tests.{module}"
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


_IMPORTS_A_TEST = re.compile(r"^ *(from|import) [\w.]*\btest_", re.MULTILINE)


def test_no_module_of_tests_imports_another() -> None:
    """What several need is in tests/lib."""
    modules = [path for path in (ROOT / "tests").rglob("test_*.py") if "cases" not in path.parts]
    assert len(modules) > 150
    found = [name(path) for path in modules if _IMPORTS_A_TEST.search(path.read_text())]
    assert not found, "\n".join(found)
