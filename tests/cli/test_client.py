"""The client of a plane's API: which plane is meant, what is said where there is no answer, orders to a live one."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import structlog
import trio
from click.testing import CliRunner, Result

from mesh_pilot.cli import cli
from mesh_pilot.cli.plane.client import PlaneClient, asks_a_plane, asks_planes
from mesh_pilot.model.log_levels import SWITCH, LogLevels
from mesh_pilot.net.rpc import CertificateFiles
from mesh_pilot.ops.access.settings import AccessSettings
from tests.support.certificates import write_certificates
from tests.support.planes import SERVICE, running_plane

TOKEN = "a-token-that-may-operate"


@pytest.fixture(autouse=True)
def quiet() -> Iterator[list[Any]]:
    """The log of a plane in this process, which does not go where commands print."""
    with structlog.testing.capture_logs() as logs:
        yield logs


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No contexts file, and no variables of the user's."""
    for name in ("PILOT", "CONTEXT", "TOKEN", "TOKEN_FILE", "STATE_DIR", "ADMIN_SOCKET"):
        monkeypatch.delenv(f"MESH_PILOT_{name}", raising=False)
    monkeypatch.setenv("MESH_PILOT_CONTEXTS", str(tmp_path / "contexts.yaml"))
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments), prog_name="mesh-pilot")


def failure(*arguments: str) -> str:
    """The one line of an error."""
    result = CliRunner().invoke(cli, list(arguments), standalone_mode=False)
    assert isinstance(result.exception, click.ClickException), result.output
    return result.exception.format_message()


@click.command()
@asks_a_plane
def one(plane: PlaneClient) -> None:
    click.echo(f"{plane.address} {plane.token_file or plane.token or '-'} {plane.problem}".strip())


@click.command()
@asks_planes
def several(planes: list[PlaneClient]) -> None:
    click.echo(" ".join(plane.address for plane in planes))


def meant(command: click.Command, *arguments: str, **variables: str) -> str:
    result = CliRunner().invoke(command, list(arguments), env={f"MESH_PILOT_{k}": v for k, v in variables.items()})
    return result.output.strip()


def test_the_plane_is_that_of_the_flag_else_the_variable_else_the_context(place: Path) -> None:
    assert meant(one) == "127.0.0.1:8080 -"
    assert run("context", "add", "prod", "--pilot", "https://pilot:1", "--token-file", "/t").exit_code == 0
    assert run("context", "add", "here", "--pilot", "unix:///run/a.sock").exit_code == 0
    assert (place / "contexts.yaml").stat().st_mode & 0o777 == 0o600
    assert run("context", "list").output == "  here  unix:///run/a.sock\n* prod  https://pilot:1\n"
    assert meant(one) == "https://pilot:1 /t"
    assert meant(one, "--context", "here") == "unix:///run/a.sock -"
    assert meant(one, CONTEXT="here") == "unix:///run/a.sock -"
    assert meant(one, "--context", "here", PILOT="other:2") == "unix:///run/a.sock -"
    assert meant(one, CONTEXT="here", PILOT="other:2", TOKEN="secret") == "other:2 secret"
    assert meant(one, "--pilot", "http://third:3/", PILOT="other:2") == "http://third:3 -"
    assert meant(one, "--token-file", "/other") == "https://pilot:1 /other"
    assert meant(several) == "https://pilot:1"
    assert meant(several, "--context", "*") == "unix:///run/a.sock https://pilot:1"
    assert meant(several, "--pilot", "a:1", "--pilot", "b:2", "--context", "prod") == "a:1 b:2 https://pilot:1"
    assert run("context", "use", "here").exit_code == 0
    assert meant(one) == "unix:///run/a.sock -"
    assert run("context", "remove", "here").exit_code == 0
    assert meant(one) == "127.0.0.1:8080 -"
    assert "has no context 'here'; there are prod" in failure("context", "use", "here")
    assert "has no context 'none'; there are prod" in meant(one, "--context", "none")
    assert "is a URL" in meant(one, "--pilot", "ftp://a:1")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: [", "while parsing"),
        ("[1]", "there must be a name as current"),
        ("contexts: {a: {}}", "context a needs pilot"),
        ("contexts: {a: {pilot: x}}", "context a: pilot: 'x' has no port"),
        ("contexts: {a: {pilot: 'x:1', tokn: b}}", "context a: 'tokn' is not known; there are pilot, token_file"),
    ],
)
def test_a_contexts_file_with_a_mistake_is_said_when_a_plane_is_asked(text: str, reason: str, place: Path) -> None:
    (place / "contexts.yaml").write_text(text)
    assert reason in meant(one)
    assert reason in failure("request", "GET", "/ready")


@pytest.mark.plane
async def test_orders_reach_a_live_plane_and_each_mistake_is_one_line(place: Path, quiet: list[Any]) -> None:
    config = place / "config"
    config.mkdir()
    (config / "a.yaml").write_text(SERVICE)
    (place / "tokens").write_text(f"operate {TOKEN} alice\nview a-token-that-may-view bob\n")
    (place / "token").write_text(f"{TOKEN}\n")
    (place / "viewer").write_text("a-token-that-may-view")
    (place / "two").write_text("a b")
    admin = ("--admin-socket", str(place / "admin.sock"))

    async def in_thread(call: Callable[..., Any], *arguments: str) -> Any:
        return await trio.to_thread.run_sync(lambda: call(*arguments))

    SWITCH.begin(LogLevels())
    async with running_plane(
        config, access=AccessSettings(token_file=place / "tokens"), admin_socket=place / "admin.sock"
    ) as plane:
        web = ("--pilot", plane.addresses.http)
        assert json.loads((await in_thread(run, "request", "get", "api/v1/logs", *web)).output)["levels"] == "info"
        changed = await in_thread(run, "admin", "log", "--level", "xds:debug", *admin)
        assert [line.split()[:2] for line in changed.output.splitlines()][-1] == ["xds", "debug"]
        assert SWITCH.levels.text() == "info,xds:debug"
        assert "unknown scope 'xsd'" in await in_thread(failure, "admin", "log", "--level", "xsd:debug", *admin)
        reset = await in_thread(
            run, "admin", "log", "--reset", "-o", "json", *web, "--token-file", str(place / "token")
        )
        assert json.loads(reset.output)["levels"] == "info"
        assert (await in_thread(run, "admin", "push", *admin)).output == "everything was sent again to 0 streams\n"
        for arguments, reason in (
            (("admin", "push", *web), "a change needs a token of role operate"),
            (
                ("admin", "push", *web, "--token-file", str(place / "viewer")),
                "this needs operate in some namespace, and bob has view",
            ),
            (("admin", "push", *web, "--token-file", str(place / "two")), "there must be one token"),
            (("admin", "push", *web, "--token-file", str(place / "none")), "No such file"),
            (("admin", "push", "nobody", *admin), "no connected proxy is called 'nobody'"),
            (("admin", "disconnect", "nobody", *admin), "no connected proxy is called 'nobody'"),
            (("admin", "accept", "files", *admin), "nothing of files is held"),
            (
                ("admin", "log", "--pilot", plane.addresses.grpc),
                "this port speaks gRPC, which is HTTP/2; the web pages are on",
            ),
            (("admin", "log", "--pilot", plane.addresses.monitoring), "is not there: is"),
            (("admin", "log", "--pilot", f"https://{plane.addresses.http}"), "it does not speak TLS; write http://"),
            (("admin", "log", *web, *admin), "exclude --admin-socket"),
            (("admin", "log", "--level", "a", "--reset", *admin), "exclude each other"),
        ):
            text = await in_thread(failure, *arguments)
            assert reason in text and "\n" not in text, (arguments, text)

    orders = [(each["user"], each["order"], each["arguments"]) for each in quiet if each["event"] == "api order"]
    assert orders[:3] == [
        (f"uid {os.getuid()}", "POST /api/v1/logs", '{"level":"xds:debug"}'),
        (f"uid {os.getuid()}", "POST /api/v1/logs", '{"level":"xsd:debug"}'),
        ("alice", "POST /api/v1/logs", '{"reset":true}'),
    ]


@pytest.mark.plane
async def test_over_tls_the_client_says_what_it_lacks(place: Path) -> None:
    files = write_certificates(place, "web")
    (place / "tokens").write_text("view certificate web\n")
    access = AccessSettings(
        token_file=place / "tokens",
        tls=CertificateFiles(certificate=files.certificate, key=files.key, trusted=files.ca),
    )
    async with running_plane(place, access=access) as plane:

        async def error(client: PlaneClient) -> str:
            with pytest.raises(click.ClickException) as raised:
                await trio.to_thread.run_sync(lambda: client.get("/status"))
            return raised.value.format_message()

        here = f"https://{plane.addresses.http}"
        assert "name its CA with --pilot-ca" in await error(PlaneClient(here))
        assert f"speaks TLS: write --pilot {here}" in await error(PlaneClient(plane.addresses.http))
        assert "--pilot-ca" in await error(PlaneClient(here, ca=place / "none"))
        known = PlaneClient(here, ca=files.ca, certificate=files.certificate, key=files.key)
        assert (await trio.to_thread.run_sync(lambda: known.get("/status")))["ready"]


def test_nobody_there_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert "is it running? --pilot takes" in failure("request", "GET", "/", "--pilot", f"127.0.0.1:{port}")
    assert "there is no /nowhere.sock" in failure("request", "GET", "/", "--pilot", "unix:///nowhere.sock")
