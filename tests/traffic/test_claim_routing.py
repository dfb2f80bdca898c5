"""Gateways route by the claims of tokens: by what a real Envoy found in them, not by what a client says."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.edge import gateway
from tests.support.envoy import eventually
from tests.support.fleet import Fleet, fleet
from tests.support.manifests import at, manifest, service
from tests.support.shop import EDGE
from tests.support.tokens import Issuer

pytestmark = pytest.mark.envoy

LOGIN = Issuer("https://login.example.com")
SERVERS = '- {port: {number: $port, name: http, protocol: HTTP}, hosts: ["*"]}'
TOKENS = "selector: {matchLabels: {istio: edge}}\njwtRules: $rules"
ROUTES = """
hosts: ["*"]
gateways: [edge]
http:
- match: [{headers: {"@request.auth.claims[realm][roles]": {exact: ops}}}]
  route: [{destination: {host: ops.test}}]
- match: [{headers: {"@request.auth.claims.sub": {prefix: staff-}}, withoutHeaders: {"@request.auth.claims[left]": {}}}]
  route: [{destination: {host: staff.test}}]
- route: [{destination: {host: public.test}}]
"""


HEADERS = """
hosts: ["*"]
gateways: [edge]
http:
- match: [{headers: {x-who: {exact: staff-b}}}]
  route: [{destination: {host: staff.test}}]
- route: [{destination: {host: public.test}}]
"""


@asynccontextmanager
async def routed(
    tmp_path: Path, free_ports: Callable[[int], list[int]], routes: str
) -> AsyncIterator[tuple[Fleet, Callable[..., Awaitable[str]]]]:
    """A gateway with these routes, and who answers a request there with a token."""
    (port,) = free_ports(1)
    names = ("ops", "staff", "public")
    async with fleet(tmp_path) as mesh:
        services = "".join([service(f"{name}.test", 80, at(await mesh.backend(name))) for name in names])
        to_headers = [{"header": "x-who", "claim": "sub"}]
        rules = json.dumps([{"issuer": LOGIN.name, "jwks": LOGIN.jwks, "outputClaimToHeaders": to_headers}])
        tokens = manifest("RequestAuthentication", "tokens", TOKENS, rules=rules)
        edge = gateway("edge", SERVERS, port=port)
        await mesh.apply(services + edge + tokens + manifest("VirtualService", "by-claim", routes))
        await mesh.envoy(EDGE)

        async def answer(token: str = "") -> str:
            headers = {"authorization": f"Bearer {token}"} if token else None
            reply = await mesh.get(f"http://127.0.0.1:{port}/", host="any.test", headers=headers)
            return str(reply.json()["name"]) if reply.status_code == 200 else str(reply.status_code)

        async def ready() -> bool:
            return await answer() == "public"

        await eventually(ready, what="the gateway answers")
        yield mesh, answer


@pytest.mark.smoke
async def test_requests_go_where_the_claims_of_their_tokens_say(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    async with routed(tmp_path, free_ports, ROUTES) as (mesh, answer):
        assert await answer(LOGIN.token("a", realm={"roles": ["dev", "ops"]})) == "ops"
        assert await answer(LOGIN.token("a", realm={"roles": "ops"})) == "ops"
        assert await answer(LOGIN.token("staff-b")) == "staff"
        assert await answer(LOGIN.token("staff-b", left="2020")) == "public"
        assert await answer(LOGIN.token("c", realm={"roles": ["dev"]})) == "public"
        assert await answer(Issuer(LOGIN.name).token("staff-b")) == "401"
        await mesh.assert_all_taken()


async def test_requests_go_where_the_headers_made_of_claims_say(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    async with routed(tmp_path, free_ports, HEADERS) as (_, answer):
        assert await answer(LOGIN.token("staff-b")) == "staff"
        assert await answer(LOGIN.token("staff-c")) == "public"
