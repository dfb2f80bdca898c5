"""The order of the rooms: imports only point down, and every room says what it is for."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import mesh_pilot

ROOT = Path(mesh_pilot.__file__).parent
ORDER = (
    "cli",
    "agent",
    "app",
    "webhooks",
    "status",
    "ops",
    "config_api",
    "rollout",
    "quarantine",
    "plan",
    "analysis",
    "migration",
    "inspection",
    "xds",
    "envoy",
    "mesh",
    "security",
    "config_store",
    "election",
    "sources",
    "consul_mesh",
    "state",
    "world",
    "gateway_api",
    "failures",
    "incremental",
    "snapshots",
    "http",
    "rpc",
    "mcp",
    "kubernetes",
    "apiserver",
    "config",
    "protowire",
    "sqlite_file",
    "upkeep",
    "sealing",
    "model",
    "api",
)
"""From the top down, as in the package's docstring."""

GENERATING = {"envoy", "mesh", "world", "gateway_api", "failures", "incremental", "snapshots", "config", "model", "api"}
"""The World and the code that makes resources of it."""

NARROWER = {
    "status": {"ops", "analysis", "election", "sources", "world", "gateway_api", "apiserver", "config", "model", "api"},
    "agent": {"security", "http", "rpc", "config", "protowire", "sqlite_file", "upkeep", "sealing", "model", "api"},
    "http": {"rpc"},
    "inspection": {"config", "model", "api"},
    "plan": {"analysis", "inspection", "xds", "state", *GENERATING},
    "analysis": {"inspection", *GENERATING},
    "migration": {"sources", "consul_mesh", "kubernetes", "config", "model", "api"},
    "config_api": {"world", "failures", "mcp", "rpc", "config", "model", "api"},
    "config_store": {"election", "sources", "apiserver", "config", "model", "api"},
    "election": {"sources", "apiserver", "model", "api"},
    "sources": {"consul_mesh", "mcp", "kubernetes", "apiserver", "rpc", "config", "model", "api"},
    "consul_mesh": {"config", "model"},
    "state": {"world", "config", "sqlite_file", "sealing", "model", "api"},
    "mcp": {"config", "model", "api"},
    "kubernetes": {"config", "model", "api"},
    "apiserver": set(),
    "gateway_api": {"config", "model", "api"},
}
"""Rooms that may not import all of those below, with those they may import."""

PACKAGES = (
    "catalog",
    "envoy_filter",
    "refusals",
    "grpc",
    "gateway",
    "listeners",
    "routes",
    "filters",
    "telemetry",
    "clusters",
    "endpoints",
    "tls",
    "core",
)
"""The packages of ``envoy``, from the top down, as in its docstring."""

PURE = {
    "incremental.memo": ({"incremental"}, {"declared", "nodes", "reports"}),
    "xds.stream": (
        {"model", "snapshots", "xds"},
        {"stream", "ordering", "subscription", "pending_response", "unserved", "messages", "resources"},
    ),
    "election.tenure": ({"election"}, set()),
    "election.lease_record": ({"election"}, set()),
    "sources.mcp.sink": ({"model", "mcp", "sources"}, {"mcp.messages"}),
    "config_api.stream": ({"model", "mcp", "config_api"}, {"mcp.messages"}),
}
"""Pure state machines, with all that they import, directly or not: the rooms it may be of, and modules that must be
among it, so that the test cannot pass by looking at nothing."""

PURE_LIBRARIES = {
    "__future__", "attrs", "collections", "datetime", "enum", "functools", "hashlib", "ipaddress", "itertools",
    "traceback", "types", "typing", "weakref",
}  # fmt: skip
"""What a state machine may use besides: nothing that does I/O, has a clock, chance, tasks or a log."""

CLOCKS = {"now", "utcnow", "today"}
"""Methods by which a permitted library (``datetime``) would tell the time."""


def modules() -> list[Path]:
    return [path for path in sorted(ROOT.rglob("*.py")) if path.relative_to(ROOT).parts[0] != "api"]


def imported(path: Path) -> set[str]:
    """Modules of mesh_pilot that a module imports anywhere in it, without the package's own name."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names] if node.module == "mesh_pilot" else []
            names += [str(node.module)] if node.module != "mesh_pilot" else []
        else:
            continue
        found |= {name.removeprefix("mesh_pilot.") for name in names if name.startswith("mesh_pilot.")}
    return found - {"__version__"}


@pytest.mark.parametrize("path", modules(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_imports_only_point_down(path: Path) -> None:
    name = path.relative_to(ROOT).as_posix()
    room = name.split("/")[0].removesuffix(".py")
    if room == "__init__":
        assert imported(path) == set()
        return
    below = {room, *NARROWER[room]} if room in NARROWER else set(ORDER[ORDER.index(room) :])
    assert below <= set(ORDER[ORDER.index(room) :])
    rooms = {module.split(".")[0] for module in imported(path)}
    assert rooms <= below, f"{name} may not import {sorted(rooms - below)}"


REGISTRIES = {
    re.compile(r"External|(?i:consul(_(node|service|service_id))?)"): {
        "consul_mesh",
        "migration",
        "cli/migrate",
        "sources/consul",
        "cli/registries",
        "cli/demo",
        "cli/proxy",
        "cli/consul_process.py",
        "cli/recognised.py",
        "security/authenticators/foreign_tokens.py",
        "cli/authenticator_flags.py",
        "security/authenticators/consul.py",
        "cli/ca_store_flags.py",
        "security/authority/consul_store.py",
        "election",
        "cli/election_flags.py",
        "model/service.py",
        "analysis/registries.py",
        "config_store",
    },
    re.compile(r"kubernetes|k8s", re.IGNORECASE): {
        "webhooks",
        "kubernetes",
        "migration",
        "cli/migrate",
        "cli/registries",
        "sources/kubernetes",
        "sources/config_sources.py",
        "app/config_cluster.py",
        "app/proxy_accounts.py",
        "security/authenticators/foreign_tokens.py",
        "cli/authenticator_flags.py",
        "security/authenticators/kubernetes.py",
        "election",
        "cli/election_flags.py",
        "mcp",
        "sources/mcp",
        "analysis/registries.py",
        "config_store",
    },
}
"""The names of registries, each with the rooms and files that may know it."""


@pytest.mark.parametrize("path", modules(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_only_a_registrys_own_room_its_flags_and_one_table_name_it(path: Path) -> None:
    name = path.relative_to(ROOT).as_posix()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    words = {text.removesuffix(":") for text in texts}
    words |= {part for module in imported(path) if not module.startswith("api.") for part in module.split(".")[:2]}
    for registry, rooms in REGISTRIES.items():
        found = {word for word in words if registry.fullmatch(word)}
        assert not found or name.startswith(tuple(rooms)), f"{name} names a registry: {sorted(found)}"


@pytest.mark.parametrize("path", sorted((ROOT / "envoy").rglob("*.py")), ids=lambda p: p.relative_to(ROOT).as_posix())
def test_packages_of_envoy_import_only_those_below(path: Path) -> None:
    package = path.relative_to(ROOT).parts[1]
    if package == "__init__.py":
        assert imported(path) == set()
        return
    below = set(PACKAGES[PACKAGES.index(package) :])
    wrong = {m for m in imported(path) if m.split(".")[0] == "envoy" and m.split(".")[1] not in below}
    assert not wrong, f"{path.name} of {package} may not import {sorted(wrong)}"


@pytest.mark.parametrize("path", sorted((ROOT / "ops").rglob("*.py")), ids=lambda p: p.relative_to(ROOT).as_posix())
def test_pages_know_of_envoys_rendering_only_the_catalog(path: Path) -> None:
    rendering = {module for module in imported(path) if module.startswith("envoy.")}
    assert {module for module in rendering if not module.startswith("envoy.catalog.")} == set()


@pytest.mark.parametrize("path", sorted((ROOT / "mesh").rglob("*.py")), ids=lambda p: p.relative_to(ROOT).as_posix())
def test_the_intermediate_form_knows_nothing_of_envoys_messages(path: Path) -> None:
    assert not libraries(path) & {"envoy", "google", "xds", "udpa", "opencensus", "grpc"}


def test_no_files_import_each_other_in_a_circle() -> None:
    """Imports for type checking count: a reader has to follow them, too."""
    graph = {name_of(path): imported_files(path) for path in modules()}
    assert circles(graph) == []


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imported_files(path: Path) -> list[str]:
    """Modules whose files an import statement names, as `from mesh_pilot.package import module` does."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("mesh_pilot."):
            package = str(node.module).removeprefix("mesh_pilot.")
            named = [f"{package}.{alias.name}" for alias in node.names]
            found += [name if file_of(name) else package for name in named]
    return found


def circles(graph: dict[str, list[str]]) -> list[list[str]]:
    """Groups of modules each of which can be reached from each other."""
    reached = {name: reachable(graph, name) for name in graph}
    groups = {frozenset([name, *(n for n in reached[name] if name in reached.get(n, ()))]) for name in graph}
    return sorted(sorted(group) for group in groups if len(group) > 1)


def reachable(graph: dict[str, list[str]], start: str) -> set[str]:
    found: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += graph.get(name, ())
    return found


def closure(module: str) -> dict[str, Path]:
    """A module of mesh_pilot and all of mesh_pilot that importing it imports."""
    found: dict[str, Path] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        path = file_of(name)
        if path is None or name in found:
            continue
        found[name] = path
        waiting += imported(path)
        waiting += [name.rpartition(".")[0]] if "." in name else []
    return found


def file_of(module: str) -> Path | None:
    """None for a name in a module, as `model.config.Config` is."""
    folder = ROOT.joinpath(*module.split("."))
    return next((path for path in (folder.with_suffix(".py"), folder / "__init__.py") if path.exists()), None)


def libraries(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(str(node.module).split(".")[0])
    return found - {"mesh_pilot"}


@pytest.mark.parametrize("machine", PURE)
def test_state_machines_are_pure_with_all_that_they_import(machine: str) -> None:
    rooms, needed = PURE[machine]
    modules = closure(machine)
    room = machine.rpartition(".")[0]
    assert {name if "." in name else f"{room}.{name}" for name in needed} <= modules.keys()
    others = {name for name in modules if name.split(".")[0] not in rooms and name != machine}
    assert not others, f"{machine} may not need {sorted(others)}"
    for name, path in modules.items():
        unwanted = libraries(path) - PURE_LIBRARIES
        assert not unwanted, f"{machine} needs {name}, which may not import {sorted(unwanted)}"
        calls = {n.func.attr for n in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
                 if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)}  # fmt: skip
        assert not calls & CLOCKS, f"{machine} needs {name}, which asks a clock"


def test_the_package_names_the_rooms_in_the_same_order() -> None:
    places = [(mesh_pilot.__doc__ or "").index(f"``{room}``") for room in ORDER]
    assert places == sorted(places)


def test_envoy_names_its_packages_in_the_same_order() -> None:
    text = ast.get_docstring(ast.parse((ROOT / "envoy" / "__init__.py").read_text(encoding="utf-8"))) or ""
    places = [text.index(f"``{package}``") for package in PACKAGES]
    assert places == sorted(places)
    assert {p.name for p in (ROOT / "envoy").iterdir() if p.is_dir() and p.name != "__pycache__"} == set(PACKAGES)


@pytest.mark.parametrize("room", [room for room in ORDER if any((ROOT / room).glob("*.py"))])
def test_every_room_says_what_it_is_for_and_what_it_may_import(room: str) -> None:
    text = ast.get_docstring(ast.parse((ROOT / room / "__init__.py").read_text(encoding="utf-8"))) or ""
    assert len(text.split()) > 10
    assert "May import" in text
