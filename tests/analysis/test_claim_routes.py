"""A route by the claims of a token, where no RequestAuthentication checks tokens: with and without known workloads."""

from __future__ import annotations

import pytest

from mesh_pilot.explain.analysis.analyze import analyze
from tests.support.manifests import manifest
from tests.support.worlds import sidecar, world_of

ROUTES = manifest(
    "Gateway",
    "edge",
    """
    selector: {istio: edge}
    servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ["*"]}]
    """,
) + manifest(
    "VirtualService",
    "web",
    """
    hosts: [web.test]
    gateways: [edge]
    http:
    - match: [{headers: {"@request.auth.claims.group": {exact: admin}}}]
      directResponse: {status: 200}
    """,
)
ROUTER = sidecar(name="edge", namespace="shop", node_type="router", labels={"istio": "edge"})


def tokens(selector: str, namespace: str = "shop") -> str:
    spec = f"{{{selector}jwtRules: [{{issuer: i, jwksUri: 'https://i.test/keys'}}]}}"
    return manifest("RequestAuthentication", "tokens", spec, namespace=namespace)


@pytest.mark.parametrize("router", [False, True], ids=["unknown", "connected"])
@pytest.mark.parametrize(
    ("more", "is_found"),
    [
        ("", True),
        (tokens("selector: {matchLabels: {app: web, istio: other}}, "), True),
        (tokens("selector: {matchLabels: {istio: edge}}, "), False),
        (tokens(""), False),
        (tokens("", "istio-system"), False),
    ],
)
def test_it_is_named_on_virtual_machines_too(router: bool, more: str, is_found: bool) -> None:
    messages = analyze(world_of(ROUTES + more), [ROUTER] if router else ())
    texts = [message.text for message in messages if message.type.code == "IST0149"]
    assert bool(texts) == is_found
    if texts:
        assert ("pod (edge" if router else "pod (istio=edge)") in texts[0]
