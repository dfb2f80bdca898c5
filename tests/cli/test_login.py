"""``mesh-pilot login``, ``whoami`` and ``logout`` with a real issuer, and the login that other commands use."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import click
import httpx
import pytest
import structlog
import trio
from click.testing import CliRunner, Result

from mesh_pilot.cli import cli
from mesh_pilot.cli.plane.logins import Login, keep, login_at, token_at
from mesh_pilot.cli.plane.user_files import logins_file
from mesh_pilot.identity.openid import device
from mesh_pilot.identity.openid.provider import DeviceCode, Provider, ProviderError, ProviderRefusal, Tokens
from mesh_pilot.identity.openid.settings import ClientSettings
from mesh_pilot.ops.access.settings import AccessSettings
from tests.support.openid import Issuer, confirm, issuer
from tests.support.planes import SERVICE, running_plane
from tests.support.ports import free_ports

OFFLINE = {"scopes": ["openid", "profile", "email", "groups", "offline_access"]}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """No contexts file, no variables of the user's, and a log that does not go where commands print."""
    for name in ("PILOT", "CONTEXT", "TOKEN", "TOKEN_FILE"):
        monkeypatch.delenv(f"MESH_PILOT_{name}", raising=False)
    monkeypatch.setenv("MESH_PILOT_CONTEXTS", str(tmp_path / "settings" / "contexts.yaml"))
    monkeypatch.setattr("mesh_pilot.identity.openid.provider.USUAL_INTERVAL", 0.1)
    with structlog.testing.capture_logs():
        yield tmp_path


async def run(*arguments: str) -> Result:
    return await trio.to_thread.run_sync(lambda: CliRunner().invoke(cli, list(arguments), prog_name="mesh-pilot"))


def confirmed_by(subject: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have somebody confirm each code that is shown, in a browser elsewhere."""

    def show(code: DeviceCode) -> None:
        with httpx.Client(trust_env=False) as browser:
            assert confirm(browser, code.full_url, subject).status_code == 200

    monkeypatch.setattr("mesh_pilot.cli.operate.login._show", show)


@asynccontextmanager
async def mesh(place: Path, **more: Any) -> AsyncIterator[tuple[str, Issuer]]:
    """A plane, by its address, and its issuer."""
    (port,) = free_ports(1)
    config = place / "config"
    config.mkdir()
    (config / "a.yaml").write_text(SERVICE)
    address = f"127.0.0.1:{port}"
    with issuer(place, f"http://{address}") as at:
        (place / "people").write_text(at.people(f"http://{address}", **more))
        access = AccessSettings(people_file=place / "people")
        async with running_plane(config, access=access, http_addr=f"0.0.0.0:{port}", config_store=str(config)):
            yield address, at


@pytest.mark.process
async def test_a_login_by_the_device_flow_serves_all_commands_until_the_logout(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with mesh(place, **OFFLINE) as (address, at):
        web = ("--pilot", address)
        before = await run("get", "services", *web)
        assert before.exit_code == 1 and "log in with mesh-pilot login" in before.output
        confirmed_by("u-2", monkeypatch)
        done = await run("login", *web)
        assert done.output == f"logged in at {address} as bob@example.com: view in cart, edit in shop\n", done
        assert logins_file().stat().st_mode & 0o777 == 0o600
        assert "reviews.test" in (await run("get", "services", "-A", *web)).output
        who = (await run("whoami", *web)).output
        assert who == (
            "bob@example.com (by login, subject u-2)\ngroups: shop-team\nroles:  view in cart, edit in shop\n"
        )
        assert json.loads((await run("whoami", "-o", "json", *web)).output)["roles"] == {"shop": "edit", "cart": "view"}
        refused = await run("admin", "push", *web)
        assert "this needs operate in some namespace" in refused.output

        login = login_at(f"http://{address}")
        assert login is not None and login.refresh_token
        at.account("u-2", groups=["platform"])
        keep(f"http://{address}", attrs.evolve(login, until=time.time() + 10))
        assert "roles:  operate in all namespaces" in (await run("whoami", *web)).output, "renewed early"
        renewed = login_at(f"http://{address}")
        assert renewed is not None and renewed.id_token != login.id_token

        at.stop()
        keep(f"http://{address}", attrs.evolve(renewed, until=time.time() + 10))
        assert (await run("whoami", *web)).exit_code == 0, "a token that is in force needs no issuer"
        keep(f"http://{address}", attrs.evolve(renewed, until=time.time() - 10))
        away = await run("whoami", *web)
        assert "cannot be renewed now" in away.output
        await trio.to_thread.run_sync(at.start)
        forgotten = await run("whoami", *web)
        assert "is over" in forgotten.output and "mesh-pilot login" in forgotten.output

        assert (await run("login", *web)).exit_code == 0
        again = login_at(f"http://{address}")
        assert again is not None
        assert (await run("logout", *web)).output == f"logged out at {address}\n"
        assert login_at(f"http://{address}") is None
        with pytest.raises(ProviderRefusal, match="invalid_grant"):
            await again.provider().tokens_again(again.refresh_token)
        assert "you are not logged in" in (await run("logout", *web)).output


@pytest.mark.process
async def test_somebody_without_a_role_is_told_their_groups(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with mesh(place) as (address, _):
        confirmed_by("u-3", monkeypatch)
        done = await run("login", "--pilot", address)
        assert "carol@example.com has no role here; the issuer's groups: none" in done.output


@pytest.mark.plane
async def test_where_people_do_not_log_in_the_command_says_so(place: Path) -> None:
    config = place / "config"
    config.mkdir()
    async with running_plane(config) as plane:
        done = await run("login", "--pilot", plane.addresses.http)
        assert "the control plane has no --api-people-file" in done.output
    assert "asks for no login" in (await run("login", "--pilot", "unix:///nowhere.sock")).output


def test_a_token_is_shown_to_its_control_plane_alone(place: Path) -> None:
    keep("http://one:1", Login(issuer="https://sso.test", client_id="a", id_token="t", until=time.time() + 600))
    assert token_at("http://one:1") == "t"
    assert token_at("http://two:1") == "" == token_at("https://one:1")


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": {}}', '{"a": 1}'])
def test_a_file_of_logins_that_is_none_is_said(place: Path, text: str) -> None:
    logins_file().parent.mkdir()
    logins_file().write_text(text)
    with pytest.raises(click.ClickException, match=r"logins.json has no logins .* remove it"):
        token_at("http://one:1")


class Scripted(Provider):
    """An issuer that answers as it is told."""

    def __init__(self, *answers: str) -> None:
        super().__init__(ClientSettings(issuer="https://sso.test", client_id="a"))
        self.answers = [*answers]

    async def device_code(self) -> DeviceCode:
        return DeviceCode("secret", "ABCD", "https://sso.test/device", "", 600, 5)

    async def tokens_of_device(self, code: DeviceCode) -> Tokens:
        answer = self.answers.pop(0) if self.answers else "authorization_pending"
        if answer == "tokens":
            return Tokens("id", "refresh")
        if answer == "silence":
            raise ProviderError("no answer")
        raise ProviderRefusal(answer, answer)


@pytest.mark.parametrize(
    ("answers", "seconds", "error"),
    [
        (("tokens",), 5, ""),
        (("authorization_pending", "authorization_pending", "tokens"), 15, ""),
        (("slow_down", "tokens"), 15, ""),
        (("silence", "tokens"), 15, ""),
        (("access_denied",), 5, "the login was refused"),
        (("expired_token",), 5, "the code was not confirmed in time"),
        (("invalid_client",), 5, "invalid_client"),
        ((), 600, "the code was not confirmed in time"),
    ],
)
async def test_the_issuer_is_asked_no_more_often_than_it_wants(
    autojump_clock: trio.testing.MockClock, answers: tuple[str, ...], seconds: float, error: str
) -> None:
    begun = trio.current_time()
    shown: list[DeviceCode] = []
    try:
        assert await device.log_in(Scripted(*answers), shown.append) == Tokens("id", "refresh")
        assert not error
    except ProviderError as refusal:
        assert error and error in str(refusal)
    assert trio.current_time() - begun == pytest.approx(seconds)
    assert [each.user_code for each in shown] == ["ABCD"]
