"""``mesh-pilot proxy install``: units that systemd finds nothing wrong with, and that lose nothing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import mesh_pilot
from mesh_pilot.cli.proxy.install import IPTABLES, PROXY, UNITS, command, files
from mesh_pilot.cli.proxy.iptables import command as iptables
from mesh_pilot.cli.proxy.unit_paths import (
    User,
    hidden_by,
    interpreter_of,
    why_not_startable,
    why_not_there,
    why_settings_unusable,
)

SAMPLES = Path(__file__).parents[2] / "samples" / "systemd"
OPT = "/opt/mesh-pilot/bin/mesh-pilot"


def install(*flags: str) -> Result:
    return CliRunner().invoke(command, flags, standalone_mode=False)


def test_the_samples_are_what_it_prints() -> None:
    """Run this file to write them again."""
    for path, text in sample_files().items():
        assert (SAMPLES / path).read_text(encoding="utf-8") == text


def sample_files() -> dict[str, str]:
    found = files(kind="sidecar", program=OPT, user="istio-proxy", interception="REDIRECT", dns=True, service=None)
    return {Path(path).name: text for path, text in found.items() if path.startswith(UNITS)}


def test_everything_is_printed_with_its_place() -> None:
    printed = install("--service", "web", "--port", "8080", "--program", OPT).stdout
    assert f"# /{UNITS}/{PROXY}.service" in printed
    assert f"# /{UNITS}/{IPTABLES}.service" in printed
    assert "ExecReload=/bin/kill -HUP $MAINPID" in printed
    definition = json.loads(printed[printed.index("{\n") :])
    assert definition["service"] == {
        "name": "web",
        "port": 8080,
        "meta": {"protocol": "http", "namespace": "default", "service_account": "web", "tls_mode": "istio"},
    }


def test_the_redirection_is_started_with_flags_that_there_are() -> None:
    unit = sample_files()[f"{IPTABLES}.service"]
    (used,) = (line.split()[3:] for line in unit.splitlines() if line.startswith("ExecStart="))
    known = {name for param in iptables.commands["apply"].params for name in (*param.opts, *param.secondary_opts)}
    assert {word for word in used if word.startswith("-")} <= known


def test_the_redirection_is_there_before_the_proxy_and_does_not_go_with_it() -> None:
    unit = sample_files()[f"{IPTABLES}.service"].splitlines()
    assert f"Before={PROXY}.service" in unit  # so it is stopped after it, too
    # The proxy waits for Consul, which may wait for DNS: rules before that would keep both waiting.
    assert "After=network-online.target consul.service" in unit
    settings = {name for name, is_set, _ in (line.partition("=") for line in unit) if is_set}
    assert not settings & {"PartOf", "BindsTo", "Requires", "Requisite", "StopPropagatedFrom"}
    (start,) = (line.partition("=")[2] for line in unit if line.startswith("ExecStart="))
    assert f"ExecReload={start}" in unit


def test_a_gateway_may_bind_low_ports_and_needs_no_redirection(tmp_path: Path) -> None:
    assert install("--type", "router", "--write", str(tmp_path)).exception is None
    assert not (tmp_path / UNITS / f"{IPTABLES}.service").exists()
    unit = (tmp_path / UNITS / f"{PROXY}.service").read_text()
    assert "AmbientCapabilities=CAP_NET_BIND_SERVICE\n" in unit
    assert "proxy router\n" in unit


def test_a_file_that_was_changed_is_not_replaced_and_nothing_else_is_written(tmp_path: Path) -> None:
    iptables, proxy = (tmp_path / UNITS / f"{name}.service" for name in (IPTABLES, PROXY))
    iptables.parent.mkdir(parents=True)
    iptables.write_text("mine")
    refused = install("--write", str(tmp_path))
    assert "differs; --force replaces it" in str(refused.exception)
    assert not proxy.exists()
    assert install("--write", str(tmp_path), "--force").exception is None
    assert iptables.read_text() != "mine"
    assert install("--write", str(tmp_path)).exception is None


def test_a_service_without_a_port_is_a_mistake() -> None:
    assert "needs both of --service and --port" in str(install("--service", "web").exception)


def script(path: Path, first_lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{first_lines}\n")
    path.chmod(0o755)
    return path


ME = User("me", os.geteuid(), frozenset(os.getgroups()))
STRANGER = User("stranger")


@pytest.mark.parametrize("folder", ["/root", "/home/me", "/run/user/0", "/tmp", "/var/tmp/x"])
def test_a_command_that_the_unit_hides_is_warned_of_wherever_it_is_written(tmp_path: Path, folder: str) -> None:
    done = CliRunner().invoke(command, ["--program", f"{folder}/bin/mesh-pilot", "--write", str(tmp_path)])
    assert done.exit_code == 0
    assert f"will not start with {folder}/bin/mesh-pilot: Pr" in done.stderr
    assert "Install mesh-pilot and Envoy where every user can read them" in done.stderr
    assert hidden_by("/rooted/mesh-pilot") == hidden_by(OPT) == ""


@pytest.mark.process
def test_units_that_could_not_start_are_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test's folder is one that the unit hides."""
    monkeypatch.setattr(sys.modules[files.__module__], "_write", lambda *_, **__: pytest.fail("it was written"))
    program = script(tmp_path / "mesh-pilot", "#!/bin/sh")
    refused = str(install("--program", str(program), "--write", "/").exception)
    assert f"the units could not start: command {program} (/tmp): PrivateTmp=yes hides /tmp" in refused
    assert "nothing was written" in refused
    assert "systemd needs an absolute path" in str(install("--program", "mesh-pilot", "--write", "/").exception)


def test_all_that_leads_to_a_file_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mesh_pilot.cli.proxy.unit_paths.HIDDEN", {str(tmp_path / "root"): "ProtectHome=yes"})
    hidden = script(tmp_path / "root" / "mesh-pilot", "#!/bin/sh")
    link = tmp_path / "link"
    link.symlink_to(hidden)
    assert "ProtectHome=yes hides" in why_not_there("the command", link, ME)
    assert "No such file" in why_not_there("the command", tmp_path / "gone", ME)
    assert why_not_there("the command", Path("/usr/bin/env"), STRANGER) == ""
    # The folder is closed to others, and so is all in it.
    tmp_path.chmod(0o700)
    own = script(tmp_path / "own", "#!/bin/sh")
    assert why_not_there("the command", own, ME) == ""
    assert "the user stranger may not read it (mode drwx" in why_not_there("the command", own, STRANGER)


@pytest.mark.parametrize(
    ("lines", "interpreter"),
    [
        ("#!/opt/x/bin/python", "/opt/x/bin/python"),
        ("#!/usr/bin/env -S python3", "/usr/bin/env"),
        ('#!/bin/sh\n\'\'\'exec\' "/opt/a b/python" "$0" "$@"', "/opt/a b/python"),
        ("\x7fELF", None),
    ],
)
def test_the_interpreter_is_that_of_the_first_line(tmp_path: Path, lines: str, interpreter: str | None) -> None:
    found = interpreter_of(script(tmp_path / "mesh-pilot", lines))
    assert found == (Path(interpreter) if interpreter else None)


@pytest.mark.process
def test_interpreter_package_and_envoy_must_be_there_for_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = str(Path(mesh_pilot.__file__).parent)
    program = script(tmp_path / "mesh-pilot", f"#!{sys.executable}")
    for hidden, what in ((sys.prefix, "interpreter"), (package, "package")):
        monkeypatch.setattr("mesh_pilot.cli.proxy.unit_paths.HIDDEN", {hidden: "ProtectHome=yes"})
        reasons = why_not_startable(str(program), "root", redirects=False)
        assert any(reason.startswith(what) and f"hides {hidden}" in reason for reason in reasons), reasons
    monkeypatch.setattr("mesh_pilot.cli.proxy.unit_paths.HIDDEN", {})
    assert why_not_startable(str(program), "root", redirects=False) == []


def test_files_that_the_settings_name_are_looked_at_once_they_are_there(tmp_path: Path) -> None:
    settings = tmp_path / "proxy.yaml"
    assert why_settings_unusable("root", settings) == []
    settings.write_text("pilot: 10.0.0.1:15012\ntls-ca: /root/root.pem\nstate-dir: /var/lib/x\ntoken-file: token\n")
    hidden, *rest = why_settings_unusable("root", settings)
    assert hidden.startswith("settings ")
    assert rest == [f"{settings}:2: tls-ca /root/root.pem (/root): ProtectHome=yes hides /root from it"]


@pytest.mark.process
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
@pytest.mark.parametrize(
    "flags", [(), ("--type", "router"), ("--interception", "TPROXY", "--dns")], ids=["sidecar", "router", "tproxy"]
)
def test_systemd_finds_nothing_wrong_with_the_units(tmp_path: Path, flags: tuple[str, ...]) -> None:
    assert install("--program", sys.executable, "--user", "root", "--write", str(tmp_path), *flags).exception is None
    units = sorted((tmp_path / UNITS).iterdir())
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *map(str, units)], capture_output=True, text=True, check=False
    )
    about_ours = [line for line in done.stderr.splitlines() if "mesh-pilot" in line]
    assert (done.returncode, about_ours) == (0, [])


if __name__ == "__main__":
    for name, content in sample_files().items():
        (SAMPLES / name).write_text(content, encoding="utf-8")
