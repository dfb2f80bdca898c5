"""Inbound clusters: a sidecar's connections to its own application, one cluster for each port of the application.

Rules: Istio's Sidecar ``ingress`` and ServiceEntry references. Names are Pilot's (golden ``sc-ingress``).
Unlike in Istio, a sidecar without interception gets these clusters too: its inbound listeners name them.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import attrs
from envoy.config.cluster.v3.cluster_pb2 import Cluster

from mesh_pilot.api.istio.mesh import v1alpha1 as mesh_api
from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.engine import derived
from mesh_pilot.envoy.clusters.connection_pool import (
    PASSTHROUGH_POLICY,
    UpstreamHttp,
    apply_connection_pool,
    apply_proxy_settings,
    inbound_http,
)
from mesh_pilot.envoy.core.protobuf import address, duration, resource_of
from mesh_pilot.mesh.clusters.destination_rules import (
    NO_POLICY,
    NO_RULE,
    DestinationRuleRef,
    destination_rule_ref,
    traffic_policy,
)
from mesh_pilot.mesh.listeners.inbound import workload_instances
from mesh_pilot.mesh.names.resources import INBOUND_PASSTHROUGH, PASSTHROUGH, inbound, inbound_stat_name
from mesh_pilot.mesh.proxy.plans import Plan, ResourceQuery
from mesh_pilot.mesh.proxy.proxy_config import METADATA
from mesh_pilot.mesh.proxy.scope import OutboundScope, Workload
from mesh_pilot.mesh.settings.mesh_defaults import cluster_defaults
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.net import UNIX_PREFIX
from mesh_pilot.model.proxy import Interception
from mesh_pilot.model.resource import Resource
from mesh_pilot.model.service import Instance, Protocol, Service, ServiceKey
from mesh_pilot.world.view import View

PASSTHROUGH_SOURCES = {False: "127.0.0.6", True: "::6"}
"""Source address of a sidecar's connections to its application, by whether it is IPv6. The interception rules let
connections from it pass instead of redirecting them to the sidecar."""

WORKLOAD_ADDRESS = "0.0.0.0"
"""In a ``defaultEndpoint``, means the workload's own address."""

DESTINATION_CLEANUP_INTERVAL = timedelta(seconds=9223372035)
"""Time after which Envoy forgets an unused destination: never, for a sidecar has one for each of its addresses."""


@attrs.frozen(cache_hash=True)
class InboundTarget:
    """The address that an inbound cluster connects to."""

    address: str = ""
    """IP address, or Unix socket (``unix:///path``); empty: the connection's original destination."""
    port: int = 0


@attrs.frozen(cache_hash=True)
class InboundClusterKey:
    """All that an inbound cluster depends on: workloads in which it is equal share the cluster."""

    port: int
    """The port that the workload listens on; part of the cluster's name."""
    protocol: Protocol
    target: InboundTarget
    sources: tuple[str, ...]
    """Source addresses of connections, one of each family; empty for any."""
    service: ServiceKey | None
    """The service that the port belongs to, if any."""
    service_port: int
    rule: DestinationRuleRef
    settings: str
    """The ProxyConfig of the node itself (see ``proxy_settings``)."""
    sidecar: ConfigKey | None
    """The Sidecar whose connection pools take precedence over the rule's."""


@derived
def inbound_clusters(view: View, workload: Workload) -> Plan:
    """The inbound clusters of a sidecar: those of its ports, then those for undeclared ports."""
    plan: dict[str, ResourceQuery] = {}
    scope = workload.scope
    for key in _cluster_keys(view, workload):
        plan.setdefault(inbound(key.port), inbound_cluster.query(key))
    plan[INBOUND_PASSTHROUGH] = inbound_passthrough.query(_passthrough_sources(scope), scope.meta(METADATA))
    return plan


@derived
def inbound_cluster(view: View, key: InboundClusterKey) -> Resource | None:
    """The cluster for one port of an application."""
    defaults = cluster_defaults(view)
    # Of a DestinationRule only connection pool and retry budget apply on the server side; a Sidecar has no budget.
    policy = traffic_policy(view, key.rule, key.service_port)
    pool = _sidecar_pool(view, key) or policy.connection_pool
    http = pool.http if pool else None
    message = Cluster(name=inbound(key.port))
    message.common_lb_config.SetInParent()
    service = view.service(key.service) if key.service else None
    port = service.port(key.service_port) if service else None
    if service is not None and port is not None:
        message.alt_stat_name = inbound_stat_name(defaults.inbound_stat_name, service, port)
    _apply_target(message, key.target)
    _bind(message, key.sources)
    applied = attrs.evolve(NO_POLICY, connection_pool=pool, retry_budget=policy.retry_budget)
    apply_connection_pool(message, applied, defaults, inbound_http(key.protocol, http))
    apply_proxy_settings(view, message, key.settings)
    return resource_of(message.name, message, _configs(service, key))


@derived
def inbound_passthrough(view: View, sources: tuple[str, ...], settings: str) -> Resource | None:
    """The cluster for ports that no service declares: connections keep their destination.

    ``settings``: the ProxyConfig of the node itself.
    """
    message = Cluster(name=INBOUND_PASSTHROUGH, type=Cluster.ORIGINAL_DST, lb_policy=Cluster.CLUSTER_PROVIDED)
    message.alt_stat_name = PASSTHROUGH  # one statistic for both directions, as in Istio
    _bind(message, sources)
    apply_connection_pool(message, PASSTHROUGH_POLICY, cluster_defaults(view), UpstreamHttp.AS_CLIENT)
    apply_proxy_settings(view, message, settings)
    return resource_of(message.name, message)


def _cluster_keys(view: View, workload: Workload) -> Iterator[InboundClusterKey]:
    """One key for each ingress listener of the Sidecar, else for each service port, the oldest service first."""
    scope = workload.scope
    served = workload_instances(view, workload)
    config = view.config(scope.sidecar) if scope.sidecar else None
    spec: api.Sidecar | None = config.spec if config else None
    # Ingress listeners replace the ports of services: a Sidecar declares all or none.
    if spec is not None and spec.ingress:
        for listener in spec.ingress:
            if listener.port is not None:
                yield _ingress(view, workload, listener, listener.port, served)
        return
    # Captured connections keep their destination, the address that the application may have bound to. Without capture,
    # or if the mesh says LOCALHOST, the application is reached at the loopback address.
    keeps_destination = scope.interception is not Interception.NONE and not _to_localhost(view)
    pools = scope.sidecar if spec is not None and spec.inbound_connection_pool is not None else None
    for instance in served:
        if instance.port.protocol is Protocol.UDP:
            continue
        number = instance.endpoint.port
        target = InboundTarget() if keeps_destination else InboundTarget(scope.loopback, number)
        yield InboundClusterKey(
            port=number,
            protocol=instance.port.protocol,
            target=target,
            sources=_sources(scope, target),
            service=instance.service.key,
            service_port=instance.port.number,
            rule=destination_rule_ref(view, scope.namespace, None, instance.service.key),
            settings=scope.meta(METADATA),
            sidecar=pools,
        )


@derived
def _to_localhost(view: View) -> bool:
    """True if applications are reached at the loopback address, not at the address that clients connected to."""
    policy = view.mesh().inbound_traffic_policy
    return policy is not None and policy.mode is mesh_api.MeshConfigInboundTrafficPolicyMode.LOCALHOST


def _ingress(
    view: View,
    workload: Workload,
    listener: api.IstioIngressListener,
    port: api.SidecarPort,
    served: tuple[Instance, ...],
) -> InboundClusterKey:
    scope = workload.scope
    service = next((i.service.key for i in served if i.endpoint.port == port.number), None)
    target = _default_endpoint(workload, listener.default_endpoint, port.number)
    return InboundClusterKey(
        port=port.number,
        protocol=Protocol.parse(port.protocol),
        target=target,
        sources=_sources(scope, target),
        service=service,
        service_port=port.number,
        rule=destination_rule_ref(view, scope.namespace, None, service) if service else NO_RULE,
        settings=scope.meta(METADATA),
        sidecar=scope.sidecar,
    )


def _default_endpoint(workload: Workload, text: str, port: int) -> InboundTarget:
    """The target of a ``defaultEndpoint``: a Unix socket, the loopback address, or (``0.0.0.0``, ``[::]``) the
    workload's own; of the IP version that is written, if the workload has it."""
    scope = workload.scope
    if not text:
        return InboundTarget(scope.loopback, port) if scope.interception is Interception.NONE else InboundTarget()
    if text.startswith(UNIX_PREFIX):
        return InboundTarget(text)
    host, _, number = text.rpartition(":")
    addresses = workload.ip_addresses if host in (WORKLOAD_ADDRESS, "[::]") else scope.loopbacks
    wanted = (address for address in addresses if (":" in address) == (":" in host))
    return InboundTarget(next(wanted, addresses[0]), int(number))


def _sources(scope: OutboundScope, target: InboundTarget) -> tuple[str, ...]:
    """The source addresses that keep connections to a target from being intercepted; empty if none are needed."""
    if scope.interception is Interception.NONE or target.address in scope.loopbacks:
        return ()
    return _passthrough_sources(scope)


def _passthrough_sources(scope: OutboundScope) -> tuple[str, ...]:
    return tuple(PASSTHROUGH_SOURCES[":" in wildcard] for wildcard in scope.wildcards)


def _bind(message: Cluster, sources: tuple[str, ...]) -> None:
    """Envoy takes the source address of the destination's family."""
    for index, source in enumerate(sources):
        bind = message.upstream_bind_config
        (bind.extra_source_addresses.add().address if index else bind.source_address).CopyFrom(
            address(source, 0).socket_address
        )


def _apply_target(message: Cluster, target: InboundTarget) -> None:
    if not target.address:
        message.type = Cluster.ORIGINAL_DST
        message.lb_policy = Cluster.CLUSTER_PROVIDED
        message.cleanup_interval.CopyFrom(duration(DESTINATION_CLEANUP_INTERVAL))
        return
    message.type = Cluster.STATIC
    message.load_assignment.cluster_name = message.name
    endpoint = message.load_assignment.endpoints.add().lb_endpoints.add().endpoint
    endpoint.address.CopyFrom(address(target.address, target.port))


def _sidecar_pool(view: View, key: InboundClusterKey) -> api.ConnectionPoolSettings | None:
    """The Sidecar's connection pool for a port, else for all ports."""
    config = view.config(key.sidecar) if key.sidecar else None
    if config is None:
        return None
    spec: api.Sidecar = config.spec
    for listener in spec.ingress:
        if listener.port is not None and listener.port.number == key.port and listener.connection_pool is not None:
            return listener.connection_pool
    return spec.inbound_connection_pool


def _configs(service: Service | None, key: InboundClusterKey) -> tuple[ConfigKey, ...]:
    return (*(service.configs if service else ()), *key.rule, *((key.sidecar,) if key.sidecar else ()))
