"""The flags of the state: the folder that is meant, and what is in it if nothing else is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from structlog.testing import capture_logs

from mesh_pilot.app.settings import Settings
from mesh_pilot.cli.discovery.command import command as discovery
from mesh_pilot.cli.identity.token import command as token
from mesh_pilot.cli.lib.state_folder import default_folder
from tests.support.planes import SERVICE


@pytest.fixture
def config(tmp_path: Path) -> Path:
    folder = tmp_path / "config"
    folder.mkdir()
    (folder / "a.yaml").write_text(SERVICE)
    return folder


@pytest.fixture(autouse=True)
def _as_for_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The default folder is one of the test's own."""
    monkeypatch.delenv("MESH_PILOT_NO_STATE")
    monkeypatch.setenv("STATE_DIRECTORY", f"{tmp_path / 'default'}:/another")


def read(monkeypatch: pytest.MonkeyPatch, config: Path, *flags: str) -> Settings:
    """The settings with which these flags run a control plane."""
    found: list[Settings] = []

    def run(settings: Settings, *_: Any) -> int:
        found.append(settings)
        return 0

    monkeypatch.setattr("mesh_pilot.cli.discovery.serving.run", run)
    monkeypatch.setattr("mesh_pilot.cli.discovery.command.outlive_signals", lambda: None)
    monkeypatch.setattr("mesh_pilot.cli.lib.logs.configure", lambda *_, **__: None)
    done = CliRunner().invoke(discovery, ["--config-dir", str(config), *flags], standalone_mode=False)
    if done.exception:
        raise done.exception
    return found[0]


def test_state_is_kept_where_the_system_says(monkeypatch: pytest.MonkeyPatch, config: Path, tmp_path: Path) -> None:
    settings = read(monkeypatch, config)
    assert settings.state is not None
    assert settings.state.folder == tmp_path / "default"
    assert settings.ca_dir == tmp_path / "default" / "ca"


def test_without_a_unit_it_is_that_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert default_folder({}) == Path("/var/lib/mesh-pilot")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_STATE_HOME", "/home/me/state")
    assert default_folder({}) == Path("/home/me/state/mesh-pilot")


def test_no_state_is_none_and_a_root_for_this_run(monkeypatch: pytest.MonkeyPatch, config: Path) -> None:
    settings = read(monkeypatch, config, "--no-state")
    assert (settings.state, settings.ca_dir) == (None, None)


def test_a_named_ca_stays_where_it_is(monkeypatch: pytest.MonkeyPatch, config: Path, tmp_path: Path) -> None:
    assert read(monkeypatch, config, "--ca-dir", str(tmp_path / "mine")).ca_dir == tmp_path / "mine"


@pytest.mark.parametrize(("flags", "is_warned"), [([], True), (["--ca-dir", "shared"], False), (["--no-state"], True)])
def test_replicas_with_a_ca_each_are_warned(
    monkeypatch: pytest.MonkeyPatch, config: Path, flags: list[str], is_warned: bool
) -> None:
    election = ["--leader-election", "consul", "--consul-server-url", "http://127.0.0.1:1"]
    with capture_logs() as logs:
        read(monkeypatch, config, *election, *flags)
    assert any("its own CA" in line["event"] for line in logs) is is_warned
    with capture_logs() as logs:
        read(monkeypatch, config, *flags)
    assert logs == []


def test_a_flag_wins_over_the_variable(monkeypatch: pytest.MonkeyPatch, config: Path, tmp_path: Path) -> None:
    monkeypatch.setenv("MESH_PILOT_NO_STATE", "1")
    settings = read(monkeypatch, config, "--state-dir", str(tmp_path / "mine"))
    assert settings.state is not None
    assert settings.state.folder == tmp_path / "mine"
    monkeypatch.delenv("MESH_PILOT_NO_STATE")
    monkeypatch.setenv("MESH_PILOT_STATE_DIR", str(tmp_path / "mine"))
    assert read(monkeypatch, config, "--no-state").state is None


def test_both_flags_are_a_mistake(monkeypatch: pytest.MonkeyPatch, config: Path, tmp_path: Path) -> None:
    with pytest.raises(click.UsageError, match="exclude each other"):
        read(monkeypatch, config, "--state-dir", str(tmp_path), "--no-state")


def test_ages_are_of_all_sources_or_of_one(monkeypatch: pytest.MonkeyPatch, config: Path) -> None:
    ages = ("--state-max-age", "24h", "--state-max-age", "consul=1h", "--state-max-age", "mcp:a=b:1=2m")
    state = read(monkeypatch, config, *ages).state
    assert state is not None
    assert (state.max_age_of("files"), state.max_age_of("consul"), state.max_age_of("mcp:a=b:1")) == (86400, 3600, 120)


@pytest.mark.parametrize("age", ["soon", "consul=", "-1s"])
def test_an_age_that_is_none_is_a_mistake(monkeypatch: pytest.MonkeyPatch, config: Path, age: str) -> None:
    with pytest.raises(click.UsageError):
        read(monkeypatch, config, "--state-max-age", age)


def test_a_default_folder_that_cannot_be_made_is_said_once(
    monkeypatch: pytest.MonkeyPatch, config: Path, tmp_path: Path
) -> None:
    (tmp_path / "default").write_text("a file")
    with capture_logs() as logs:
        settings = read(monkeypatch, config)
    assert (settings.state, settings.ca_dir) == (None, None)
    assert [line["event"] for line in logs] == ["nothing is kept over a restart; name a folder with --state-dir"]


def test_a_named_folder_that_cannot_be_made_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, config: Path, tmp_path: Path
) -> None:
    (tmp_path / "mine").write_text("a file")
    settings = read(monkeypatch, config, "--state-dir", str(tmp_path / "mine"))
    assert settings.state is not None
    assert settings.ca_dir is None


def test_tokens_are_found_in_the_state(tmp_path: Path) -> None:
    create = ["create", "web", "--namespace", "shop"]
    assert "name the folder" in CliRunner().invoke(token, create).output
    (tmp_path / "default").mkdir()
    assert CliRunner().invoke(token, create).exit_code == 0
    assert (tmp_path / "default" / "ca" / "join-tokens" / "keys.json").exists()
    other = [*create, "--state-dir", str(tmp_path)]
    assert CliRunner().invoke(token, other).exit_code == 0
    assert (tmp_path / "ca" / "join-tokens" / "keys.json").exists()
