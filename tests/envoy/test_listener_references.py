"""Listeners name only clusters that the same proxy is sent, and conflicts of both sides are told in one place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from mesh_pilot.envoy.catalog.diagnostics import listener_conflicts
from mesh_pilot.envoy.clusters.inbound import inbound_clusters
from mesh_pilot.model.proxy import NodeType
from tests.support import golden
from tests.support.listeners import is_http, listeners, manager, target, tcp
from tests.support.plans import outbound_clusters
from tests.support.worlds import sidecar, world_of


def clusters_named(listener: Any) -> Iterator[str]:
    for chain in (*listener.filter_chains, listener.default_filter_chain):
        if not chain.filters:
            continue
        if is_http(chain):
            hosts = manager(chain).route_config.virtual_hosts
            yield from (route.route.cluster for host in hosts for route in host.routes)
        elif tcp(chain).cluster:
            yield tcp(chain).cluster
        else:
            yield from (c.name for c in tcp(chain).weighted_clusters.clusters)


@pytest.mark.parametrize("scenario", golden.scenarios())
def test_every_cluster_that_a_listener_names_is_sent(scenario: str) -> None:
    world = golden.load(scenario)
    for entry in golden.proxies(scenario):
        proxy = golden.proxy_of(entry)
        if proxy.is_grpc or proxy.type is not NodeType.SIDECAR:
            continue
        seen = target(world, proxy)
        sent = set(outbound_clusters(world.view, seen.scope, seen.locality))
        sent |= set(inbound_clusters(world.view, seen.workload))
        named = {c for listener in listeners(world, proxy).values() for c in clusters_named(listener)}
        assert named <= sent, entry["name"]


def test_conflicts_of_both_sides_are_told_together() -> None:
    text = """
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: NAME, namespace: default}
spec:
  hosts: [NAME.example]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 9000, name: tcp, protocol: TCP}]
  endpoints: [{address: 10.1.1.1}]
"""
    world = world_of(text.replace("NAME", "a") + text.replace("NAME", "b"))
    found = listener_conflicts(world.view, target(world, sidecar("10.1.1.1")))
    assert [(c.listener, c.kept, c.dropped) for c in found] == [
        ("0.0.0.0_9000", "a.example", "b.example"),
        ("0.0.0.0_9000", "a.example", "b.example"),
    ]
    router = target(world, sidecar("10.1.1.1", node_type="router"))
    assert listener_conflicts(world.view, router) == ()
