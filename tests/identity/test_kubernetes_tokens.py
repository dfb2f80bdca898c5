"""Tokens of Kubernetes service accounts, over an API server that reviews them as the real one does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import attrs
import httpx
import pytest
import structlog.testing
import trio

from mesh_pilot.identity.trust.callers import AuthenticationError, AuthenticatorUnavailable, Credentials, TrustDomains
from mesh_pilot.kubernetes.apiserver import Access, ApiClient
from mesh_pilot.kubernetes.identity.token_review import MAX_REVIEWS, REMEMBERED_SECONDS, REVIEWS, KubernetesToken
from mesh_pilot.model.spiffe import Identity
from tests.identity.test_jwt import NOW, showing, token

ISSUER = "https://kubernetes.default.svc"
WEB = Identity("cluster.local", "shop", "web")
USER = {
    "username": "system:serviceaccount:shop:web",
    "uid": "1",
    "groups": ["system:serviceaccounts", "system:serviceaccounts:shop", "system:authenticated"],
}


@attrs.define
class ApiServer:
    """Reviews tokens. State: those that it knows, how it fares, and what it was asked."""

    users: dict[str, Mapping[str, Any]] = attrs.field(factory=dict)
    status: int = 201
    body: bytes | None = None
    audience_aware: bool = True
    hangs: bool = False
    asked: list[dict[str, Any]] = attrs.field(factory=list)
    now: int = 0
    most: int = 0
    """Reviews at the same time: now, and at most."""
    clients: int = 0

    def client(self) -> ApiClient:
        self.clients += 1
        return ApiClient(Access(server="https://api.example"), transport=httpx.MockTransport(self.answer))

    async def answer(self, request: httpx.Request) -> httpx.Response:
        self.now += 1
        self.most = max(self.now, self.most)
        try:
            await trio.sleep_forever() if self.hangs else await trio.sleep(0.01)
        finally:
            self.now -= 1
        review = json.loads(request.content)
        assert (request.method, request.url.path) == ("POST", REVIEWS)
        assert (review["apiVersion"], review["kind"]) == ("authentication.k8s.io/v1", "TokenReview")
        self.asked.append(review["spec"])
        if self.body is not None:
            return httpx.Response(self.status, content=self.body)
        user = self.users.get(review["spec"]["token"])
        status: dict[str, Any] = {"user": {}, "error": "[invalid bearer token, square/go-jose: error]"}
        if user is not None:
            status = {"authenticated": True, "user": user}
            if self.audience_aware:
                status["audiences"] = review["spec"]["audiences"]
        return httpx.Response(self.status, json={**review, "status": status})


def good(**claims: Any) -> str:
    return token(**{"iss": ISSUER, "aud": ["istio-ca"], **claims})


def authenticator(server: ApiServer, **more: Any) -> KubernetesToken:
    return KubernetesToken(server.client, ("istio-ca",), lambda: TrustDomains("cluster.local"), now=lambda: NOW, **more)


async def reason(text: str, judge: KubernetesToken) -> str:
    with pytest.raises(AuthenticationError) as refused:
        await judge.authenticate(showing(text))
    assert text not in str(refused.value)
    return refused.value.reason


async def test_a_token_that_the_api_server_accepts_proves_a_service_account(autojump_clock: trio.abc.Clock) -> None:
    text = good()
    server = ApiServer({text: USER})
    assert await authenticator(server).authenticate(showing(text)) == WEB
    assert server.asked == [{"token": text, "audiences": ["istio-ca"]}]


async def test_evidence_of_other_kinds_is_left_to_others(autojump_clock: trio.abc.Clock) -> None:
    server = ApiServer()
    judge = authenticator(server, other_issuers=["https://login.example.com"])
    assert await judge.authenticate(Credentials("192.0.2.7:4000", True)) is None
    assert await judge.authenticate(showing("mpjt_a.b.c")) is None
    assert await judge.authenticate(showing(token(aud="istio-ca"))) is None, (
        "it is another's, and no business of Kubernetes"
    )
    assert server.asked == []


@pytest.mark.parametrize(("claims", "expected"), [
    ({"exp": NOW - 60}, "expired"),
    ({"exp": None}, "claim_missing"),
    ({"nbf": NOW + 60}, "not_yet_valid"),
    ({"aud": "https://kubernetes.default.svc"}, "audience"),
    ({"aud": None}, "claim_missing"),
])  # fmt: skip
async def test_a_token_that_says_itself_that_it_is_wrong_is_not_reviewed(
    claims: Mapping[str, Any], expected: str, autojump_clock: trio.abc.Clock
) -> None:
    server = ApiServer()
    assert await reason(good(**claims), authenticator(server)) == expected
    assert server.asked == []


@pytest.mark.parametrize(("user", "expected"), [
    (None, "rejected"),
    ({**USER, "groups": ["system:authenticated"]}, "claim_form"),
    ({**USER, "groups": None}, "claim_form"),
    ({**USER, "username": "alice"}, "claim_form"),
    ({**USER, "username": "system:serviceaccount:shop:web:x"}, "claim_form"),
    ({**USER, "username": "system:serviceaccount:shop:WEB"}, "claim_form"),
    ({**USER, "username": None}, "claim_form"),
    ({}, "claim_form"),
])  # fmt: skip
async def test_what_is_no_service_account_is_nobody(
    user: Mapping[str, Any] | None, expected: str, autojump_clock: trio.abc.Clock
) -> None:
    text = good()
    server = ApiServer({} if user is None else {text: user})
    assert await reason(text, authenticator(server)) == expected


async def test_a_server_that_knows_no_audiences_vouches_for_nobody(autojump_clock: trio.abc.Clock) -> None:
    text = good()
    server = ApiServer({text: USER}, audience_aware=False)
    assert await reason(text, authenticator(server)) == "audience"


async def test_an_answer_is_remembered_for_seconds_by_token(autojump_clock: trio.abc.Clock) -> None:
    text, other = good(), good(jti="other")
    server = ApiServer({text: USER})
    judge = authenticator(server)
    for _ in range(3):
        await judge.authenticate(showing(text))
        assert await reason(other, judge) == "rejected"
    assert len(server.asked) == 2
    server.users.clear()
    await trio.sleep(REMEMBERED_SECONDS)
    assert await reason(text, judge) == "rejected", "its pod is gone"


@pytest.mark.parametrize(("fields", "logged"), [
    ({"status": 403}, "system:auth-delegator"),
    ({"status": 401}, "system:auth-delegator"),
    ({"status": 500}, "answers 500"),
    ({"body": b"<html>"}, "not an API server"),
    ({"body": b"[" * 100_000}, "not an API server"),
    ({"body": b'{"status": []}'}, "not an API server"),
    ({"body": b" " * 1_100_000}, "more than"),
    ({"hangs": True}, "no answer in 5 s"),
])  # fmt: skip
async def test_a_server_that_does_not_review_is_not_the_callers_fault(
    fields: Mapping[str, Any], logged: str, autojump_clock: trio.abc.Clock
) -> None:
    text = good()
    judge = authenticator(ApiServer({text: USER}, **fields))
    with structlog.testing.capture_logs() as lines:
        for _ in range(3):
            with pytest.raises(AuthenticatorUnavailable) as raised:
                await judge.authenticate(showing(text))
    assert len(lines) == 1 and logged in lines[0]["reason"]
    assert text not in str(lines) + str(raised.value)


async def test_reviews_at_the_same_time_are_few_and_share_a_client(autojump_clock: trio.abc.Clock) -> None:
    texts = [good(jti=str(index)) for index in range(100)]
    server = ApiServer(dict.fromkeys(texts, USER))
    judge = authenticator(server)
    async with trio.open_nursery() as nursery:
        for text in texts:
            nursery.start_soon(judge.authenticate, showing(text))
    assert (server.most, server.clients, len(server.asked)) == (MAX_REVIEWS, 1, 100)
