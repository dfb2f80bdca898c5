"""Listener conflicts are told: per proxy, on the debug page, the web page and in the metrics."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from mesh_pilot.envoy.catalog.catalog import WorldCatalog
from mesh_pilot.mesh.listeners.conflicts import ConflictKind
from mesh_pilot.ops.values.problems import conflict_counts, listener_conflicts
from tests.support.planes import running_plane
from tests.support.routing import config, router, service, virtual_service
from tests.support.rows import rows
from tests.support.worlds import sidecar, world_of

TWO_TCP = service("a.example", ports="9000 tcp TCP") + service("b.example", ports="9000 tcp TCP", age=1)
HTTP_AFTER_MYSQL = service("a.example", ports="3306 db MySQL") + service("b.example", ports="3306 http HTTP", age=1)
MYSQL_AFTER_HTTP = service("a.example", ports="3306 http HTTP") + service("b.example", ports="3306 db MySQL", age=1)

PORT = "{number: 443, name: NAME, protocol: TLS}"
TWO_GATEWAYS = "".join(
    config(
        "Gateway",
        name,
        f"{{selector: {{istio: edge}}, servers: [{{port: {PORT.replace('NAME', name)}, hosts: ['*'], "
        "tls: {mode: PASSTHROUGH}}]}",
        namespace="edge",
        age=age,
    )
    for age, name in enumerate(("old", "young"))
)


def kinds(text: str) -> dict[ConflictKind, int]:
    catalog = WorldCatalog(world_of(text))
    catalog.open(sidecar(namespace="shop"))
    return {kind: count for kind, count in conflict_counts(catalog.diagnostics()).items() if count}


def test_conflicts_have_istios_names() -> None:
    assert kinds(TWO_TCP) == {ConflictKind.TCP_OVER_TCP: 1}
    assert kinds(HTTP_AFTER_MYSQL) == {ConflictKind.HTTP_OVER_TCP: 1}
    assert kinds(MYSQL_AFTER_HTTP) == {ConflictKind.TCP_OVER_HTTP: 1}


def test_two_services_on_a_port_of_one_workload_are_an_inbound_conflict() -> None:
    same = TWO_TCP.replace("127.0.0.1", "10.1.1.1")
    assert kinds(same) == {ConflictKind.TCP_OVER_TCP: 1, ConflictKind.INBOUND: 1}


def test_a_conflict_of_many_proxies_is_one_entry_that_names_them() -> None:
    catalog = WorldCatalog(world_of(TWO_TCP))
    catalog.open(sidecar(name="one"))
    catalog.open(sidecar("10.1.1.2", name="two"))
    (entry,) = rows(listener_conflicts(catalog.diagnostics().conflicts()))
    assert entry == {
        "listener": "0.0.0.0_9000",
        "dropped": "b.example",
        "kept": "a.example",
        "reason": "both claim every connection",
        "kind": "pilot_conflict_outbound_listener_tcp_over_current_tcp",
        "proxies": ["one.default", "two.default"],
        "proxies_in_all": 2,
    }


def test_the_server_that_a_router_can_not_have_is_named_with_its_gateway() -> None:
    catalog = WorldCatalog(world_of(TWO_GATEWAYS))
    catalog.open(router())
    (entry,) = rows(listener_conflicts(catalog.diagnostics().conflicts()))
    assert (entry["listener"], entry["dropped"]) == ("0.0.0.0_443", "server 0 of Gateway edge/young")
    assert "port 443 of Gateway edge/old has the same hosts" in str(entry["reason"])


def test_of_two_routes_for_one_server_name_the_second_is_named() -> None:
    tls = "tls: [{match: [{sniHosts: [a.example]}], route: [{destination: {host: HOST}}]}]"
    routes = "".join(
        virtual_service(
            name,
            f"{{hosts: [a.example], gateways: [edge/old], {tls.replace('HOST', name)}}}",
            namespace="edge",
            age=age,
        )
        for age, name in enumerate(("first.example", "second.example"))
    )
    catalog = WorldCatalog(world_of(TWO_GATEWAYS.partition("---\n")[2].partition("---\n")[0] + routes))
    catalog.open(router())
    (entry,) = rows(listener_conflicts(catalog.diagnostics().conflicts()))
    assert entry["dropped"] == "VirtualService/edge/second.example"
    assert entry["kept"] == "VirtualService/edge/first.example"
    assert entry["reason"] == "both claim server name a.example"


def test_a_world_without_conflicts_has_none() -> None:
    catalog = WorldCatalog(world_of(service("a.example", ports="9000 tcp TCP")))
    catalog.open(sidecar())
    assert rows(listener_conflicts(catalog.diagnostics().conflicts())) == []


@pytest.mark.plane
async def test_pages_and_metrics_show_them(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(TWO_TCP)
    async with running_plane(tmp_path) as plane, httpx.AsyncClient(trust_env=False, timeout=60) as client:
        plane.state.catalog.open(sidecar())
        address = plane.addresses.http
        (entry,) = (await client.get(f"http://{address}/debug/rejections")).json()["listeners"]
        assert entry["dropped"] == "b.example"
        metrics = (await client.get(f"http://{address}/metrics")).text
        assert "pilot_conflict_outbound_listener_tcp_over_current_tcp 1.0" in metrics
        assert "pilot_conflict_inbound_listener 0.0" in metrics
