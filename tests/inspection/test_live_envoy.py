"""A real Envoy and its control plane side by side: in sync they do not differ, and tables can be made of both."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio

from mesh_pilot.model.proxy import VIRTUAL_HOSTS
from mesh_pilot.model.resource import ROUTE
from tests.support.command import Done, mesh_pilot
from tests.support.edge import gateway, to
from tests.support.envoy import RealEnvoy, eventually
from tests.support.fleet import Fleet, fleet
from tests.support.manifests import routes, rule, service, subsets
from tests.support.shop import CLIENT, EDGE

pytestmark = pytest.mark.envoy

SPLIT = """
- match: [{headers: {x-tester: {regex: "^(ann|bob)$"}}}]
  fault: {delay: {percentage: {value: 20}, fixedDelay: 2s}}
  route: [{destination: {host: reviews.test, subset: v2}}]
- timeout: 4s
  retries: {attempts: 2, perTryTimeout: 1500ms, retryOn: "5xx,reset"}
  route:
  - {destination: {host: reviews.test, subset: v1}, weight: 95}
  - {destination: {host: reviews.test, subset: v2}, weight: 5, headers: {response: {set: {x-canary: "true"}}}}
"""
POLICY = """
connectionPool: {http: {http1MaxPendingRequests: 64}, tcp: {connectTimeout: 1s}}
outlierDetection: {consecutive5xxErrors: 5, interval: 10s}
loadBalancer: {localityLbSetting: {enabled: true}}
"""


def config(http: int, tcp: int, edge: int) -> str:
    ends = [
        {"address": "127.0.0.11", "labels": {"version": "v1"}, "locality": "eu/a", "weight": 3},
        {"address": "127.0.0.12", "labels": {"version": "v2"}, "locality": "eu/b"},
    ]
    return (
        service("reviews.test", http, *ends)
        + service("db.test", tcp, {"address": "127.0.0.13"}, protocol="TCP")
        + service("names.test", http, {"address": "localhost"}, resolution="DNS")
        + service("nobody.test", http)
        + subsets("reviews.test", "v1", "v2")
        + rule("names.test", POLICY)
        + routes("reviews.test", SPLIT)
        + gateway("edge", "- {port: {number: $port, name: http, protocol: HTTP}, hosts: [a.test]}", port=edge)
        + to("a.test", "reviews.test", "edge")
    )


async def test_an_envoy_in_sync_has_no_difference_and_its_tables_name_the_lines(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    ports = free_ports(3)
    async with fleet(tmp_path) as mesh:
        await mesh.apply(config(*ports))

        async def ask(envoy: RealEnvoy, *words: str) -> Done:
            places = ("--pilot", mesh.plane.addresses.http or "", "--admin", envoy.admin)
            return await trio.to_thread.run_sync(partial(mesh_pilot, *words, *places))

        envoy = await mesh.envoy(attrs.evolve(CLIENT, metadata={VIRTUAL_HOSTS: "split"}), delta=True)
        edge = await mesh.envoy(EDGE)
        await eventually(lambda: reads(mesh, 2), what="all route tables are there")
        for name, each in (("web.shop", envoy), ("edge.shop", edge)):
            compared = await ask(each, "proxy-status", name)
            assert compared.code == 0, compared.out + compared.err
            titles = [line.partition(" Match")[0] for line in compared.out.splitlines()]
            assert titles[:4] == ["Clusters", "Endpoints", "Listeners", "Routes"]

        everything = await ask(envoy, "proxy-config", "all", "web.shop")
        for cells in (
            ("127.0.0.13:", "HEALTHY", "OK", f"outbound|{ports[1]}||db.test", "config.yaml:"),
            (f"reviews.test:{ports[0]}", "reviews-test.shop", "config.yaml:"),
            ("reviews.test", "v1", "outbound", "EDS", "reviews-test.shop"),
            ("default", "Cert Chain", "ACTIVE", "true"),
        ):
            assert any(all(cell in line for cell in cells) for line in everything.out.splitlines()), everything.out

        levels = json.loads((await ask_admin(envoy, "pc", "log", "--level", "info,http:debug", "-o", "json")).out)
        assert (levels["http"], levels["router"]) == ("debug", "info")


def reads(mesh: Fleet, tables: int) -> bool:
    """True if the proxies have requested so many route tables, and accepted all that they were sent."""
    connections = mesh.plane.state.xds.status.connections()
    types = [each for connection in connections for each in connection.types]
    held = sum(each.subscription.resources for each in types if each.type_url == ROUTE)
    return held >= tables and all(each.is_synced for each in types)


async def ask_admin(envoy: RealEnvoy, *words: str) -> Done:
    return await trio.to_thread.run_sync(partial(mesh_pilot, *words, "--admin", envoy.admin))
