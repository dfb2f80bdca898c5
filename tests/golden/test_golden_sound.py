"""Every golden scenario once more: a real Envoy takes all of it, and nothing names what is not there."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from envoy.config.cluster.v3 import cluster_pb2
from envoy.config.listener.v3 import listener_pb2
from envoy.config.route.v3 import route_pb2
from envoy.extensions.filters.http.router.v3 import router_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2 as hcm_pb2

from mesh_pilot.envoy.catalog.catalog import WorldCatalog
from mesh_pilot.model.resource import CLUSTER, ENDPOINT, LISTENER, ROUTE
from tests.support import golden
from tests.support.dangling import dangling
from tests.support.envoy_check import complaints

pytestmark = pytest.mark.envoy

Document = dict[str, dict[str, Any]]


def proxies(scenario: str) -> Iterator[tuple[dict[str, Any], Document]]:
    """Each proxy of a scenario with all that it is sent."""
    golden.adsdump.load_all_protos()
    world = golden.load(scenario)
    for entry in golden.proxies(scenario):
        dump = golden.Dump(world, golden.proxy_of(entry), asked=entry.get("grpc", ()))
        yield entry, dump.run()


def named(node: object) -> Iterator[str]:
    """The clusters that routes, TCP proxies and mirrors name."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "cluster" and isinstance(value, str):
                yield value
            elif key == "weighted_clusters":
                yield from (c["name"] for c in value["clusters"] if "name" in c)
            yield from named(value)
    elif isinstance(node, list):
        for value in node:
            yield from named(value)


def left_dangling(document: Document) -> set[str]:
    there = set(document["clusters"])
    return {name for part in ("listeners", "routes") for name in named(document[part]) if name and name not in there}


@pytest.mark.parametrize("scenario", golden.scenarios())
def test_nothing_names_what_is_not_there(scenario: str) -> None:
    """A route may name a cluster that does not exist where the YAML itself does, as it may in Istio: requests to it
    fail. Nothing else may."""
    for entry, document in proxies(scenario):
        expected = golden.json.loads(golden.read(golden.ROOT / scenario / "expect" / f"{entry['name']}.json"))
        assert left_dangling(document) <= left_dangling(expected), entry["name"]
        eds = {
            c.get("eds_cluster_config", {}).get("service_name") or name
            for name, c in document["clusters"].items()
            if c.get("type") == "EDS"
        }
        assert eds == set(document["endpoints"]), entry["name"]


@pytest.mark.parametrize("scenario", golden.scenarios())
def test_no_proxy_is_made_to_wait_for_what_it_is_not_sent(scenario: str) -> None:
    catalog = WorldCatalog(golden.load(scenario))
    for entry in golden.proxies(scenario):
        if not entry.get("grpc"):
            assert dangling(catalog.open(golden.proxy_of(entry))) == {}, entry["name"]


@cache
def bodies(type_url: str) -> tuple[bytes, ...]:
    """Every different resource of a type in all scenarios, gRPC's aside."""
    found: dict[bytes, None] = {}
    golden.adsdump.load_all_protos()
    for scenario in golden.scenarios():
        world = golden.load(scenario)
        catalog = WorldCatalog(world)
        for entry in golden.proxies(scenario):
            if entry.get("grpc"):
                continue
            resources = catalog.open(golden.proxy_of(entry))
            held = resources.set(type_url)
            assert held is not None
            if type_url in (CLUSTER, LISTENER):
                found.update((r.body, None) for r in held.snapshot().entries.values())
            else:
                dump = golden.Dump(world, golden.proxy_of(entry))
                names = dump.run()[{ENDPOINT: "endpoints", ROUTE: "routes"}[type_url]]
                found.update((r.body, None) for n in names if (r := held.get(n)) is not None)
    return tuple(found)


def renamed(body: bytes, number: int) -> bytes:
    cluster = cluster_pb2.Cluster.FromString(body)
    cluster.name = f"{number}/{cluster.name}"
    if cluster.type == cluster_pb2.Cluster.ORIGINAL_DST:
        # A static one starts before ADS does, and Envoy 1.40 crashes if it wants secrets from there. Ours never are.
        cluster.ClearField("transport_socket")
    if cluster.HasField("load_assignment"):
        cluster.load_assignment.cluster_name = cluster.name
    return cluster.SerializeToString()


def routed(body: bytes) -> bytes:
    """A listener whose requests go by a route table."""
    manager = hcm_pb2.HttpConnectionManager(stat_prefix="check")
    manager.route_config.CopyFrom(route_pb2.RouteConfiguration.FromString(body))
    manager.route_config.validate_clusters.value = False
    manager.http_filters.add(name="envoy.filters.http.router").typed_config.Pack(router_pb2.Router())
    listener = listener_pb2.Listener(name="check")
    listener.address.socket_address.address = "127.0.0.1"
    listener.filter_chains.add().filters.add(name="hcm").typed_config.Pack(manager)
    return listener.SerializeToString()


@pytest.mark.smoke
def test_a_real_envoy_takes_every_cluster(tmp_path: Path) -> None:
    clusters = [renamed(body, number) for number, body in enumerate(bodies(CLUSTER))]
    assert len(clusters) > 300
    assert complaints(tmp_path, (), clusters) == ""


@pytest.mark.smoke
def test_a_real_envoy_takes_every_endpoint_assignment(tmp_path: Path) -> None:
    """As part of static clusters, because assignments alone can't be asked about."""
    clusters = []
    for number, body in enumerate(bodies(ENDPOINT)):
        cluster = cluster_pb2.Cluster(name=f"{number}", type=cluster_pb2.Cluster.STATIC)
        cluster.load_assignment.ParseFromString(body)
        cluster.load_assignment.cluster_name = cluster.name
        clusters.append(cluster.SerializeToString())
    assert len(clusters) > 200
    assert complaints(tmp_path, (), clusters) == ""


@pytest.mark.smoke
def test_a_real_envoy_takes_every_route_table(tmp_path: Path) -> None:
    tables = [routed(body) for body in bodies(ROUTE)]
    assert len(tables) > 100
    assert complaints(tmp_path, tables) == ""
