"""Tokens of issuers that are believed: what they prove, and each way in which they prove nothing."""

from __future__ import annotations

import base64
import hmac
import json
from collections.abc import Mapping
from typing import Any

import pytest
import trio
from joserfc import jwk, jws

from mesh_pilot.identity.authenticators.compact_token import MAX_BYTES
from mesh_pilot.identity.authenticators.issuer_keys import REFRESH_SECONDS, RETRY_SECONDS, TIMEOUT_SECONDS
from mesh_pilot.identity.authenticators.jwt import JsonWebToken
from mesh_pilot.identity.authenticators.token_issuers import ClaimTemplate, TokenIssuer
from mesh_pilot.identity.trust.callers import AuthenticationError, AuthenticatorUnavailable, Credentials, TrustDomains
from mesh_pilot.model.spiffe import Identity
from mesh_pilot.net.fetching import FetchError

ISSUER = "https://login.example.com"
NOW = 1_800_000_000.0
RSA = jwk.generate_key("RSA", 2048, parameters={"kid": "rsa", "use": "sig"})
EC = jwk.generate_key("EC", "P-256", parameters={"kid": "ec"})
STRANGER = jwk.generate_key("EC", "P-256", parameters={"kid": "ec"})
WEB = Identity("cluster.local", "shop", "web")
ANY_ALGORITHM = ["RS256", "RS512", "PS256", "ES256", "HS256", "none"]

BARE_RULE: Mapping[str, Any] = {"issuer": ISSUER, "audiences": ["mesh"]}
"""A rule as it is written in a file, without anything that could be left out."""

CLAIMS: Mapping[str, Any] = {
    "iss": ISSUER,
    "sub": "system:serviceaccount:shop:web",
    "aud": ["mesh"],
    "iat": NOW - 60,
    "exp": NOW + 600,
}


def key_set(*keys: jwk.Key) -> str:
    return json.dumps({"keys": [key.as_dict(private=False) for key in keys]})


def signed(claims: object, key: jwk.Key = EC, **header: Any) -> str:
    protected = {"alg": "RS256" if key.key_type == "RSA" else "ES256", "typ": "JWT", "kid": key.kid, **header}
    registry = jws.JWSRegistry(algorithms=ANY_ALGORITHM, strict_check_header=False)
    kept = {name: value for name, value in protected.items() if value is not None}
    return jws.serialize_compact(kept, json.dumps(claims), key, registry=registry)


def token(key: jwk.Key = EC, header: Mapping[str, Any] | None = None, **claims: Any) -> str:
    """A good token but for these; a claim that is None is left out."""
    return signed(
        {name: value for name, value in {**CLAIMS, **claims}.items() if value is not None}, key, **header or {}
    )


def showing(text: str) -> Credentials:
    return Credentials("192.0.2.7:4000", True, metadata={"authorization": [f"Bearer {text}"]})


def authenticator(**rule: Any) -> JsonWebToken:
    fields = {"issuer": ISSUER, "audiences": frozenset({"mesh", "istio-ca"}), "jwks": key_set(RSA, EC), **rule}
    return JsonWebToken([TokenIssuer(**fields)], lambda: TrustDomains("cluster.local"), now=lambda: NOW)


async def reason(text: str, judge: JsonWebToken | None = None) -> str:
    with pytest.raises(AuthenticationError) as refused:
        await (judge or authenticator()).authenticate(showing(text))
    assert text not in str(refused.value) and len(str(refused.value)) < 500
    return refused.value.reason


GOOD = {
    "as it is": lambda: token(),
    "RS256": lambda: token(RSA),
    "PS256": lambda: token(RSA, {"alg": "PS256"}),
    "one audience": lambda: token(aud="istio-ca"),
    "no key id": lambda: token(header={"kid": None}),
    "no type": lambda: token(header={"typ": None}),
    "a header that says nothing to us": lambda: token(header={"nonce": "unknown"}),
    "valid from now": lambda: token(nbf=NOW),
    "expired within the leeway": lambda: token(exp=NOW - 10),
    "made in the future within the leeway": lambda: token(iat=NOW + 10),
}


@pytest.mark.parametrize("name", GOOD)
async def test_a_token_of_an_issuer_that_is_believed_proves_a_service_account(name: str) -> None:
    assert await authenticator().authenticate(showing(GOOD[name]())) == WEB


@pytest.mark.parametrize("other", ["mpjt_a.b.c", "opaque", "a.b.c.d.e", "", "a.b"])
async def test_tokens_of_other_kinds_are_left_to_others(other: str) -> None:
    assert await authenticator().authenticate(showing(other)) is None
    assert await authenticator().authenticate(Credentials("192.0.2.7:4000", True)) is None


def plain(header: object, claims: object = CLAIMS, signature: str = "") -> str:
    parts = (base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in (header, claims))
    return ".".join((*parts, signature))


def symmetric() -> str:
    """Signed with the public key as if it were a secret that we share with the issuer."""
    head = plain({"alg": "HS256", "kid": "rsa"}).rstrip(".")
    mac = hmac.digest(RSA.as_pem(private=False), head.encode(), "sha256")
    return f"{head}.{base64.urlsafe_b64encode(mac).decode().rstrip('=')}"


def changed() -> str:
    header, _, signature = token().split(".")
    return f"{header}.{plain({}, {**CLAIMS, 'sub': 'system:serviceaccount:shop:admin'}).split('.')[1]}.{signature}"


WRONG: Mapping[str, tuple[str, str]] = {
    "expired": ("expired", token(exp=NOW - 31)),
    "expired long ago": ("expired", token(exp=-1e300)),
    "not yet valid": ("not_yet_valid", token(nbf=NOW + 31)),
    "made in the future": ("not_yet_valid", token(iat=NOW + 31)),
    "another audience": ("audience", token(aud=["kubernetes"])),
    "no audience": ("claim_missing", token(aud=None)),
    "an audience that is part of ours": ("audience", token(aud="mes")),
    "an audience that is not a string": ("claim_form", token(aud=[1])),
    "an empty audience": ("audience", token(aud=[])),
    "another issuer": ("issuer", token(iss="https://evil.example.com")),
    "an issuer that begins as ours": ("issuer", token(iss=ISSUER + ".evil.example")),
    "no issuer": ("issuer", token(iss=None)),
    "no algorithm": ("algorithm", plain({"alg": "none"})),
    "NoNe": ("algorithm", plain({"alg": "NoNe"})),
    "a shared secret": ("algorithm", symmetric()),
    "an unknown algorithm": ("algorithm", plain({"alg": "RS1"})),
    "an algorithm that is not a string": ("algorithm", plain({"alg": ["ES256"]})),
    "a stranger's key": ("signature", token(STRANGER)),
    "a stranger's key in the header": ("signature", token(STRANGER, {"jwk": STRANGER.as_dict(private=False)})),
    "changed since": ("signature", changed()),
    "no signature": ("signature", token().rpartition(".")[0] + "."),
    "the key of another algorithm": ("unknown_key", token(EC, {"kid": "rsa"})),
    "an unknown key": ("unknown_key", token(header={"kid": "other"})),
    "no end": ("claim_missing", token(exp=None)),
    "no beginning": ("claim_missing", token(iat=None)),
    "no subject": ("claim_missing", token(sub=None)),
    "an end that is not a time": ("claim_form", token(exp="never")),
    "an end that is true": ("claim_form", token(exp=True)),
    "an infinite end": ("claim_form", token(exp=float("inf"))),
    "an end beyond floats": ("claim_form", token(exp=10**400)),
    "a user": ("claim_form", token(sub="alice")),
    "a subject with a part too many": ("claim_form", token(sub="system:serviceaccount:shop:web:admin")),
    "a subject with an empty name": ("claim_form", token(sub="system:serviceaccount:shop:")),
    "a subject with a path": ("claim_form", token(sub="system:serviceaccount:shop:web/../admin")),
    "a subject in upper case": ("claim_form", token(sub="system:serviceaccount:Shop:web")),
    "a subject that looks alike": ("claim_form", token(sub="system:serviceaccount:ѕhop:web")),
    "a subject with a line's end": ("claim_form", token(sub="system:serviceaccount:shop:web\n")),
    "a logout token": ("token_type", token(header={"typ": "logout+jwt"})),
    "critical rules": ("token_form", plain({"alg": "ES256", "crit": ["b64"], "b64": False}, signature="AA")),
    "a header that is a list": ("token_form", plain(["alg"])),
    "a header that is a string": ("token_form", plain("alg")),
    "claims that are a list": ("token_form", plain({"alg": "ES256"}, [])),
    "a key id that is not a string": ("token_form", plain({"alg": "ES256", "kid": 1})),
    "no JSON": ("token_form", "a.b.c"),
    "not ASCII": ("token_form", "ä.ö.ü"),
    "nested deeply": ("token_form", base64.urlsafe_b64encode(b"[" * 9000).decode().rstrip("=") + ".e30."),
    "too long": ("token_size", "a" * MAX_BYTES + ".."),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
async def test_a_wrong_token_is_refused_with_its_own_reason(name: str) -> None:
    expected, text = WRONG[name]
    assert await reason(text) == expected


async def test_a_rule_may_permit_fewer_algorithms() -> None:
    judge = authenticator(algorithms=frozenset({"RS256"}))
    assert await judge.authenticate(showing(token(RSA))) == WEB
    assert await reason(token(EC), judge) == "algorithm"


async def test_without_rules_a_token_is_refused_unless_somebody_else_may_know_it() -> None:
    def judge(*, is_last: bool) -> JsonWebToken:
        return JsonWebToken([], lambda: TrustDomains("cluster.local"), is_last=is_last)

    assert await reason(token(), judge(is_last=True)) == "issuer"
    assert await judge(is_last=False).authenticate(showing(token())) is None


GOOGLE = {
    "namespace": ClaimTemplate("", ("google", "project")),
    "service_account": ClaimTemplate("vm-", ("name",)),
    "claims": {("google", "org"): ("ours",), ("verified",): (True,)},
}


@pytest.mark.parametrize(("claims", "expected"), [
    ({}, Identity("cluster.local", "shop", "vm-one")),
    ({"google": {"project": "shop", "org": "theirs"}}, "claim_value"),
    ({"google": {"project": "shop"}}, "claim_missing"),
    ({"google": "shop"}, "claim_missing"),
    ({"verified": 1}, "claim_value"),
    ({"verified": "true"}, "claim_value"),
    ({"name": "-../"}, "claim_form"),
    ({"name": ""}, "claim_form"),
    ({"name": ["one"]}, "claim_form"),
    ({"name": "a" * 251}, "claim_form"),
    ({"google": {"project": "a" * 64, "org": "ours"}}, "claim_form"),
])  # fmt: skip
async def test_claims_name_the_identity_where_a_rule_says_how(
    claims: Mapping[str, Any], expected: Identity | str
) -> None:
    judge = authenticator(**GOOGLE)
    text = token(**{"name": "one", "verified": True, "google": {"project": "shop", "org": "ours"}, **claims})
    if isinstance(expected, str):
        assert await reason(text, judge) == expected
    else:
        assert await judge.authenticate(showing(text)) == expected


class Server:
    """An issuer's server: what it answers, and how often it was asked."""

    def __init__(self, answer: str | FetchError = "") -> None:
        self.answer = answer or key_set(EC)
        self.asked = 0
        self.hangs = False

    async def fetch(self, issuer: TokenIssuer) -> str:
        self.asked += 1
        await trio.lowlevel.checkpoint()
        if self.hangs:
            await trio.sleep_forever()
        if isinstance(self.answer, FetchError):
            raise self.answer
        return self.answer


def over(server: Server) -> JsonWebToken:
    issuer = TokenIssuer(issuer=ISSUER, audiences=frozenset({"mesh"}))
    return JsonWebToken([issuer], lambda: TrustDomains("cluster.local"), fetch=server.fetch, now=lambda: NOW)


async def test_keys_are_fetched_once_for_many_tokens(autojump_clock: trio.abc.Clock) -> None:
    server = Server()
    judge = over(server)
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(judge.authenticate, showing(token()))
    assert server.asked == 1
    await trio.sleep(REFRESH_SECONDS + 1)
    await judge.authenticate(showing(token()))
    assert server.asked == 2


async def test_a_flood_of_unknown_keys_costs_one_fetch(autojump_clock: trio.abc.Clock) -> None:
    server = Server()
    judge = over(server)
    await judge.authenticate(showing(token()))
    await trio.sleep(RETRY_SECONDS)
    async with trio.open_nursery() as nursery:
        for index in range(50):
            nursery.start_soon(reason, token(header={"kid": f"key-{index}"}), judge)
    assert server.asked == 2


async def test_a_rotated_key_is_found_and_the_old_one_forgotten(autojump_clock: trio.abc.Clock) -> None:
    server = Server()
    judge = over(server)
    assert await judge.authenticate(showing(token())) == WEB
    server.answer = key_set(RSA)
    await trio.sleep(RETRY_SECONDS)
    assert await judge.authenticate(showing(token(RSA))) == WEB
    assert await reason(token(EC), judge) == "unknown_key"


async def test_the_last_keys_stay_while_the_issuer_is_away(autojump_clock: trio.abc.Clock) -> None:
    server = Server()
    judge = over(server)
    await judge.authenticate(showing(token()))
    server.answer = FetchError("away")
    await trio.sleep(10 * REFRESH_SECONDS)
    assert await judge.authenticate(showing(token())) == WEB
    with pytest.raises(AuthenticatorUnavailable):  # the key may be a new one
        await judge.authenticate(showing(token(RSA)))


async def test_a_token_that_cannot_be_judged_is_not_called_wrong(autojump_clock: trio.abc.Clock) -> None:
    server = Server(FetchError("away"))
    judge = over(server)
    for _ in range(5):
        with pytest.raises(AuthenticatorUnavailable, match="is not available now"):
            await judge.authenticate(showing(token()))
    assert server.asked == 1
    server.answer = key_set(EC)
    await trio.sleep(RETRY_SECONDS)
    assert await judge.authenticate(showing(token())) == WEB


async def test_callers_who_go_away_keep_nobody_from_the_keys(autojump_clock: trio.abc.Clock) -> None:
    server = Server()
    judge = over(server)
    with trio.move_on_after(0) as scope:
        await judge.authenticate(showing(token()))
    assert scope.cancelled_caught
    assert await judge.authenticate(showing(token())) == WEB
    assert server.asked == 1


async def test_a_server_that_hangs_is_given_up(autojump_clock: trio.abc.Clock) -> None:
    server = Server()
    server.hangs = True
    before = trio.current_time()
    with pytest.raises(AuthenticatorUnavailable):
        await over(server).authenticate(showing(token()))
    assert trio.current_time() - before == pytest.approx(TIMEOUT_SECONDS)


SMALL = {"kty": "RSA", "kid": "ec", "e": "AQAB", "n": base64.urlsafe_b64encode(b"\xff" * 128).decode().rstrip("=")}
NO_KEYS = {
    "nothing": "",
    "a list": "[]",
    "an object": "{}",
    "a number of keys": '{"keys": 1}',
    "no keys": '{"keys": []}',
    "keys of no use": '{"keys": [1, {"kty": "oct", "k": "AA"}, {"kty": "EC"}, {"kty": []}]}',
    "a small key": json.dumps({"keys": [SMALL]}),
    "nested deeply": "[" * 100_000,
}


@pytest.mark.parametrize("name", NO_KEYS)
async def test_what_is_no_key_set_is_no_answer(name: str, autojump_clock: trio.abc.Clock) -> None:
    server = Server()
    server.answer = NO_KEYS[name]
    with pytest.raises(AuthenticatorUnavailable):
        await over(server).authenticate(showing(token()))


async def test_keys_for_encryption_verify_nothing(autojump_clock: trio.abc.Clock) -> None:
    server = Server()
    server.answer = json.dumps({"keys": [{**EC.as_dict(private=False), "use": "enc"}, RSA.as_dict(private=False)]})
    assert await reason(token(EC), over(server)) == "unknown_key"
