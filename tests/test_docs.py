"""The documentation says what is so: links lead somewhere, flags and fields are those of the code."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import click
import httpx
import pytest
from starlette.routing import Route

import mesh_pilot
from mesh_pilot.agent.bootstrap.envoy_bootstrap import DRAIN_FLAGS
from mesh_pilot.api.istio.mesh.v1alpha1 import MeshConfig
from mesh_pilot.cli.discovery.command import command as discovery
from mesh_pilot.cli.explain.analyze import command as analyze
from mesh_pilot.cli.explain.proxy_status import command as proxy_status
from mesh_pilot.cli.identity.certificate import command as certificate
from mesh_pilot.cli.identity.token import command as token
from mesh_pilot.cli.lib.logs import SCOPES
from mesh_pilot.cli.proxy import command as proxy
from mesh_pilot.cli.proxy.envoy_command import command as envoy_bootstrap
from mesh_pilot.ops.app import debug_app
from mesh_pilot.safety.state.settings import StateSettings
from tests.support.planes import running_plane
from tests.support.source import pages

ROOT = Path(__file__).parents[1]
CODE = Path(mesh_pilot.__file__).parent
CONFIGURATION = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
OPERATING = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")


def test_links_lead_somewhere() -> None:
    links = [(page, t) for page in pages() for t in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8"))]
    assert [(page, t) for page, t in links if not t.startswith("http") and not (page.parent / t).exists()] == []


def test_every_envoy_that_is_started_has_the_flags_for_draining() -> None:
    """A permission that is taken back depends on them."""
    started = [
        line for page in pages() for line in re.findall(r"^    .*\benvoy -c .*$", page.read_text(), re.MULTILINE)
    ]
    assert len(started) >= 5
    assert [line for line in started if " ".join(DRAIN_FLAGS) not in line] == []
    assert " ".join(DRAIN_FLAGS) in (ROOT / "docs" / "security.md").read_text(encoding="utf-8")


def test_flags_of_other_commands_are_described_where_they_are_named() -> None:
    """In the docs' commands there is no flag that its command does not have."""
    commands = {"envoy-bootstrap": envoy_bootstrap, "analyze": analyze, "proxy-status": proxy_status}
    commands["certificate"] = certificate
    commands |= {f"token {name}": command for name, command in token.commands.items()}
    commands |= {f"proxy {name}": command for name, command in proxy.commands.items()}
    names = "|".join(commands)
    for page in pages():
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        assert set(re.findall(r"^    .*mesh-pilot ((?:token|proxy) [a-z-]+)", text, re.MULTILINE)) <= commands.keys(), (
            page
        )
        for name, used in re.findall(rf"^    .*mesh-pilot ({names})(.*)$", text, re.MULTILINE):
            flags = {flag for p in commands[name].params for flag in (*p.opts, *p.secondary_opts)}
            assert set(re.findall(r"(?<= )--?[a-z][a-z-]*", used.partition("#")[0])) <= flags, (page, used)


def test_every_flag_of_discovery_is_described_and_no_other() -> None:
    table = CONFIGURATION[: CONFIGURATION.index("Addresses are")]
    items = re.findall(r"^- ((?:`--[a-zA-Z-]+`/?)+)", table, re.MULTILINE)
    described = {name for item in items for name in re.findall(r"`(--[a-zA-Z-]+)`", item)}
    flags = {name for p in discovery.params if isinstance(p, click.Option) for name in (*p.opts, *p.secondary_opts)}
    assert described == flags - {"--help-all"}


def test_default_values_of_flags_are_as_described() -> None:
    for param in discovery.params:
        if isinstance(param, click.Option) and isinstance(param.default, str) and param.default:
            row = next(row for row in CONFIGURATION.splitlines() if row.startswith(f"- `{param.opts[0]}`"))
            assert f"`{param.default}`" in row


def test_mesh_fields_said_to_have_an_effect_are_read_by_translators_and_the_others_are_not() -> None:
    part = CONFIGURATION[CONFIGURATION.index("These fields have an effect") : CONFIGURATION.index("- `defaultConfig`")]
    described = {*re.findall(r"`([a-zA-Z0-9]+)`", part), "defaultConfig"}
    files = [
        file
        for room in ("istio/gateway_api", "world", "mesh", "envoy", "identity")
        for file in (CODE / room).rglob("*.py")
    ]
    files += [
        CODE / "app" / "control_plane.py",
        CODE / "app" / "config_callers.py",
        CODE / "app" / "sources.py",
        CODE / "sources/acme/wanted.py",
        CODE / "kubernetes/source/source.py",
    ]
    assert described == {_camel(name) for file in files for name in _mesh_fields_read(file)}


MESH = re.compile(r"[\w.]+\.mesh\(\)|[\w.]*\bmesh\.(peek|read)\(\(\)\)|load_mesh_config\(.*\)")
"""Expressions that give the MeshConfig."""


def _mesh_fields_read(file: Path) -> set[str]:
    """The fields of MeshConfig that a module takes of what is one: of such an expression, or of a name that stands for
    one or is annotated as one in the same function."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    fields = {field.name for field in dataclasses.fields(MeshConfig)}
    read = set()
    for scope in ast.walk(tree):
        if isinstance(scope, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef):
            names = set(_mesh_names(scope))
            for node in ast.walk(scope):
                if isinstance(node, ast.Attribute) and node.attr in fields:
                    value = ast.unparse(node.value)
                    if value in names or MESH.fullmatch(value):
                        read.add(node.attr)
    return read


def _mesh_names(scope: ast.AST) -> Iterator[str]:
    if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
        for argument in scope.args.args:
            if argument.annotation and ast.unparse(argument.annotation).split(".")[-1] == "MeshConfig":
                yield argument.arg
    for node in () if isinstance(scope, ast.Module) else ast.walk(scope):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value and MESH.fullmatch(ast.unparse(node.value)):
            yield from map(ast.unparse, node.targets if isinstance(node, ast.Assign) else [node.target])


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in rest)


def test_every_log_scope_is_described() -> None:
    logs = re.split(r"^## ", OPERATING[OPERATING.index("## Logs\n") :], flags=re.MULTILINE)[1]
    assert set(re.findall(r"^- `([a-z]+)`: ", logs, re.MULTILINE)) == set(SCOPES)


@pytest.mark.plane
async def test_every_metric_of_ours_and_every_page_is_described_and_no_other(tmp_path: Path) -> None:
    async with (
        running_plane(tmp_path, state=StateSettings(folder=tmp_path / "state")) as plane,
        httpx.AsyncClient(trust_env=False, timeout=60) as client,
    ):
        metrics = (await client.get(f"http://{plane.addresses.http}/metrics")).text
        pages = {
            route.path
            for route in debug_app(plane.state).routes
            if isinstance(route, Route) and not route.path.startswith(("/api/", "/page/", "/debug/{"))
        }
        of_istiod = {
            f"/debug/{name}" for name in (await client.get(f"http://{plane.addresses.http}/debug/list")).json()
        }
    names = {
        name for name in re.findall(r"^# TYPE (\w+)", metrics, re.MULTILINE) if not re.match("process_|python_", name)
    }
    assert {name for title in ("of istiod", "of mesh-pilot") for name in described_metrics(f"Metrics {title}")} == names
    assert _described(OPERATING, "Pages", r"`(/[\w/]*)(?:\?[^`]*)?`") - of_istiod == pages - of_istiod


def described_metrics(title: str) -> set[str]:
    """The metrics in the list or table under a title of their page."""
    return _described((ROOT / "docs" / "metrics.md").read_text(encoding="utf-8"), title, r"`(\w+)(?:\{[\w,]+\})?`")


def _described(page: str, title: str, name: str) -> set[str]:
    """The names in the first column of the tables, and the terms of the lists, under a title of a page."""
    part = re.split(r"^## ", page[page.index(f"## {title}\n") :], flags=re.MULTILINE)[1]
    terms = re.findall(r"^(?:\|([^|]*)\||- (.*?`): )", part, re.MULTILINE)
    return {found for term in terms for found in re.findall(name, "".join(term))}


def test_the_first_screen_of_the_readme_has_the_two_commands() -> None:
    first_screen = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()[:25]
    commands = [line.strip() for line in first_screen if line.startswith("    ")]
    venv = "python3 -m venv .venv && .venv/bin/pip install -q"
    assert commands == [f"{venv} '.[demo]' && .venv/bin/mesh-pilot demo", f"{venv} tox && .venv/bin/tox"]
    assert commands[1] in (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
