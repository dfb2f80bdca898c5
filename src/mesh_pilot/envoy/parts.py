"""What a proxy's resources of each type are made from: its translators, with patches where it has EnvoyFilters."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs

from mesh_pilot.envoy import clusters, endpoints, gateways, inbound_clusters, inbound_listeners, listeners, routes
from mesh_pilot.envoy.grpc_clusters import grpc_assignment, grpc_cluster
from mesh_pilot.envoy.grpc_listeners import client_listener, server_listener
from mesh_pilot.envoy.grpc_routes import grpc_route_table
from mesh_pilot.envoy.on_demand import cluster_on_demand, needed_cluster_plans
from mesh_pilot.envoy.patches.patch import Context
from mesh_pilot.envoy.patches.plans import (
    PatchedPart,
    patched_clusters,
    patched_extensions,
    patched_listeners,
    patched_route,
)
from mesh_pilot.envoy.patches.resources import Task
from mesh_pilot.envoy.scope import Plan, Target
from mesh_pilot.envoy.secrets import secret
from mesh_pilot.envoy.virtual_hosts import gateway_hosts, patched_hosts, sidecar_hosts
from mesh_pilot.incremental import Query
from mesh_pilot.model.proxy import NodeType
from mesh_pilot.model.resource import CLUSTER, ENDPOINT, EXTENSION, LISTENER, ROUTE, SECRET
from mesh_pilot.world import View

PartKey = tuple[str, Query, bool]
"""Type, translator with its key, and whether that is a plan (else a function of the name)."""

Parts = Mapping[str, tuple[PartKey, ...]]
"""By type. The parts of a type have no name in common."""


def parts_of(target: Target) -> Parts:
    """The parts of a proxy. Proxies with the same part share its resources."""
    if target.scope.grpc:
        return _grpc_parts(target)
    parts = _router_parts(target) if target.scope.type is NodeType.ROUTER else _sidecar_parts(target)
    return _patched(target, parts) if target.filters else parts


def hosts_of(target: Target) -> Query | None:
    """The translator of names of tables to plans of their virtual hosts; None where tables have them inside."""
    if not target.scope.split:
        return None
    router = target.scope.type is NodeType.ROUTER
    query: Query = (gateway_hosts, (target.workload,)) if router else (sidecar_hosts, (target.scope,))
    return (patched_hosts, (_tables_task(target), query)) if target.filters else query


def _common(target: Target) -> dict[str, tuple[PartKey, ...]]:
    return {
        ENDPOINT: ((ENDPOINT, (endpoints.assignment, (target.scope, target.place)), False),),
        SECRET: ((SECRET, (secret, (target.workload,)), False),),
        EXTENSION: ((EXTENSION, (_no_extensions, ()), True),),
    }


def _router_parts(target: Target) -> Parts:
    scope, workload = target.scope, target.workload
    return {
        **_common(target),
        CLUSTER: ((CLUSTER, (clusters.cluster_plans, (scope, target.place)), True),),
        LISTENER: ((LISTENER, (gateways.gateway_listeners, (workload,)), True),),
        ROUTE: ((ROUTE, (gateways.gateway_route, (workload,)), False),),
    }


def _sidecar_parts(target: Target) -> Parts:
    """Of clusters and listeners the first part is for outbound, the second for inbound traffic."""
    scope, workload = target.scope, target.workload
    inbound: PartKey = (CLUSTER, (inbound_clusters.inbound_clusters, (workload,)), True)
    outbound: PartKey = (CLUSTER, (clusters.cluster_plans, (scope, target.place)), True)
    needed: PartKey = (CLUSTER, (needed_cluster_plans, (scope, target.place)), True)
    others: PartKey = (CLUSTER, (cluster_on_demand, (scope, target.place)), False)
    return {
        **_common(target),
        CLUSTER: (needed, inbound, others) if scope.on_demand else (outbound, inbound),
        LISTENER: (
            (LISTENER, (listeners.listener_plans, (scope,)), True),
            (LISTENER, (inbound_listeners.inbound_listeners, (workload,)), True),
        ),
        ROUTE: ((ROUTE, (routes.route_configuration, (scope,)), False),),
    }


def _grpc_parts(target: Target) -> Parts:
    """Proxyless gRPC asks for everything by name. It has neither secrets nor extensions from us."""
    scope, workload = target.scope, target.workload
    return {
        CLUSTER: ((CLUSTER, (grpc_cluster, (scope,)), False),),
        ENDPOINT: ((ENDPOINT, (grpc_assignment, (scope, target.place)), False),),
        LISTENER: (
            (LISTENER, (client_listener, (scope,)), False),
            (LISTENER, (server_listener, (scope.namespace, workload.labels)), False),
        ),
        ROUTE: ((ROUTE, (grpc_route_table, (scope,)), False),),
    }


def _no_extensions(view: View) -> Plan:
    return {}


def _patched(target: Target, parts: Parts) -> Parts:
    """The parts with EnvoyFilters over them."""
    tables = _tables_task(target)
    main = attrs.evolve(tables, router=None)
    inbound = Task(target.filters, Context.SIDECAR_INBOUND)

    def plans(type_url: str, patched: Callable[[View, PatchedPart], Plan]) -> tuple[PartKey, ...]:
        (_, base, _), *rest = parts[type_url]
        first = PatchedPart(main, base)
        others = (PatchedPart(inbound, query, target.workload, first) for _, query, _ in rest)
        return tuple((type_url, (patched, (part,)), True) for part in (first, *others))

    return {
        **parts,
        CLUSTER: plans(CLUSTER, patched_clusters),
        LISTENER: plans(LISTENER, patched_listeners),
        EXTENSION: plans(EXTENSION, patched_extensions),
        ROUTE: tuple((ROUTE, (patched_route, (tables, query)), False) for _, query, _ in parts[ROUTE]),
    }


def _tables_task(target: Target) -> Task:
    """What route tables are patched for."""
    router = target.scope.type is NodeType.ROUTER
    context = Context.GATEWAY if router else Context.SIDECAR_OUTBOUND
    return Task(target.filters, context, target.workload if router else None)
