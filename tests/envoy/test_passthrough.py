"""Gateways between networks pass connections on to services of the mesh, and to nothing outside of it."""

from __future__ import annotations

import pytest

from tests.envoy.test_gateway_listeners import chains, gateway, server
from tests.support.routing import config

SERVICE = (
    "{{hosts: [db.shop.local], location: {}, resolution: STATIC, ports: [{{number: 80, name: tcp, protocol: TCP}}]}}"
)


@pytest.mark.parametrize(("location", "count"), [("MESH_INTERNAL", 1), ("MESH_EXTERNAL", 0)])
def test_an_external_service_is_not_reached_through_the_gateway(location: str, count: int) -> None:
    text = config("ServiceEntry", "db", SERVICE.format(location)) + config(
        "ServiceEntry", "web", SERVICE.format("MESH_INTERNAL").replace("db.", "web.")
    )
    text += gateway(server(15443, "TLS", "'*.local'", "mode: AUTO_PASSTHROUGH"))
    names = [name for chain in chains(text, "0.0.0.0_15443") for name in chain["filter_chain_match"]["server_names"]]
    assert sum("db.shop.local" in name for name in names) == count
    assert sum("web.shop.local" in name for name in names) == 1
