"""Tokens that nobody would send: each is refused as such, or is not an evidence; there is no other exception."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping
from typing import Any

import trio
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mesh_pilot.consul.identity.authenticator import ConsulToken
from mesh_pilot.identity.authenticators.compact_token import MAX_BYTES
from mesh_pilot.identity.authenticators.recent_answers import RecentAnswers
from mesh_pilot.identity.trust.callers import AuthenticationError, Authenticator, Credentials, TrustDomains
from mesh_pilot.kubernetes.identity.token_review import KubernetesToken
from mesh_pilot.model.spiffe import Identity
from tests.identity.test_jwt import CLAIMS, EC, WEB, authenticator, signed, token
from tests.identity.test_kubernetes_tokens import ApiServer
from tests.support.sample import examples

GOOD = token()
JWT = authenticator()
JUDGES: tuple[Authenticator, ...] = (
    JWT,
    KubernetesToken(ApiServer().client, ("istio-ca",), lambda: TrustDomains("cluster.local")),
    ConsulToken(None, lambda: TrustDomains("cluster.local")),
)

JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)
HEADERS = st.dictionaries(st.sampled_from(["alg", "kid", "typ", "crit", "jwk", "b64", "x5c"]), JSON)
SOME_CLAIMS = st.dictionaries(st.sampled_from([*CLAIMS, "nbf"]), JSON)


def part(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode("utf-8", "surrogatepass")).decode().rstrip("=")


def judged(text: str, judge: Authenticator = JWT) -> Identity | None:
    async def run() -> Identity | None:
        metadata: Mapping[str, list[str]] = {"authorization": [f"Bearer {text}"], "x-consul-token": [text]}
        try:
            return await judge.authenticate(Credentials("192.0.2.7:4000", True, metadata=metadata))
        except AuthenticationError as error:
            assert error.reason.replace("_", "").isalpha()
            str(error).encode()  # it goes into a log
            return None

    return trio.run(run)


@given(st.text() | st.binary().map(lambda data: data.decode("latin-1")))
@example("..")
@example("\ud800.a.b")
def test_any_text_is_nobody(text: str) -> None:
    for judge in JUDGES:
        assert judged(text, judge) is None


@given(JSON | HEADERS, JSON | SOME_CLAIMS, st.text(alphabet="abcABC012-_", max_size=90))
def test_any_parts_in_json_are_nobody(header: Any, claims: Any, signature: str) -> None:
    for judge in JUDGES[:2]:
        assert judged(f"{part(header)}.{part(claims)}.{signature}", judge) is None


@given(SOME_CLAIMS)
def test_any_claims_that_an_issuer_signs_prove_no_more_than_they_say(claims: dict[str, Any]) -> None:
    found = judged(signed({**CLAIMS, **claims}, EC))
    assert found in (None, WEB)


@given(st.integers(0, len(GOOD) - 1), st.characters(codec="ascii"))
def test_a_token_with_one_character_changed_is_nobody(place: int, character: str) -> None:
    changed = GOOD[:place] + character + GOOD[place + 1 :]
    assert judged(changed) == (WEB if changed == GOOD else None)


@given(st.integers(0, len(GOOD) - 1), st.integers(0, len(GOOD)))
def test_a_part_of_a_token_is_nobody(start: int, end: int) -> None:
    assert judged(GOOD[start:end]) == (WEB if GOOD[start:end] == GOOD else None)


@given(st.text(), st.text())
@example("\ud800", "\ud801")
def test_any_text_can_be_remembered_and_is_taken_for_no_other(text: str, other: str) -> None:
    async def run() -> None:
        recent: RecentAnswers[str] = RecentAnswers(5.0)
        recent.put(text, text or "nothing")
        assert recent.get(text) == (text or "nothing")
        assert other == text or recent.get(other) is None

    trio.run(run)


@settings(max_examples=examples(20))
@given(st.sampled_from([".", "a", "[", "{", "=", "W10", "eyJh", "\x00", "é"]), st.sampled_from(["", "."]))
def test_a_huge_token_takes_little_time(piece: str, joint: str) -> None:
    largest = (piece + joint) * (MAX_BYTES // len(piece + joint))
    for text in (largest, largest * 60, f"{largest}.{largest}.", f"{part({'alg': 'ES256'})}.{largest[:12_000]}."):
        for judge in JUDGES:
            began = time.process_time()
            assert judged(text, judge) is None
            assert time.process_time() - began < 0.5
