"""Destinations: which cluster a Destination means, and weights as Envoy's weighted clusters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import attrs
from envoy.config.route.v3 import route_components_pb2 as rc

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.envoy.core.protobuf import uint32
from mesh_pilot.envoy.routes.hash import hash_policy
from mesh_pilot.envoy.routes.headers import HeaderOperations, header_operations
from mesh_pilot.mesh.names import outbound
from mesh_pilot.mesh.virtual_services.client import RouteClient
from mesh_pilot.world import View


@attrs.frozen
class RouteDestination:
    """Where a destination leads."""

    host: str
    """By full name."""
    port: int
    subset: str = ""

    @property
    def cluster(self) -> str:
        return outbound(self.host, self.port, self.subset)


@attrs.frozen
class WeightedDestination:
    """A target with its part of a route's requests."""

    target: RouteDestination
    weight: int
    headers: HeaderOperations


def route_destination(
    view: View, destination: api.Destination, namespace: str, client: RouteClient, port: int
) -> RouteDestination:
    """Where a destination written in a namespace leads; without a port of its own, on the one the client used."""
    host = view.full_host(destination.host, namespace)
    number = destination.port.number if destination.port is not None else 0
    return RouteDestination(host, number or client.only_port(host) or port, destination.subset)


def shares(
    view: View, routes: Sequence[api.HttpRouteDestination], namespace: str, client: RouteClient, port: int
) -> tuple[WeightedDestination, ...]:
    """The destinations that get requests: those of weight 0 do not, unless there is no other."""
    return tuple(
        WeightedDestination(
            route_destination(view, route.destination, namespace, client, port),
            route.weight or 100,
            header_operations(route.headers),
        )
        for route in routes
        if route.destination is not None and (route.weight or len(routes) == 1)
    )


def weighted_clusters(parts: Iterable[WeightedDestination]) -> rc.WeightedCluster:
    return rc.WeightedCluster(clusters=map(_weighted, parts))


def hash_policies(
    view: View, parts: Iterable[WeightedDestination], client: RouteClient
) -> Iterator[rc.RouteAction.HashPolicy]:
    """One for each destination with consistent hashing; the first that a request has something to hash for counts."""
    for part in parts:
        target = part.target
        found = hash_policy(view, client.rule(target.host), target.port, target.subset)
        if found is not None:
            yield found


def _weighted(part: WeightedDestination) -> rc.WeightedCluster.ClusterWeight:
    weighted = rc.WeightedCluster.ClusterWeight(name=part.target.cluster, weight=uint32(part.weight))
    part.headers.write_to(weighted)
    if part.headers.authority:
        weighted.host_rewrite_literal = part.headers.authority
    return weighted
