"""Hosts have no case: what one object writes as ``Shop.Test`` is what another calls ``shop.test``."""

from __future__ import annotations

import pytest

from mesh_pilot.mesh.listeners.gateway_servers import merged_servers
from mesh_pilot.model.service import ServiceKey
from tests.support.listeners import listeners, tcp
from tests.support.routing import clusters, config, gateway_table, router, service, table, target, virtual_service
from tests.support.upstreams import addresses, endpoints, outbound
from tests.support.worlds import sidecar, update, world_of

TO = "http: [{route: [{destination: {host: %s}}]}]"


def gateway(host: str, port: str = "{number: 80, name: http, protocol: HTTP}", more: str = "") -> str:
    return config(
        "Gateway", "edge", f"{{selector: {{istio: edge}}, servers: [{{port: {port}, hosts: ['{host}']{more}}}]}}"
    )


@pytest.mark.parametrize("server", ["shop.test", "Shop.Test", "*.test", "*.TEST", "./SHOP.test", "shop/Shop.test"])
@pytest.mark.parametrize("host", ["shop.test", "SHOP.test", "Shop.Test"])
def test_a_gateway_and_a_virtual_service_have_a_host_in_common(server: str, host: str) -> None:
    rule = virtual_service("v", f"{{hosts: [{host}], gateways: [edge], {TO % 'App.test'}}}")
    world = world_of(service("app.test") + rule + gateway(server))
    found = gateway_table(world)
    assert {name: clusters(each) for name, each in found.items()} == {"shop.test:80": ["outbound|80||app.test"]}


@pytest.mark.parametrize("written", ["app.test", "App.Test"])
@pytest.mark.parametrize("named", ["app.test", "APP.test"])
def test_a_service_its_routes_and_its_rules_are_joined(written: str, named: str) -> None:
    text = service(written) + virtual_service("v", f"{{hosts: [{named}], {TO % named.title()}}}")
    text += config("DestinationRule", "d", f"{{host: {named}, subsets: [{{name: v1, labels: {{v: '1'}}}}]}}")
    world = world_of(text)
    assert clusters(table(world)["app.test:80"]) == ["outbound|80||app.test"]
    found = outbound(world, sidecar(namespace="shop"))
    assert {"outbound|80||app.test", "outbound|80|v1|app.test"} <= set(found)
    assert addresses(endpoints(world, sidecar(namespace="shop"), "outbound|80||app.test")) == ["127.0.0.1:80"]


@pytest.mark.parametrize("egress", ["./App.test", "*/APP.test", "shop/*.Test"])
def test_a_sidecar_imports_the_host(egress: str) -> None:
    world = world_of(service("app.test") + config("Sidecar", "s", f"{{egress: [{{hosts: ['{egress}']}}]}}"))
    assert "outbound|80||app.test" in outbound(world, sidecar(namespace="shop"))
    world = world_of(service("app.test") + config("Sidecar", "s", "{egress: [{hosts: ['*/*', '~/APP.test']}]}"))
    assert "outbound|80||app.test" not in outbound(world, sidecar(namespace="shop"))


def test_service_entries_of_one_host_are_one_service() -> None:
    world = world_of(service("App.test"))
    update(world, service("app.TEST", ports="81 admin HTTP", age=1).replace("name: app.test", "name: other"))
    found = world.view.service(ServiceKey("app.test", "shop"))
    assert found is not None and [port.number for port in found.ports] == [80, 81]
    assert [each.namespace for each in world.view.services_named("APP.test")] == ["shop"]


def test_server_names_are_compared_without_case() -> None:
    port = "{number: 443, name: tls, protocol: TLS}"
    rules = "tls: [{match: [{port: 443, sniHosts: [Raw.Test]}], route: [{destination: {host: App.test}}]}]"
    rule = virtual_service("v", f"{{hosts: [RAW.test], gateways: [mesh, edge], {rules}}}")
    text = service("app.test", ports="443 tls TLS") + service("raw.test", ports="443 tls TLS") + rule
    world = world_of(text + gateway("raw.TEST", port, ", tls: {mode: PASSTHROUGH}"))
    chains = listeners(world, sidecar(namespace="shop"))["0.0.0.0_443"].filter_chains
    found = {tuple(chain.filter_chain_match.server_names): tcp(chain).cluster for chain in chains}
    assert found[("raw.test",)] == "outbound|443||app.test"
    (at,) = merged_servers(world.view, target(world, router()).scope, ()).listeners
    assert at.servers[0].server_names == ("raw.test",)
