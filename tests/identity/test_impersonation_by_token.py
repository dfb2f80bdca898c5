"""Ways to be somebody else by a token: a whole plane, over real TLS, refuses each with its own reason."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import attrs
import pytest
from joserfc import jwt
from joserfc.jwk import OctKey

from mesh_pilot.identity.authenticators.settings import JoinTokenSettings
from mesh_pilot.identity.tokens.join_tokens import PREFIX, JoinTokens
from mesh_pilot.identity.trust.callers import TrustDomains
from mesh_pilot.kubernetes.identity.foreign_tokens import ForeignTokenSettings
from mesh_pilot.model.spiffe import Identity
from mesh_pilot.net.rpc import Status
from tests.support.forgery import Forger, csr_of
from tests.support.impersonation import Certificate, Row, Shown, Stream, differences, impersonated, of_nobody
from tests.support.tokens import Issuer

pytestmark = pytest.mark.plane

WORKLOAD = Identity("cluster.local", "shop", "web")
HOUR = timedelta(hours=1)


def bearer(token: Callable[[Forger], str]) -> Callable[[Forger], Shown]:
    return lambda forger: attrs.evolve(of_nobody(forger), metadata=[("authorization", f"Bearer {token(forger)}")])


def tokens(forger: Forger) -> JoinTokens:
    """The plane's own."""
    return JoinTokens(forger.folder / "tokens")


def good(forger: Forger, **more: Any) -> str:
    return tokens(forger).create(WORKLOAD, HOUR, **more).text


def parts(token: str) -> tuple[dict[str, Any], dict[str, Any], str]:
    """Header and claims of a token, and its signature as it is written."""
    head, claims, signature = token.removeprefix(PREFIX).split(".")
    return json.loads(_decoded(head)), json.loads(_decoded(claims)), signature


def written(head: dict[str, Any], claims: dict[str, Any], signature: str) -> str:
    encoded = (base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in (head, claims))
    return f"{PREFIX}{'.'.join(encoded)}.{signature}"


def _decoded(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


def used(forger: Forger) -> str:
    token = good(forger, max_uses=1)
    tokens(forger).redeem(token, "127.0.0.1:1", TrustDomains("cluster.local"))
    return token


def old(forger: Forger) -> str:
    begun = datetime.now(UTC) - 2 * HOUR
    return JoinTokens(forger.folder / "tokens", now=lambda: begun).create(WORKLOAD, HOUR).text


def revoked(forger: Forger) -> str:
    made = tokens(forger).create(WORKLOAD, HOUR)
    tokens(forger).revoke([made.record.id])
    return made.text


def promoted(forger: Forger) -> str:
    head, claims, signature = parts(good(forger))
    return written(head, {**claims, "sub": "spiffe://cluster.local/ns/shop/sa/admin"}, signature)


def prolonged(forger: Forger) -> str:
    head, claims, signature = parts(old(forger))
    return written(head, {**claims, "exp": claims["exp"] + 10**6}, signature)


def unsigned(forger: Forger) -> str:
    head, claims, _ = parts(good(forger))
    return written({**head, "alg": "none"}, claims, "")


def signed_with_the_public_key(forger: Forger) -> str:
    head, claims, _ = parts(good(forger))
    (key,) = json.loads(next((forger.folder / "tokens").glob("*key*")).read_text())["keys"]
    public = OctKey.import_key(json.dumps({name: key[name] for name in ("crv", "kty", "x", "y")}))
    return PREFIX + jwt.encode({**head, "alg": "HS256"}, claims, public, algorithms=["HS256"])


def of_another_mesh(forger: Forger) -> str:
    return JoinTokens(forger.folder / "theirs").create(WORKLOAD, HOUR).text


def with_a_known_key_id(forger: Forger) -> str:
    """Signed by another key, with the id of ours."""
    head, _, _ = parts(good(forger))
    _, claims, signature = parts(of_another_mesh(forger))
    return written(head, claims, signature)


def join_token(reason: str, token: Callable[[Forger], str], **more: Any) -> Row:
    return Row(shows=bearer(token), says="", counted=("join_token", reason), **more)


JOIN_TOKENS = {
    "a token that is used up": join_token("replayed", used),
    "an expired token": join_token("expired", old),
    "a revoked token": join_token("revoked", revoked),
    "a token with another account": join_token("signature", promoted),
    "a token with a later end": join_token("signature", prolonged),
    "a token without a signature": join_token("algorithm", unsigned),
    "a token signed with the public key": join_token("algorithm", signed_with_the_public_key),
    "a token of another mesh's key": join_token("unknown_key", of_another_mesh),
    "another key under our key's id": join_token("signature", with_a_known_key_id),
    "a token for another mesh": join_token(
        "audience", lambda f: tokens(f).create(attrs.evolve(WORKLOAD, trust_domain="evil.example"), HOUR).text
    ),
    "a token for another network": join_token("address", lambda f: good(f, networks=["192.0.2.0/24"])),
    "half a token": join_token("form", lambda f: good(f).rpartition(".")[0]),
    "a token of a megabyte": join_token("form", lambda f: good(f) + "e30" * 2000),
    "another namespace in the node's id": join_token("claim", good, asks=Stream(namespace="other")),
    "another account in the metadata": join_token("claim", good, asks=Stream(metadata={"SERVICE_ACCOUNT": "admin"})),
    "a CSR for somebody else": Row(
        shows=bearer(good),
        asks=Certificate(csr=lambda: csr_of(uris=["spiffe://cluster.local/ns/shop/sa/admin"])),
        status=Status.PERMISSION_DENIED,
        says="",
        counted=("csr", "csr_identity"),
    ),
}


LOGIN, STRANGER = Issuer("https://login.test"), Issuer("https://evil.test")
SUBJECT = "system:serviceaccount:shop:"


def login(head: Mapping[str, Any] | None = None, *, by: Issuer = LOGIN, begins: float = -5, **more: Any) -> str:
    """A token that is believed, but for these parts; a claim that is None is left out."""
    now = int(time.time())
    good = {"iss": LOGIN.name, "sub": f"{SUBJECT}web", "aud": "mesh-pilot", "iat": now + begins, "exp": now + 600}
    found = {name: value for name, value in {**good, **more}.items() if value is not None}
    return by.signed({"alg": "ES256", "kid": LOGIN.name, "typ": "JWT", **(head or {})}, found)


def keyed_with_the_public_key() -> str:
    (key,) = json.loads(LOGIN.jwks)["keys"]
    _, found, _ = parts(login())
    head = {"alg": "HS256", "kid": LOGIN.name, "typ": "JWT"}
    return jwt.encode(head, found, OctKey.import_key(json.dumps(key)), algorithms=["HS256"])


def without_a_signature(algorithm: str) -> str:
    head, found, _ = parts(login({"alg": algorithm}))
    return written(head, found, "").removeprefix(PREFIX)


def changed() -> str:
    head, found, signature = parts(login())
    return written(head, {**found, "sub": f"{SUBJECT}admin"}, signature).removeprefix(PREFIX)


def json_web_token(reason: str, make: Callable[[], str], **more: Any) -> Row:
    return Row(shows=bearer(lambda _: make()), says="", counted=("jwt", reason), **more)


JSON_WEB_TOKENS = {
    "another audience": json_web_token("audience", lambda: login(aud="another")),
    "an audience that begins as ours": json_web_token("audience", lambda: login(aud=["mesh-pilot.evil.test"])),
    "no audience": json_web_token("claim_missing", lambda: login(aud=None)),
    "an expired token": json_web_token("expired", lambda: login(exp=int(time.time()) - 600)),
    "a token without an end": json_web_token("claim_missing", lambda: login(exp=None)),
    "a token with an end in words": json_web_token("claim_form", lambda: login(exp="never")),
    "a token of tomorrow": json_web_token("not_yet_valid", lambda: login(nbf=int(time.time()) + 3600)),
    "a token that will be issued": json_web_token("not_yet_valid", lambda: login(begins=3600)),
    "another issuer": json_web_token("issuer", lambda: STRANGER.token(f"{SUBJECT}web", aud="mesh-pilot")),
    "our issuer's name and a key of others": json_web_token("signature", lambda: login(by=STRANGER)),
    "a key id that is not known": json_web_token("unknown_key", lambda: login({"kid": "new"}, by=STRANGER)),
    "a key that the token brings": json_web_token(
        "signature", lambda: login({"jwk": json.loads(STRANGER.jwks)["keys"][0]}, by=STRANGER)
    ),
    "a key that the token has fetched": json_web_token(
        "signature", lambda: login({"jku": "http://127.0.0.1:1/jwks"}, by=STRANGER)
    ),
    "a key id that is a path": json_web_token("unknown_key", lambda: login({"kid": "../../dev/null"}, by=STRANGER)),
    "no signature": json_web_token("algorithm", lambda: without_a_signature("none")),
    "no signature in capitals": json_web_token("algorithm", lambda: without_a_signature("NoNe")),
    "no signature where one is promised": json_web_token("signature", lambda: without_a_signature("ES256")),
    "the public key as a secret": json_web_token("algorithm", keyed_with_the_public_key),
    "another account than was signed": json_web_token("signature", changed),
    "a critical rule that nobody knows": json_web_token("token_form", lambda: login({"crit": ["b64"], "b64": False})),
    "a subject that is a person": json_web_token("claim_form", lambda: login(sub="web@shop.test")),
    "a subject in capitals": json_web_token("claim_form", lambda: login(sub="system:serviceaccount:SHOP:web")),
    "a subject that looks alike": json_web_token("claim_form", lambda: login(sub="system:serviceaccount:ѕhop:web")),
    "a subject with a slash": json_web_token("claim_form", lambda: login(sub=f"{SUBJECT}web/sa/admin")),
    "a subject with a NUL": json_web_token("claim_form", lambda: login(sub=f"{SUBJECT}web\0")),
    "a subject with a part too many": json_web_token("claim_form", lambda: login(sub=f"{SUBJECT}web:admin")),
    "three words": json_web_token("token_form", lambda: "a.b.c"),
    "another namespace in the node's id": json_web_token("claim", login, asks=Stream(namespace="other")),
}


async def test_who_shows_a_join_token_that_is_not_theirs_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "forger" / "tokens"
    async with impersonated(tmp_path, join_tokens=JoinTokenSettings(folder)) as (plane, forger):
        for asks in (Stream(), Certificate()):
            await asks.of(plane.addresses.secure_grpc, bearer(good)(forger))
        assert await differences(JOIN_TOKENS, plane, forger) == {}


async def test_who_shows_a_token_of_an_issuer_that_is_not_theirs_is_refused(tmp_path: Path) -> None:
    rules = tmp_path / "rules.json"
    rules.write_text(json.dumps([{"issuer": LOGIN.name, "audiences": ["mesh-pilot"], "jwks": LOGIN.jwks}]))
    settings = ForeignTokenSettings(jwt_rules=rules)
    async with impersonated(tmp_path, foreign_tokens=settings) as (plane, forger):
        for asks in (Stream(), Certificate()):
            await asks.of(plane.addresses.secure_grpc, bearer(lambda _: login())(forger))
        assert await differences(JSON_WEB_TOKENS, plane, forger) == {}
