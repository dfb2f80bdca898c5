"""The generators of a proxy's resources by type: its translators, patched where it has EnvoyFilters."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from mesh_pilot.engine import NAME, ByName, Layer, Query, by_name, derived
from mesh_pilot.envoy.catalog.on_demand import cluster_on_demand, needed_cluster_plans
from mesh_pilot.envoy.clusters import inbound as inbound_clusters
from mesh_pilot.envoy.clusters import outbound as clusters
from mesh_pilot.envoy.endpoints import assignments as endpoints
from mesh_pilot.envoy.endpoints.local_cluster import local_assignment
from mesh_pilot.envoy.endpoints.name_table import name_tables
from mesh_pilot.envoy.envoy_filter.bootstrap import bootstrap_patches, encoded_patches
from mesh_pilot.envoy.envoy_filter.patch import Context
from mesh_pilot.envoy.envoy_filter.plans import (
    PlanPatcher,
    UnpatchedPlan,
    extension_plan,
    patched_clusters,
    patched_extensions,
    patched_host_shards,
    patched_listeners,
    unwrap_plan,
)
from mesh_pilot.envoy.envoy_filter.resources import PatchTask, patched_table, unwrap_by_name
from mesh_pilot.envoy.envoy_filter.served import ServedNames
from mesh_pilot.envoy.filters.extensions import extension_configs
from mesh_pilot.envoy.gateway.listeners import gateway_listeners, gateway_route, gateway_table_hosts
from mesh_pilot.envoy.grpc.clusters import grpc_assignment, grpc_cluster
from mesh_pilot.envoy.grpc.listeners import client_listener, grpc_route_table, server_listener
from mesh_pilot.envoy.listeners import inbound as inbound_listeners
from mesh_pilot.envoy.listeners import outbound as listeners
from mesh_pilot.envoy.routes import tables as routes
from mesh_pilot.envoy.routes.virtual_host import catch_all_plan, host_plan
from mesh_pilot.envoy.tls.secrets import workload_secret
from mesh_pilot.identity.trust.roots import ROOTS_NAME
from mesh_pilot.mesh.proxy.agent_config import AgentKey, agent_config
from mesh_pilot.mesh.proxy.keys import ProxyKeys
from mesh_pilot.mesh.proxy.plans import Plan, PlanShards, single_shard
from mesh_pilot.mesh.proxy.scope import OutboundScope, Workload
from mesh_pilot.mesh.selection.envoy_filters import FilterRef
from mesh_pilot.mesh.virtual_hosts.authorizers import sidecar_table
from mesh_pilot.mesh.virtual_hosts.sidecar_tables import TableShard, shard_hosts, table_shards
from mesh_pilot.model.proxy import NodeType
from mesh_pilot.model.resource import (
    CLUSTER,
    ENDPOINT,
    EXTENSION,
    LISTENER,
    NAME_TABLE,
    PROXY_CONFIG,
    ROUTE,
    SECRET,
    Resource,
    make_resource,
)
from mesh_pilot.world import View

GeneratorKey = tuple[str, Query[PlanShards] | ByName[Resource | None]]
"""Type, and how to get the resources: all of a plan, or those asked for by name."""

SetKey = tuple[Layer, GeneratorKey]
"""Generators over the World, or over an overlay of it."""

Generators = Mapping[str, tuple[GeneratorKey, ...]]
"""Generators by type. Those of one type have no name in common."""


def generators_of(target: ProxyKeys) -> Generators:
    """The generators of a proxy's resources, except virtual hosts."""
    if target.scope.grpc:
        return _grpc_generators(target)
    plain = _router_generators(target) if target.scope.type is NodeType.ROUTER else _sidecar_generators(target)
    return _patched(target, plain) if target.filters else plain


def vhds_generator(target: ProxyKeys) -> ByName[PlanShards] | None:
    """The virtual hosts of a route table, by its name; None where tables have them inside."""
    if not target.scope.split:
        return None
    router = target.scope.type is NodeType.ROUTER
    of_router, of_sidecar = gateway_hosts.query(target.workload, NAME), sidecar_hosts.query(target.scope, NAME)
    hosts = by_name(of_router if router else of_sidecar)
    return by_name(patched_host_shards.query(_tables_task(target), hosts, NAME)) if target.filters else hosts


def _common(target: ProxyKeys) -> dict[str, tuple[GeneratorKey, ...]]:
    return {
        ENDPOINT: _endpoints_of(target),
        SECRET: ((SECRET, by_name(workload_secret.query(target.workload, NAME))),),
        EXTENSION: ((EXTENSION, _extensions_of(target)),),
        NAME_TABLE: ((NAME_TABLE, single_shard.query(name_tables.query(target.scope, target.locality.network))),),
        PROXY_CONFIG: _agent_generators(target),
    }


def _endpoints_of(target: ProxyKeys) -> tuple[GeneratorKey, ...]:
    found: GeneratorKey = (ENDPOINT, by_name(endpoints.assignment.query(target.scope, target.locality, NAME)))
    if not target.scope.has_local_cluster:
        return (found,)
    own = local_assignment.query(target.workload, target.locality, NAME)
    return (found, (ENDPOINT, by_name(own)))


def _agent_generators(target: ProxyKeys) -> tuple[GeneratorKey, ...]:
    """None for a proxy: what it is sent of this type are the roots alone."""
    if target.agent is None:
        return ()
    plan = agent_config_plan.query(target.agent, target.filters, target.scope.type)
    return ((PROXY_CONFIG, single_shard.query(plan)),)


def _router_generators(target: ProxyKeys) -> Generators:
    scope, workload = target.scope, target.workload
    return {
        **_common(target),
        CLUSTER: ((CLUSTER, clusters.cluster_plans.query(scope, target.locality)),),
        LISTENER: ((LISTENER, single_shard.query(gateway_listeners.query(workload))),),
        ROUTE: ((ROUTE, _tables_of(target)),),
    }


def _sidecar_generators(target: ProxyKeys) -> Generators:
    """Generators of a sidecar. Of two for clusters or listeners, the first is for outbound, the second for inbound."""
    scope, workload = target.scope, target.workload
    inbound: GeneratorKey = (CLUSTER, single_shard.query(inbound_clusters.inbound_clusters.query(workload)))
    outbound: GeneratorKey = (CLUSTER, clusters.cluster_plans.query(scope, target.locality))
    needed: GeneratorKey = (CLUSTER, needed_cluster_plans.query(scope, target.locality))
    others: GeneratorKey = (CLUSTER, by_name(cluster_on_demand.query(scope, target.locality, NAME)))
    return {
        **_common(target),
        CLUSTER: (needed, inbound, others) if scope.on_demand else (outbound, inbound),
        LISTENER: (
            (LISTENER, listeners.listener_plans.query(scope, workload.spans)),
            (LISTENER, single_shard.query(inbound_listeners.inbound_listeners.query(workload))),
        ),
        ROUTE: ((ROUTE, _tables_of(target)),),
    }


def _grpc_generators(target: ProxyKeys) -> Generators:
    """Proxyless gRPC asks for everything by name. It has neither secrets nor extensions from us."""
    scope, workload = target.scope, target.workload
    return {
        CLUSTER: ((CLUSTER, by_name(grpc_cluster.query(scope, NAME))),),
        ENDPOINT: ((ENDPOINT, by_name(grpc_assignment.query(scope, target.locality, NAME))),),
        LISTENER: (
            (LISTENER, by_name(client_listener.query(scope, NAME))),
            (LISTENER, by_name(server_listener.query(workload, NAME))),
        ),
        ROUTE: ((ROUTE, by_name(grpc_route_table.query(scope, NAME))),),
    }


def _patched(target: ProxyKeys, plain: Generators) -> Generators:
    """The generators with EnvoyFilters over them."""
    tables = _tables_task(target)
    main = attrs.evolve(tables, router=None)
    extensions = _extension_patching(target)
    inbound = attrs.evolve(main, context=Context.SIDECAR_INBOUND)

    def plans(type_url: str, patcher: PlanPatcher) -> tuple[GeneratorKey, ...]:
        base, *rest = (query for _, query in plain[type_url] if isinstance(query, Query))
        first = UnpatchedPlan(main, base)
        others = (UnpatchedPlan(inbound, query, target.workload, first) for query in rest)
        patched = (unwrap_plan.query(patcher.query(plan)) for plan in (first, *others))
        return tuple((type_url, single_shard.query(plan)) for plan in patched)

    return {
        **plain,
        CLUSTER: plans(CLUSTER, patched_clusters),
        LISTENER: plans(LISTENER, patched_listeners),
        EXTENSION: ((EXTENSION, single_shard.query(unwrap_plan.query(patched_extensions.query(extensions)))),),
        ROUTE: tuple(
            (ROUTE, by_name(unwrap_by_name.query(by_name(patched_table.query(tables, query, NAME)), NAME)))
            for _, query in plain[ROUTE]
            if isinstance(query, ByName)
        ),
    }


def _tables_task(target: ProxyKeys) -> PatchTask:
    """The task for which route tables are patched."""
    router = target.scope.type is NodeType.ROUTER
    context = Context.GATEWAY if router else Context.SIDECAR_OUTBOUND
    extensions = _extension_patching(target)
    served = attrs.evolve(extensions.task.served, extensions=extension_plan.query(extensions))
    return PatchTask(target.filters, context, served, target.workload if router else None)


def _extension_patching(target: ProxyKeys) -> UnpatchedPlan:
    """The extension configs of a proxy and how they are patched: the same in every context."""
    served = ServedNames(target.scope, _tables_of(target))
    return UnpatchedPlan(PatchTask(target.filters, Context.ANY, served), _extensions_of(target))


def _tables_of(target: ProxyKeys) -> ByName[Resource | None]:
    if target.scope.type is NodeType.ROUTER:
        return by_name(gateway_route.query(target.workload, NAME))
    return by_name(routes.route_configuration.query(target.scope, NAME))


def _extensions_of(target: ProxyKeys) -> Query[PlanShards]:
    return single_shard.query(extension_configs.query(target.scope.namespace, target.by_istio))


# -- the settings of agents (PCDS): the effective ProxyConfig of each. The roots are added by ``AgentSettingsSet``


@derived
def sidecar_hosts(view: View, scope: OutboundScope, table: str) -> PlanShards:
    """A table's virtual hosts for a sidecar; none if the table contains them, or is not a table of sidecars."""
    parsed = sidecar_table(view, scope, table)
    if parsed is None or parsed.sniffed:
        return ()
    shards = (_shard_plan.query(table, shard) for shard in table_shards(view, scope, parsed))
    return (*shards, catch_all_plan.query(table, scope.sidecar))


@derived
def _shard_plan(view: View, table: str, shard: TableShard) -> Plan:
    return host_plan(table, shard_hosts(view, shard))


@derived
def gateway_hosts(_: View, workload: Workload, table: str) -> PlanShards:
    """The virtual hosts of a router's table; none if no server has such a table."""
    return (_gateway_plan.query(workload, table),)


@derived
def _gateway_plan(view: View, workload: Workload, table: str) -> Plan:
    return host_plan(table, gateway_table_hosts(view, workload, table))


@derived
def agent_config_plan(_: View, key: AgentKey, filters: tuple[FilterRef, ...], of: NodeType) -> Plan:
    """The plan with the one resource."""
    return {ROOTS_NAME: agent_config_resource.query(key, filters, of)}


@derived
def agent_config_resource(view: View, key: AgentKey, filters: tuple[FilterRef, ...], of: NodeType) -> Resource:
    """The effective ProxyConfig without the roots, which no derived value reads, and the patches of the bootstrap."""
    patches = dict.fromkeys(patch.config for patch in bootstrap_patches(view, filters, of))
    body = bytes(agent_config(view, key)) + encoded_patches(view, filters, of)
    return make_resource(ROOTS_NAME, PROXY_CONFIG, body, tuple(patches))
