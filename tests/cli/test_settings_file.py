"""The settings file of discovery: what it says, what it refuses, how it is printed, and what a change of it does."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
import trio
from click.testing import CliRunner
from structlog.testing import capture_logs

from mesh_pilot.app.settings import Settings
from mesh_pilot.cli.discovery import reloading
from mesh_pilot.cli.discovery.command import command, settings_of
from mesh_pilot.cli.discovery.flags import CLASSES, FILE, ProcessFlags
from mesh_pilot.cli.discovery.reloading import FollowedFile
from mesh_pilot.model.flags import Flag, FlagKind, built, flags_of
from mesh_pilot.model.guard import GuardOptions
from mesh_pilot.model.log_levels import SWITCH, LogLevels
from mesh_pilot.world import Reducer, World
from mesh_pilot.world.intake import Intake

FLAGS = {setting.names[0]: setting for each in CLASSES for setting in flags_of(each)}
SECRETS = {name for name, setting in FLAGS.items() if setting.secret}
ALONE = {"--config-file", "--print-config"}

READERS = {
    "--consul-default-protocol": "grpc",
    "--consul-hold": "forever",
    "--log-level": "info,xds:debug",
    "--otel-traces": "http://127.0.0.1:4318",
    "--otel-metrics": "http://127.0.0.1:4318",
    "--registries": "Kubernetes,Consul",
    "--rollout-canary": "5%",
    "--rollout-steps": "25,100",
    "--rollout-while": "errors < 1%",
    "--state-max-age": "consul=1h",
    "--status-interval": "20s",
    "--trusted-gateway": "shop/edge",
    "--trusted-gateway-cidrs": "10.0.0.0/8",
    "--workers": "2",
}
"""A value of each flag that has its own type."""


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("MESH_PILOT_")]:
        monkeypatch.delenv(name)


def example(setting: Flag) -> str:
    """A value that is not the default."""
    if setting.names[0] in READERS:
        return READERS[setting.names[0]]
    if isinstance(setting.kind, tuple):
        return next(choice for choice in reversed(setting.kind) if choice != setting.default)
    match setting.kind:
        case FlagKind.INTEGER | FlagKind.NUMBER:
            return "0.75" if setting.is_below else "77"
        case FlagKind.DURATION:
            return "1m17s"
        case FlagKind.ADDRESS:
            return "127.0.0.1:17000"
        case FlagKind.WORDS:
            return "one,two"
    return "off"  # a string that YAML would take for something else


def every_flag(but: set[str]) -> list[str]:
    found = []
    for name, setting in FLAGS.items():
        if name in but:
            continue
        if setting.kind is FlagKind.SWITCH:
            found.append(setting.names[1] if setting.default and len(setting.names) > 1 else name)
        else:
            found += [name, example(setting)] * (2 if setting.repeats else 1)
    return found


def printed(*flags: str, **environment: str) -> str:
    result = CliRunner(env=environment).invoke(command, [*flags, "--print-config"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def values_of(*flags: str) -> Mapping[str, Any]:
    return command.make_context("discovery", [*flags]).params


def test_every_flag_makes_a_file_that_makes_the_same_settings(tmp_path: Path) -> None:
    flags = every_flag(SECRETS | ALONE)
    file = tmp_path / "mesh-pilot.yaml"
    file.write_text(printed(*flags))
    from_flags, from_file = values_of(*flags), values_of("--config-file", str(file))
    assert {key: from_file[key] for key in from_flags if key != "config_file"} == {
        key: value for key, value in from_flags.items() if key != "config_file"
    }
    assert printed("--config-file", str(file)) == file.read_text()
    for name in {setting.parameter for setting in FLAGS.values() if setting.names[0] not in SECRETS | ALONE}:
        assert from_file[name] != values_of()[name], f"{name} is not an example of anything"


def test_settings_from_a_file_are_those_from_flags(tmp_path: Path) -> None:
    flags = ["--config-dir", str(tmp_path), "--no-guard", "--ca-dir", "ca", "--status-qps", "7", "--no-state"]
    (tmp_path / "mesh-pilot.yaml").write_text(printed(*flags))
    ranks = dict.fromkeys((setting.parameter for setting in FLAGS.values()), FILE)
    file = values_of("--config-file", str(tmp_path / "mesh-pilot.yaml"))
    found, expected = settings_of(file, ranks, {}), settings_of(values_of(*flags), ranks, {})
    assert found == expected
    assert (found.guard, found.config_dirs, found.status.per_second) == (None, (tmp_path,), 7.0)


def test_a_flag_wins_over_a_variable_that_over_istios_and_that_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "mesh-pilot.yaml"
    file.write_text("domain: file\nnamespace: file\nrevision: file\nguard-share: 0.25\ndebounce-max: 7s\n")
    of_us = {"MESH_PILOT_DOMAIN": "variable", "MESH_PILOT_NAMESPACE": "variable", "MESH_PILOT_CONFIG_FILE": str(file)}
    found = printed("--domain", "flag", **of_us, PILOT_DEBOUNCE_MAX="8s")
    for line in ("domain: flag", "namespace: variable", "revision: file", "guard-share: 0.25", "debounce-max: 8s"):
        assert line in found.splitlines()


def test_secrets_are_not_printed_but_the_setting_of_their_file_is_named() -> None:
    found = printed("--consul-token", "hush")
    assert "hush" not in found
    name = "consul-token"
    assert f"# {name} is a secret, which is not printed: put it into a file, and name that as {name}-file" in found


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("domain: a\ngaurd-share: 0.2\n", ":2: there is no setting 'gaurd-share'; did you mean guard-share?"),
        ("\ngrpc-addr: 15010\n", ":2: grpc-addr: '15010' has no port"),
        ("cluster-set: sometimes\n", ":1: cluster-set: 'sometimes' is not one of"),
        ("domain: [a, b]\n", ":1: domain has one value, not a list"),
        ("domain:\n", ":1: domain has no value: write one, or remove the line"),
        ("config-dir: [a, {b: c}]\n", ":1: config-dir has no value"),
        ("domain: a\ndomain: b\n", ":2: domain is there already, at "),
        ("config-file: other.yaml\n", ":1: there is no setting 'config-file'"),
        ("- domain\n", ":1: expected settings, each a line such as"),
        ("domain: [\n", ": this is not YAML: "),
        ("state-dir: a\nno-state: true\nconfig-dir: a\n", "--state-dir and --no-state exclude each other"),
    ],
)
def test_what_is_wrong_in_a_file_is_one_line_with_its_place(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "mesh-pilot.yaml"
    file.write_text(text)
    result = CliRunner().invoke(command, ["--config-file", str(file)])
    assert result.exit_code == 2
    assert says in result.output


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    result = CliRunner().invoke(command, ["--config-file", str(tmp_path / "none.yaml")])
    assert (result.exit_code, "none.yaml: No such file or directory" in result.output) == (2, True)


def followed(file: Path, text: str, *flags: str, above: tuple[str, ...] = ()) -> tuple[FollowedFile, Any]:
    """A followed file, and the parts of a control plane that it changes."""
    file.write_text(text)
    context = command.make_context("discovery", ["--config-file", str(file), *flags])
    SWITCH.begin(built(ProcessFlags, context.params).log_level)
    guard = built(Settings, context.params).guard
    intake = Intake(World(), guarded=["files"], guard=guard)
    plane = SimpleNamespace(state=SimpleNamespace(reducer=Reducer(World(), intake=intake)), workers=None)
    return FollowedFile(context, file, ("config-file", "print-config"), context.params, above), plane


def write(file: Path, text: str) -> None:
    file.write_text(text)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "mesh-pilot.yaml"


async def test_what_is_safe_takes_effect_and_the_log_says_so(file: Path, autojump_clock: object) -> None:
    following, plane = followed(file, "log-level: info\nguard-share: 0.5\n")
    write(file, "log-level: info,xds:debug\nguard-share: 0.25\ndebounce-after: 1s\n")
    with capture_logs() as logs:
        await following.read(plane)
    assert {(line["event"], line["setting"]) for line in logs} == {
        ("a setting has changed", key) for key in ("log-level", "guard-share", "debounce-after")
    }
    reducer = plane.state.reducer
    assert [guard.options for guard in reducer.intake._guards.values()] == [GuardOptions(share=0.25)]
    assert (reducer._after, reducer._max) == (1.0, 10.0)
    assert SWITCH.levels == LogLevels(scopes={"xds": 10})
    write(file, "")
    await following.read(plane)
    assert [guard.options for guard in reducer.intake._guards.values()] == [GuardOptions()], "the default again"
    assert SWITCH.levels == LogLevels()


async def test_what_needs_a_restart_is_logged_as_such(file: Path) -> None:
    following, plane = followed(file, "domain: a\n", "--log-level", "info", above=("log_level",))
    write(file, "domain: b\nlog-level: debug\n")
    with capture_logs() as logs:
        await following.read(plane)
        await following.read(plane)
    assert [(line["event"], line["setting"], line["log_level"]) for line in logs] == [
        ("a setting has changed, which takes effect at the next start", "domain", "warning"),
        ("a setting has not changed: a flag or a variable gives it", "log-level", "info"),
    ]
    assert SWITCH.levels == LogLevels()


async def test_a_wrong_file_changes_nothing_until_it_is_right(file: Path) -> None:
    following, plane = followed(file, "guard-share: 0.5\n")
    write(file, "guard-share: 0.25\nguard-minimum: none\n")
    with capture_logs() as logs:
        await following.read(plane)
    assert [line["log_level"] for line in logs] == ["error"]
    assert f"{file}:2: guard-minimum: " in logs[0]["reason"]
    assert [guard.options for guard in plane.state.reducer.intake._guards.values()] == [GuardOptions()]


async def test_a_file_is_read_when_it_changes(
    file: Path, autojump_clock: object, monkeypatch: pytest.MonkeyPatch, nursery: Any
) -> None:
    following, plane = followed(file, "guard-share: 0.5\n")
    nursery.start_soon(following.run, plane)
    other = file.with_name("other")
    write(other, "guard-share: 0.125\n")
    other.replace(file)
    await trio.sleep(2 * reloading.POLL_SECONDS)
    assert [guard.options.share for guard in plane.state.reducer.intake._guards.values()] == [0.125]
    file.unlink()  # noqa: ASYNC240
    await trio.sleep(2 * reloading.POLL_SECONDS)
    nursery.cancel_scope.cancel()


def test_a_value_may_begin_with_a_dash() -> None:
    result = CliRunner().invoke(command, ["--sync-timeout", "-1s"])
    assert "'-1s' is negative" in result.output


def test_completion_reads_no_file(tmp_path: Path) -> None:
    context = command.make_context("discovery", ["--config-file", str(tmp_path / "none")], resilient_parsing=True)
    assert context.default_map is None
    assert isinstance(context, click.Context)
