"""``mesh-pilot proxy join``: what is refused, before anything is changed, and what the files are like."""

from __future__ import annotations

import json
import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
import pytest
import yaml

from mesh_pilot.cli.proxy.bundle import JoinBundle, merged, written
from mesh_pilot.cli.proxy.join import JoinPlace, start
from mesh_pilot.cli.proxy.join import command as join
from mesh_pilot.model.spiffe import Identity
from tests.support.certificates import write_certificates
from tests.support.command import mesh_pilot

WEB = Identity("cluster.local", "shop", "web")
MODULE = sys.modules[JoinPlace.__module__]
FOREGROUND = ("--foreground", "--no-redirect")


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_tcp_port: int) -> Path:
    """A bundle of a control plane that is not there, for a user who is not root and has an Envoy."""
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() or 1000)
    monkeypatch.setattr(MODULE, "folders", lambda: tuple(tmp_path / name for name in ("config", "state", "run")))
    monkeypatch.setattr("mesh_pilot.cli.proxy.machine.why_not_ours", lambda *_: "")
    monkeypatch.setenv("ENVOY", sys.executable)
    return write(tmp_path, pilot=[f"127.0.0.1:{free_tcp_port}"])


@pytest.fixture
def free_tcp_port(free_ports: object) -> int:
    assert callable(free_ports)
    (port,) = free_ports(1)
    return int(port)


def write(folder: Path, expires: timedelta = timedelta(hours=1), **settings: object) -> Path:
    roots = write_certificates(folder, "pilot").ca.read_text()
    made = JoinBundle(WEB, datetime.now(UTC) + expires, settings, {"tls-ca": roots, "token-file": "mpjt_x"})
    (folder / "web.join").write_bytes(written(made))
    return folder / "web.join"


def refused(*arguments: object) -> str:
    done = mesh_pilot("proxy", "join", *map(str, arguments))
    assert done.code == 1 and done.err.count("\n") == 1
    return done.err


def test_whoever_is_not_root_is_told_the_other_way(bundle: Path) -> None:
    assert "run it as root, or with --foreground" in refused(bundle)
    assert "redirection needs root: run it as root, or with --no-redirect" in refused(bundle, "--foreground")


def test_without_systemd_the_foreground_is_named(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(MODULE, "SYSTEMD", tmp_path / "none")
    assert "systemd does not run here: start the proxy with --foreground" in refused(bundle)
    assert not (tmp_path / "config").exists()


def test_an_expired_bundle_says_how_to_make_another(bundle: Path, tmp_path: Path) -> None:
    write(tmp_path, -timedelta(hours=1), pilot=["127.0.0.1:1"])
    said = refused(bundle, *FOREGROUND)
    assert f"{bundle} has expired, " in said
    assert "mesh-pilot token create web --namespace shop --bundle FILE" in said


def test_without_an_envoy_nothing_is_asked_for(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVOY", "/nowhere/envoy")
    assert "ENVOY=/nowhere/envoy does not exist" in refused(bundle, *FOREGROUND)
    assert not (tmp_path / "state").exists()


def test_a_control_plane_that_is_away_is_named_and_nothing_is_written(bundle: Path, tmp_path: Path) -> None:
    said = refused(bundle, *FOREGROUND)
    (address,) = json.loads(bundle.read_text())["settings"]["pilot"]
    assert f"no control plane signs a certificate: {address}: " in said and "nothing was started" in said
    assert not (tmp_path / "config").exists()


@pytest.mark.parametrize("content", ["", "mpjt_abc", "{}", "[]", '{"identity": "x", "expires": 1}', "pilot: a\n"])
def test_another_file_is_no_bundle(tmp_path: Path, content: str) -> None:
    (tmp_path / "other").write_text(content)
    assert "is not a bundle, which mesh-pilot token create ACCOUNT --bundle FILE writes" in refused(tmp_path / "other")
    assert "No such file or directory" in refused(tmp_path / "none")


def test_the_help_fits_a_screen() -> None:
    assert len(mesh_pilot("proxy", "join", "--help").out.splitlines()) < 40
    assert {param.name for param in join.params} == {"bundle", "kind", "foreground", "no_redirect"}


BEFORE = """\
# mine
name: web-1
pilot:
  - 10.0.0.1:15012

label:
  app: web
tls-ca: "/old"
probe: [
  {httpGet: {port: 1}},
]
# the end
"""


AFTER = """\
# mine
name: web-1
pilot: ["10.0.0.2:15012"]

label:
  app: web
tls-ca: "/new"
probe: [{"tcpSocket": {"port": 2}}]
# the end
dns: true
"""


def test_settings_of_others_stay_as_they_are_written() -> None:
    ours = {"pilot": ["10.0.0.2:15012"], "probe": [{"tcpSocket": {"port": 2}}], "tls-ca": "/new", "dns": True}
    assert merged(BEFORE, ours) == AFTER
    assert merged(AFTER, ours) == AFTER
    assert yaml.safe_load(AFTER) == {"name": "web-1", "label": {"app": "web"}, **ours}


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The programs that are called, in place of calling them; files are not written, and are all new."""
    found: list[str] = []

    def call(*command: str) -> str:
        found.append(" ".join(command))
        if command == ("systemctl", "restart", "mesh-pilot-proxy") and (tmp_path / "broken").exists():
            raise click.ClickException("it took longer than 60 s")
        return "the last line of the log\n"

    monkeypatch.setattr(MODULE, "call", call)
    monkeypatch.setattr(MODULE, "put", lambda *_, **__: True)
    monkeypatch.setattr(MODULE, "remove_unit", lambda name: found.append(f"remove {name}"))
    return found


UNITS = {f"etc/systemd/system/{name}.service": "" for name in ("mesh-pilot-proxy", "mesh-pilot-iptables")}


def test_traffic_is_redirected_once_the_proxy_is_ready(calls: list[str]) -> None:
    start(UNITS, has_changed=True)
    assert [call.removeprefix("systemctl ") for call in calls] == [
        "daemon-reload",
        "enable mesh-pilot-proxy",
        "restart mesh-pilot-proxy",
        "enable mesh-pilot-iptables",
        "reload-or-restart mesh-pilot-iptables",
    ]


def test_a_proxy_that_is_not_ready_gets_no_traffic_and_its_log_is_shown(
    calls: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken").touch()
    with pytest.raises(click.ClickException, match="the proxy is not ready: it took longer than 60 s; see journalctl"):
        start(UNITS, has_changed=True)
    assert not any("iptables" in call for call in calls)
    assert capsys.readouterr().err == "the last line of the log\n\n"


def test_without_redirection_that_of_an_earlier_join_goes(calls: list[str]) -> None:
    start({path: "" for path in UNITS if "proxy" in path}, has_changed=True)
    assert calls[0] == "remove mesh-pilot-iptables"
