"""``why`` names who has a host that a gateway does not route, and why that is not bound there."""

from __future__ import annotations

import pytest

from mesh_pilot.envoy.catalog.catalog import WorldCatalog
from mesh_pilot.explain.inspection.why.request import parse_request
from mesh_pilot.ops.explain.unbound import holders
from tests.support.owned import OwnedWorld
from tests.world.test_host_owners import EDGE

GATEWAY = """
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: edges}
spec:
  selector: {app: edge}
  servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ["shop.test"]}]
---
"""
ROUTES = """
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: shop, namespace: edges}
spec:
  hosts: [reviews.test, shop.test]
  gateways: [%s]
  http: [{directResponse: {status: 200}}]
"""


@pytest.mark.parametrize(
    ("gateways", "reasons"),
    [
        ("mesh", ["has the host for sidecars alone (gateway mesh)"]),
        ("mesh, edge", ["has the host for Gateway/edges/edge, whose server at port 80 has other hosts: shop.test"]),
        ("edge, mesh, egde", [
            "has the host for Gateway/edges/edge, whose server at port 80 has other hosts: shop.test",
            "has the host for Gateway/edges/egde, which does not exist",
        ]),
    ],
)  # fmt: skip
def test_the_reason_is_the_gateway_that_this_proxy_serves(gateways: str, reasons: list[str]) -> None:
    world = OwnedWorld(GATEWAY + ROUTES % gateways).world
    keys = WorldCatalog(world).open(EDGE).target
    routed = [config for key, config in world.config.items() if key.kind == "VirtualService" and config is not None]
    found = holders(world.view, keys, parse_request("http://reviews.test/"), routed)
    assert [text for text, _ in found] == reasons
