"""The order of the rooms: imports only point down, and every room says what it is for and what it imports.

One test a rule: it lists every breach at once.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import mesh_pilot
from tests.support.source import REPOSITORY, ROOT, modules, name_of, nodes_of, strings_of, tree_of

ORDER = (
    "cli",
    "app",
    "ops",
    "agent",
    "migration",
    "kubernetes",
    "consul",
    "explain",
    "replicas",
    "safety",
    "traffic",
    "sources",
    "xds",
    "envoy",
    "identity",
    "mesh",
    "world",
    "istio",
    "engine",
    "net",
    "model",
    "base",
    "api",
)
"""From the top down, as in the package's docstring."""

PACKAGES = {
    "cli": (
        *("demo", "explain", "change", "operate", "identity", "proxy", "proxy_config", "discovery", "plane", "lib"),
    ),
    "ops": (
        *(
            "app",
            "workers",
            "admin",
            "monitoring",
            "access",
            "page",
            "istiod",
            "metrics",
            "api",
            "causes",
            "explain",
            "values",
        ),
        *("plane", "observers", "tracing", "process", "web"),
    ),
    "agent": (
        *(
            "run",
            "status",
            "registration",
            "traffic",
            "envoy",
            "health",
            "dns",
            "relay",
            "identity",
            "settings",
            "bootstrap",
        ),
        *("interception", "base"),
    ),
    "migration": ("folder", "kubernetes", "consul", "kuma", "base"),
    "kubernetes": ("webhooks", "status", "stores", "election", "source", "identity", "apiserver"),
    "consul": ("stores", "identity", "source", "election", "mesh", "client"),
    "explain": ("suggestions", "plan", "truth", "analysis", "inspection"),
    "replicas": ("workers", "registration", "election"),
    "safety": ("rollout", "quarantine", "state"),
    "sources": ("config_store", "mcp", "acme", "files", "wasm", "jwks", "gateway_hosts", "base"),
    "xds": ("config_api", "ads", "mcp"),
    "envoy": (
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
    ),
    "identity": ("certificates", "openid", "authenticators", "authority", "tokens", "signers", "trust"),
    "istio": ("gateway_api", "reading", "kubernetes", "kinds", "rules", "meaning"),
    "mesh": (
        "virtual_hosts",
        "listeners",
        "policies",
        "legacy",
        "routing",
        "reach",
        "virtual_services",
        "clusters",
        "proxy",
        "settings",
        "selection",
        "names",
    ),
    "net": ("otlp", "http", "rpc", "fetching"),
}
"""The packages of rooms that have some, from the top down, as in their docstrings; a few modules lie between."""

NOT_MODULES = ("__init__.py", "__main__.py", "__pycache__", "samples")

NO_PACKAGES = ("app", "traffic", "base", "engine", "model", "world", "api")
"""The rooms without."""

PURE = {
    "engine.memo": ({"engine"}, {"declared", "nodes", "reports"}),
    "xds.ads.stream": (
        {"base", "model", "engine", "xds"},
        {"stream", "ordering", "subscription", "pending_response", "unserved", "messages", "resources"},
    ),
    "replicas.election.term_lease": ({"replicas"}, set()),
    "kubernetes.election.lease_record": ({"kubernetes"}, set()),
    "sources.mcp.sink": ({"base", "model", "xds", "sources"}, {"xds.mcp.messages"}),
    "xds.config_api.stream": ({"base", "model", "xds"}, {"xds.mcp.messages"}),
}
"""Pure state machines, with all that they import, directly or not: the rooms it may be of, and modules that must be
among it, so that the test cannot pass by looking at nothing."""

PURE_LIBRARIES = {
    "__future__", "attrs", "collections", "datetime", "enum", "functools", "hashlib", "ipaddress", "itertools", "re",
    "traceback", "types", "typing", "weakref",
}  # fmt: skip
"""What a state machine may use besides: nothing that does I/O, has a clock, chance, tasks or a log."""

CLOCKS = {"now", "utcnow", "today"}
"""Methods by which a permitted library (``datetime``) would tell the time."""

BY_NAME = re.compile(r"mesh_pilot(\.\w+)+")
"""The name of a module that is loaded later (`base.later`)."""


@cache
def imported(path: Path) -> frozenset[str]:
    """Modules of mesh_pilot that a module imports anywhere in it, or loads by name, without the package's own name."""
    found = set()
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names] if node.module == "mesh_pilot" else []
            names += [str(node.module)] if node.module != "mesh_pilot" else []
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            is_module = BY_NAME.fullmatch(node.value) and file_of(node.value.removeprefix("mesh_pilot."))
            names = [node.value] if is_module else []
        else:
            continue
        found |= {name.removeprefix("mesh_pilot.") for name in names if name.startswith("mesh_pilot.")}
    return frozenset(found - {"__version__"})


def room_of(path: Path) -> str:
    return name_of(path).split("/")[0].removesuffix(".py")


def docstring_of(room: str) -> str:
    """Of a room, which is a package or one file. Empty without."""
    (path,) = (path for path in (ROOT / room / "__init__.py", ROOT / f"{room}.py") if path.exists())
    return ast.get_docstring(tree_of(path)) or ""


def said_to_import(room: str) -> list[str]:
    """The rooms that a room's docstring permits it to import."""
    sentence = re.search(r"May import: ([^.;]*)[.;]", docstring_of(room))
    assert sentence is not None, f"{room}: no 'May import: ...'"
    if sentence[1] == "everything below":
        return list(ORDER[ORDER.index(room) + 1 :])
    return re.findall(r"``(\w+)``", sentence[1])


def test_imports_only_point_down() -> None:
    wrong = []
    for path in modules():
        room = room_of(path)
        below = ORDER[ORDER.index(room) :] if room in ORDER else ()
        wrong += [f"{name_of(path)}: {name}" for name in imported(path) if name.split(".")[0] not in below]
    assert wrong == []


def test_a_room_imports_what_its_docstring_says_and_nothing_else() -> None:
    for room in ORDER[:-1]:
        assert len(docstring_of(room).split()) > 10
        found = {name.split(".")[0] for path in modules() if room_of(path) == room for name in imported(path)} - {room}
        said = said_to_import(room)
        if "everything below" not in docstring_of(room):
            assert said == sorted(found, key=ORDER.index), f"the docstring of {room}, in the order of the rooms"


def test_every_room_with_packages_has_them_in_an_order() -> None:
    assert {*PACKAGES, *NO_PACKAGES} == {*ORDER}
    assert [room for room in NO_PACKAGES[:-1] if any((ROOT / room).glob("*/__init__.py"))] == []


def test_the_architecture_page_lists_the_rooms_in_the_same_order() -> None:
    page = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
    part = page[page.index("## Rooms") :].partition("\n## ")[0]
    rooms = [room.rstrip("/").removesuffix(".py") for room in re.findall(r"^- `([\w/.]+)`: ", part, re.MULTILINE)]
    assert rooms == list(ORDER)


REGISTRIES = {
    re.compile(r"External|(?i:consul(_(node|service|service_id))?)"): {
        "consul",
        "migration",
        "app",
        "cli",
        "kubernetes/identity/foreign_tokens.py",
        "model/service.py",
        "explain/analysis/registries.py",
    },
    re.compile(r"kubernetes|k8s", re.IGNORECASE): {
        "kubernetes",
        "istio/kubernetes",
        "ops/metrics/webhooks.py",
        "ops/plane/state.py",
        "migration",
        "app",
        "cli",
        "sources/mcp",
        "explain/analysis/registries.py",
    },
}
"""The names of registries, each with the rooms and files that may know it."""


def registries_named(path: Path) -> Iterator[tuple[re.Pattern[str], str]]:
    """The names of registries in a module: as a string, or as a module that it imports."""
    words = {text.removesuffix(":") for text in strings_of(path)}
    words |= {part for module in imported(path) if not module.startswith("api.") for part in module.split(".")[:2]}
    yield from ((registry, word) for registry in REGISTRIES for word in words if registry.fullmatch(word))


def test_only_a_registrys_own_room_its_flags_and_one_table_name_it() -> None:
    wrong, used = [], set()
    for path in modules():
        for registry, word in registries_named(path):
            exempt = {(registry, place) for place in REGISTRIES[registry] if name_of(path).startswith(place)}
            used |= exempt
            wrong += [] if exempt else [f"{name_of(path)}: {word}"]
    assert wrong == []
    dead = {place for registry, places in REGISTRIES.items() for place in places if (registry, place) not in used}
    assert dead == set(), "exempted without need"


@pytest.mark.parametrize("room", PACKAGES)
def test_packages_of_a_room_import_only_those_below(room: str) -> None:
    order, wrong = PACKAGES[room], []
    for path in modules():
        package = dotted(path).split(".")[1] if room_of(path) == room and dotted(path) != room else ""
        below = order[order.index(package) :] if package in order else ()
        names = [name for name in imported(path) if name.startswith(f"{room}.")] if package else []
        wrong += [f"{name_of(path)}: {name}" for name in names if name.split(".")[1] not in below]
    assert wrong == []


def test_pages_know_of_envoys_rendering_only_the_catalog() -> None:
    found = {name for path in modules() if room_of(path) == "ops" for name in imported(path)}
    assert {n for n in found if n.startswith("envoy.") and not n.startswith("envoy.catalog.")} == set()


def test_the_intermediate_form_knows_nothing_of_envoys_messages() -> None:
    found = {library for path in modules() if room_of(path) == "mesh" for library in libraries(path)}
    assert not found & {"envoy", "google", "xds", "udpa", "opencensus", "grpc"}


def test_no_files_import_each_other_in_a_circle() -> None:
    """Imports for type checking count: a reader has to follow them, too."""
    graph = {dotted(path): imported_files(path) for path in modules()}
    assert circles(graph) == []


def dotted(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imported_files(path: Path) -> list[str]:
    """Modules whose files an import statement names, as `from mesh_pilot.package import module` does."""
    found = []
    for node in nodes_of(path):
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
    for node in nodes_of(path):
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
        calls = {n.func.attr for n in nodes_of(path)
                 if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)}  # fmt: skip
        assert not calls & CLOCKS, f"{machine} needs {name}, which asks a clock"


def test_the_package_names_the_rooms_in_the_same_order() -> None:
    places = [(mesh_pilot.__doc__ or "").index(f"``{room}``") for room in ORDER]
    assert places == sorted(places)


@pytest.mark.parametrize("room", PACKAGES)
def test_a_room_names_its_packages_in_the_same_order_and_has_nothing_beside_them(room: str) -> None:
    text = docstring_of(room)
    places = [text.index(f"``{package}``") for package in PACKAGES[room] if (ROOT / room / package).is_dir()]
    assert places == sorted(places)
    found = {path.stem for path in (ROOT / room).iterdir() if path.name not in NOT_MODULES}
    assert found == set(PACKAGES[room])
