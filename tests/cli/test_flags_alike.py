"""A flag that takes a list adds up: with commas between, repeated, or both."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import mesh_pilot
from mesh_pilot.cli import cli
from mesh_pilot.cli.lib.options import FlagType, ListOption
from mesh_pilot.cli.lib.rollout_types import labels, shares
from mesh_pilot.cli.lib.setting_options import with_settings
from mesh_pilot.identity.authenticators.settings import TrustedGateways
from mesh_pilot.model.flags import built


def commands(command: click.Command, path: str = "mesh-pilot") -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            found = command.get_command(click.Context(command), name)
            assert found is not None
            yield from commands(found, f"{path} {name}")


OPTIONS = [(path, each) for path, command in commands(cli) for each in command.params if isinstance(each, click.Option)]


def test_every_flag_that_takes_commas_adds_up() -> None:
    """By its metavar or help: a list that the last occurrence replaces loses the others silently."""
    lists = re.compile(r",\.\.\.|with commas|separated by commas|\bor a list\b")
    lost = [
        (path, option.opts)
        for path, option in OPTIONS
        if lists.search(f"{option.metavar} {option.help}")
        and not isinstance(option, ListOption)
        and not option.multiple
    ]
    assert lost == []


def test_the_flags_with_lists_are_known() -> None:
    found = {option.opts[-1] for _, option in OPTIONS if isinstance(option, ListOption)}
    assert found >= {
        "--insecure-kubeconfig-options",
        "--istio-inbound-ports",
        "--level",
        "--log-level",
        "--proxy-uid",
        "--registries",
        "--rollout-steps",
        "--selector",
        "--tls-dns-names",
        "--trusted-gateway",
        "--trusted-gateway-cidrs",
        "--wasm-insecure-registries",
        "--webhook-dns-names",
    }


@pytest.mark.parametrize(
    ("kind", "given", "read"),
    [
        (str, ["--list", "a", "--list", "b"], "a,b"),
        (str, ["--list", "a,b", "--list=c"], "a,b,c"),
        (str, [], "default"),
        (str, ["--list", ""], ""),
        (FlagType(shares), ["--list", "5", "--list", "25,100"], (5.0, 25.0, 100.0)),
        (FlagType(labels), ["--list", "app=web", "--list", "tier=front"], {"app": "web", "tier": "front"}),
    ],
)
def test_occurrences_are_joined(kind: object, given: list[str], read: object) -> None:
    seen = []

    @click.command()
    @click.option("--list", "found", cls=ListOption, type=kind, default="default" if kind is str else None)
    def command(found: object) -> None:
        seen.append(found)

    result = CliRunner().invoke(command, given, catch_exceptions=False)
    assert (result.exit_code, seen) == (0, [read])


def test_a_variable_has_commas() -> None:
    seen = []

    @click.command()
    @with_settings(TrustedGateways)
    def command(**values: object) -> None:
        seen.append(built(TrustedGateways, values).identities)

    variable = "MESH_PILOT_TRUSTED_GATEWAY"
    CliRunner(env={variable: "a/b, c/d"}).invoke(command, [], catch_exceptions=False)
    CliRunner(env={variable: "a/b"}).invoke(command, ["--trusted-gateway", "e/f"], catch_exceptions=False)
    assert seen == [{("a", "b"), ("c", "d")}, {("e", "f")}]


OF_OTHERS = ("agent/envoy/", "agent/interception/", "cli/demo/envoy_process.py")
"""Modules that start other programs, or answer the flags of istiod."""

ENVOYS = {
    "--allow-unknown-static-fields",
    "--ambient-caps",
    "--concurrency",
    "--drain-strategy",
    "--drain-time-s",
    "--file-flush-interval-msec",
    "--file-flush-min-size-kb",
    "--inh-caps",
    "--init-groups",
    "--mode",
    "--no-create-home",
    "--no-pager",
    "--now",
    "--parent-shutdown-time-s",
    "--regid",
    "--reuid",
    "--shell",
    "--skip-deprecated-logs",
    "--system",
    "--use-dynamic-base-id",
    "--user-group",
}
"""Flags of Envoy, systemctl, journalctl, useradd, groupadd and setpriv that messages and settings name."""


def test_every_flag_that_a_message_names_is_there() -> None:
    known = {name for _, option in OPTIONS for name in (*option.opts, *option.secondary_opts)} | ENVOYS
    source = Path(mesh_pilot.__file__).parent
    for file in source.rglob("*.py"):
        name = file.relative_to(source).as_posix()
        if name.startswith(("api/", *OF_OTHERS)):
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                flags = re.findall(r"(?<![-\w])--[a-z][a-z0-9-]*[a-z0-9](?![-\w*])", node.value)
                assert {*flags} - known <= {"--some-flag", "--help", "--version"}, f"{name}:{node.lineno}"
