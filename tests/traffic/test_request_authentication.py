"""Tokens, shown to real Envoys: which are good, what of them continues, and what authorization makes of them."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.envoy import eventually
from tests.support.guarded import Guarded, allow, deny, guarded, policy
from tests.support.tokens import Issuer, key_server

pytestmark = pytest.mark.envoy

Ports = Callable[[int], list[int]]

LOGIN = Issuer("https://login.example.com/realms/shop")
ROBOTS = Issuer("robots@example.com")


def accepts(*rules: dict[str, Any], name: str = "tokens") -> str:
    return policy("RequestAuthentication", name, f"jwtRules: {json.dumps(rules)}")


def by(issuer: Issuer, **more: Any) -> dict[str, Any]:
    return {"issuer": issuer.name, "jwks": issuer.jwks, **more}


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


async def ask(guard: Guarded, token: str = "", path: str = "/") -> int:
    return await guard.ask(path, plain=True, headers=bearer(token) if token else None)


@pytest.mark.smoke
async def test_a_bad_token_is_refused_and_none_is_not(tmp_path: Path, free_ports: Ports) -> None:
    async with guarded(tmp_path, free_ports(4), accepts(by(LOGIN, audiences=["shop"]))) as guard:
        assert await ask(guard) == 200
        assert await ask(guard, LOGIN.token(aud="shop")) == 200
        assert await ask(guard, LOGIN.token(aud=["other", "shop"])) == 200
        bad = {
            "expired": LOGIN.token(aud="shop", lives=-600),
            "signed by another key": Issuer(LOGIN.name).token(aud="shop"),
            "of another issuer": ROBOTS.token(aud="shop"),
            "no token": "hello",
        }
        assert await ask(guard, LOGIN.token(aud="other")) == 403
        for why, token in bad.items():
            assert await ask(guard, token) == 401, why


async def test_a_required_token_is_required_of_every_request_whatever_others_it_has(
    tmp_path: Path, free_ports: Ports
) -> None:
    elsewhere = {"fromHeaders": [{"name": "x-scope"}]}
    login = accepts(by(LOGIN, presence="REQUIRED"))
    optional = accepts(by(ROBOTS, **elsewhere, presence="OPTIONAL"), name="scopes")
    required = accepts(by(ROBOTS, **elsewhere, presence="REQUIRED"), name="scopes")
    scope = {"x-scope": ROBOTS.token()}
    requests = (
        {},
        bearer(LOGIN.token()),
        scope,
        bearer(LOGIN.token()) | scope,
        bearer(LOGIN.token()) | {"x-scope": "bad"},
    )

    async def answers() -> list[int]:
        return [await guard.ask(plain=True, headers=headers) for headers in requests]

    async with guarded(tmp_path, free_ports(4), login) as guard:
        assert await answers() == [401, 200, 401, 200, 200]
        await guard.apply(login, optional)
        assert await answers() == [401, 200, 401, 200, 401]
        await guard.apply(login, required)
        assert await answers() == [401, 401, 401, 200, 401]
        await guard.apply(accepts(by(LOGIN, presence="REQUIRED"), by(ROBOTS)))
        assert await answers() == [401, 200, 401, 200, 200], "an optional token has the same header"
        await guard.apply(accepts(by(LOGIN, presence="REQUIRED"), by(ROBOTS, presence="REQUIRED")))
        assert await answers() == [401, 401, 401, 401, 401], "one header has one token"


async def test_what_a_token_says_is_what_authorization_reads(tmp_path: Path, free_ports: Ports) -> None:
    tokens = accepts(by(LOGIN, spaceDelimitedClaims=["teams"]), by(ROBOTS))
    alice = LOGIN.token("alice", aud=["shop"], azp="app", role="admin", realm={"roles": ["dev", "ops"]})
    spaced = LOGIN.token("bob/smith", scope="read write", teams="red blue")
    robot = ROBOTS.token("r2", role="robot")
    cases: dict[str, list[str]] = {
        f"from: [{{source: {{requestPrincipals: ['{LOGIN.name}/alice']}}}}]": [alice],
        f"from: [{{source: {{requestPrincipals: ['{LOGIN.name}/*']}}}}]": [alice, spaced],
        "from: [{source: {requestPrincipals: ['https://login.example.com/*']}}]": [],
        "from: [{source: {requestPrincipals: ['robots@*']}}]": [robot],
        "from: [{source: {requestPrincipals: ['*/alice', '*/r2']}}]": [alice, robot],
        "from: [{source: {requestPrincipals: ['*smith']}}]": [spaced],
        f"from: [{{source: {{requestPrincipals: ['{LOGIN.name}/bob/smith']}}}}]": [],
        "when: [{key: 'request.auth.claims[sub]', values: [bob/smith]}]": [spaced],
        "from: [{source: {requestPrincipals: ['*'], notRequestPrincipals: ['robots@example.com/*']}}]": [alice, spaced],
        "when: [{key: request.auth.principal, values: ['robots@example.com/r2']}]": [robot],
        "when: [{key: request.auth.audiences, values: [shop]}]": [alice],
        "when: [{key: request.auth.presenter, values: ['ap*']}]": [alice],
        "when: [{key: 'request.auth.claims[role]', values: [admin]}]": [alice],
        "when: [{key: 'request.auth.claims[realm][roles]', values: ['op*']}]": [alice],
        "when: [{key: 'request.auth.claims[scope]', values: [write]}]": [spaced],
        "when: [{key: 'request.auth.claims[teams]', values: [red], notValues: [green]}]": [spaced],
        "when: [{key: 'request.auth.claims[role]', notValues: [admin]}]": [spaced, robot, ""],
    }
    async with guarded(tmp_path, free_ports(4), tokens) as guard:
        for rule, good in cases.items():
            await guard.apply(tokens, allow("by-token", f"[{{{rule}}}]"))
            found = [token for token in (alice, spaced, robot, "") if await ask(guard, token) == 200]
            assert found == good, rule
        await guard.apply(tokens, deny("nobody", "[{from: [{source: {notRequestPrincipals: ['*']}}]}]"))
        assert (await ask(guard), await ask(guard, alice), await ask(guard, "bad")) == (403, 200, 401)


async def test_where_tokens_are_found_and_what_of_them_goes_on(tmp_path: Path, free_ports: Ports) -> None:
    places = by(
        LOGIN,
        fromHeaders=[{"name": "x-token", "prefix": "Token "}],
        fromParams=["token"],
        fromCookies=["session"],
        outputPayloadToHeader="x-payload",
        outputClaimToHeaders=[{"header": "x-who", "claim": "sub"}],
    )
    forwarded = by(ROBOTS, forwardOriginalToken=True)
    only = allow("known", "[{from: [{source: {requestPrincipals: ['*']}}]}]")
    async with guarded(tmp_path, free_ports(4), accepts(places), accepts(forwarded, name="more"), only) as guard:
        token = LOGIN.token()
        found: list[dict[str, str]] = []
        for path, headers in (
            ("/", {"x-token": f"Token {token}"}),
            (f"/?token={token}", {}),
            ("/", {"cookie": f"session={token}"}),
        ):
            assert await guard.ask(path, plain=True, headers=headers) == 200
            found.append(guard.app.seen[-1]["headers"])
        assert all(headers["x-who"] == "alice" for headers in found)
        payload = found[0]["x-payload"]
        assert json.loads(base64.urlsafe_b64decode(payload + "=="))["sub"] == "alice"
        assert "x-token" not in found[0]
        assert await guard.ask(plain=True, headers={**bearer(token), "x-who": "mallory"}) == 401
        assert await ask(guard) == 403
        assert await ask(guard, ROBOTS.token()) == 200
        assert guard.app.seen[-1]["headers"]["authorization"].startswith("Bearer ")


async def test_keys_are_fetched_for_the_proxies_and_without_them_no_token_is_good(
    tmp_path: Path, free_ports: Ports
) -> None:
    async with key_server() as keys:
        found, by_url = Issuer(f"{keys.address}/realm"), Issuer("by-url")
        rules = accepts({"issuer": found.name}, {"issuer": by_url.name, "jwksUri": f"{keys.address}/keys"})
        async with guarded(tmp_path, free_ports(4), rules) as guard:
            assert (await ask(guard), await ask(guard, found.token()), await ask(guard, by_url.token())) == (
                200, 401, 401,
            )  # fmt: skip
            keys.documents["/realm/.well-known/openid-configuration"] = json.dumps(
                {"jwks_uri": f"{keys.address}/realm/keys"}
            )
            keys.documents["/realm/keys"] = found.jwks
            keys.documents["/keys"] = by_url.jwks

            async def both_good() -> bool:
                return (await ask(guard, found.token()), await ask(guard, by_url.token())) == (200, 200)

            await eventually(both_good, seconds=60, what="tokens are good once their keys are known")
            assert await ask(guard, Issuer(found.name).token()) == 401
