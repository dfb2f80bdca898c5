"""Ways to be somebody else by a token: a whole plane, over real TLS, refuses each with a reason of its own."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import attrs
from joserfc import jwt
from joserfc.jwk import OctKey

from mesh_pilot.model.spiffe import Identity
from mesh_pilot.rpc import Status
from mesh_pilot.security.join_tokens import PREFIX, JoinTokens, JoinTokenSettings
from tests.support.forgery import Forger, csr_of
from tests.support.impersonation import Certificate, Row, Shown, Stream, differences, impersonated, of_nobody

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
    from mesh_pilot.security.callers import TrustDomains

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


async def test_who_shows_a_join_token_that_is_not_theirs_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "forger" / "tokens"
    async with impersonated(tmp_path, join_tokens=JoinTokenSettings(folder)) as (plane, forger):
        for asks in (Stream(), Certificate()):
            await asks.of(plane.addresses.secure_grpc, bearer(good)(forger))
        assert await differences(JOIN_TOKENS, plane, forger) == {}
