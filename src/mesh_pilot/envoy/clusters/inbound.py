"""Inbound clusters: how a sidecar reaches its own application, one for each port that the application listens on.

Rules: Istio's Sidecar ``ingress`` and ServiceEntry references; structure and names as Pilot's. Unlike Pilot 1.14, a
sidecar without interception gets them too: its inbound listeners name them.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import attrs
from envoy.config.cluster.v3.cluster_pb2 import Cluster

from mesh_pilot.api.istio.mesh import v1alpha1 as mesh_api
from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.envoy.clusters.connection_pool import Speaks, apply_connection_pool, apply_proxy_settings, inbound_http
from mesh_pilot.envoy.core.protobuf import address, duration, resource_of
from mesh_pilot.incremental import derived
from mesh_pilot.mesh.destination_rules import NO_POLICY, NO_RULE, DestinationRuleRef, destination_rule_ref, policy
from mesh_pilot.mesh.mesh_defaults import cluster_defaults
from mesh_pilot.mesh.names import INBOUND_PASSTHROUGH_V4, INBOUND_PASSTHROUGH_V6, inbound
from mesh_pilot.mesh.proxy.instances import instances
from mesh_pilot.mesh.proxy.proxy_config import METADATA
from mesh_pilot.mesh.proxy.scope import OutboundScope, Plan, ResourceQuery, Workload
from mesh_pilot.mesh.stat_names import inbound_stat_name
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.net import UNIX_PREFIX
from mesh_pilot.model.proxy import Interception
from mesh_pilot.model.resource import Resource
from mesh_pilot.model.service import Instance, Protocol, Service, ServiceKey
from mesh_pilot.world.view import View

PASSTHROUGH_SOURCES = {False: "127.0.0.6", True: "::6"}
"""By whether it is IPv6: the source address by which the interception rules know a sidecar's own connections to its
application, so as not to send them back to it."""

WORKLOAD_ADDRESS = "0.0.0.0"
"""In a ``defaultEndpoint``: the workload's own address."""

IDLE_DESTINATIONS = timedelta(seconds=60)
"""How long Envoy remembers an address that nobody connects to; its own 5 s would drop kept-alive connections."""


@attrs.frozen(cache_hash=True)
class InboundTarget:
    """Where an inbound cluster leads."""

    address: str = ""
    """IP address, or Unix socket (``unix:///path``); empty: the connection's original destination."""
    port: int = 0


@attrs.frozen(cache_hash=True)
class Inbound:
    """What an inbound cluster depends on: workloads with the same share it."""

    port: int
    """The port it is named after."""
    protocol: Protocol
    target: InboundTarget
    source: str
    """Address to connect from; empty for any."""
    service: ServiceKey | None
    """The service that the port belongs to, if any."""
    service_port: int
    rule: DestinationRuleRef
    settings: str
    """What the proxy says of its own settings (see ``proxy_settings``)."""
    sidecar: ConfigKey | None
    """The Sidecar whose connection pools go before the rule's."""


@derived
def inbound_clusters(view: View, workload: Workload) -> Plan:
    """The inbound clusters of a sidecar: of its ports, then those for all others."""
    plan: dict[str, ResourceQuery] = {}
    scope = workload.scope
    for found in _ports(view, workload):
        plan.setdefault(inbound(found.port), inbound_cluster.query(found))
    if scope.ipv4:
        plan[INBOUND_PASSTHROUGH_V4] = inbound_passthrough.query(False)
    if scope.ipv6:
        plan[INBOUND_PASSTHROUGH_V6] = inbound_passthrough.query(True)
    return plan


@derived
def inbound_cluster(view: View, key: Inbound) -> Resource | None:
    """The cluster for one port of an application."""
    defaults = cluster_defaults(view)
    ruled = policy(view, key.rule, key.service_port)
    # Only the connection pool of a rule is for the service's own side.
    used = attrs.evolve(NO_POLICY, connection_pool=_own_pool(view, key) or ruled.connection_pool)
    http = used.connection_pool.http if used.connection_pool else None
    message = Cluster(name=inbound(key.port))
    service = view.service(key.service) if key.service else None
    port = service.port(key.service_port) if service else None
    if service is not None and port is not None:
        message.alt_stat_name = inbound_stat_name(defaults.inbound_stat_name, service, port)
    _apply_target(message, key.target)
    if key.source:
        message.upstream_bind_config.source_address.address = key.source
        message.upstream_bind_config.source_address.port_value = 0
    apply_connection_pool(message, used, defaults, inbound_http(key.protocol, http))
    apply_proxy_settings(view, message, key.settings)
    return resource_of(message.name, message, _configs(service, key))


@derived
def inbound_passthrough(view: View, ipv6: bool) -> Resource | None:
    """The cluster for ports that no service declares."""
    name = INBOUND_PASSTHROUGH_V6 if ipv6 else INBOUND_PASSTHROUGH_V4
    message = Cluster(name=name, type=Cluster.ORIGINAL_DST, lb_policy=Cluster.CLUSTER_PROVIDED)
    message.upstream_bind_config.source_address.address = PASSTHROUGH_SOURCES[ipv6]
    message.upstream_bind_config.source_address.port_value = 0
    apply_connection_pool(message, NO_POLICY, cluster_defaults(view), Speaks.AS_CLIENT)
    return resource_of(name, message)


def _ports(view: View, workload: Workload) -> Iterator[Inbound]:
    """What the Sidecar's ingress listeners say, or without any the ports of the services; the oldest service first."""
    scope = workload.scope
    held = instances(view, workload)
    config = view.config(scope.sidecar) if scope.sidecar else None
    spec: api.Sidecar | None = config.spec if config else None
    if spec is not None and spec.ingress:
        for listener in spec.ingress:
            if listener.port is not None:
                yield _ingress(view, workload, listener, listener.port, held)
        return
    passes = scope.interception is not Interception.NONE and not _to_localhost(view)
    pools = scope.sidecar if spec is not None and spec.inbound_connection_pool is not None else None
    for instance in held:
        if instance.port.protocol is Protocol.UDP:
            continue
        number = instance.endpoint.port
        target = InboundTarget() if passes else InboundTarget(scope.loopback, number)
        yield Inbound(
            port=number,
            protocol=instance.port.protocol,
            target=target,
            source=_source(scope, target),
            service=instance.service.key,
            service_port=instance.port.number,
            rule=destination_rule_ref(view, scope.namespace, None, instance.service.key),
            settings=scope.meta(METADATA),
            sidecar=pools,
        )


@derived
def _to_localhost(view: View) -> bool:
    """Whether applications are reached at the loopback address, rather than at the one that clients asked for."""
    policy = view.mesh().inbound_traffic_policy
    return policy is not None and policy.mode is mesh_api.MeshConfigInboundTrafficPolicyMode.LOCALHOST


def _ingress(
    view: View,
    workload: Workload,
    listener: api.IstioIngressListener,
    port: api.SidecarPort,
    held: tuple[Instance, ...],
) -> Inbound:
    scope = workload.scope
    service = next((i.service.key for i in held if i.port.number == port.number), None)
    target = _default_endpoint(workload, listener.default_endpoint, port.number)
    return Inbound(
        port=port.number,
        protocol=Protocol.parse(port.protocol),
        target=target,
        source=_source(scope, target),
        service=service,
        service_port=port.number,
        rule=destination_rule_ref(view, scope.namespace, None, service) if service else NO_RULE,
        settings=scope.meta(METADATA),
        sidecar=scope.sidecar,
    )


def _default_endpoint(workload: Workload, text: str, listens: int) -> InboundTarget:
    """Where a ``defaultEndpoint`` leads: a Unix socket, the loopback address, or (``0.0.0.0``) the workload's own."""
    scope = workload.scope
    if not text:
        return (
            InboundTarget() if scope.interception is not Interception.NONE else InboundTarget(scope.loopback, listens)
        )
    if text.startswith(UNIX_PREFIX):
        return InboundTarget(text)
    host, _, port = text.rpartition(":")
    own = host.strip("[]") in (WORKLOAD_ADDRESS, "::")
    return InboundTarget(workload.ip_addresses[0] if own else scope.loopback, int(port))


def _source(scope: OutboundScope, target: InboundTarget) -> str:
    """Connections to the loopback address are not intercepted, others are unless they come from the known source."""
    if scope.interception is Interception.NONE or target.address == scope.loopback:
        return ""
    return PASSTHROUGH_SOURCES[not scope.ipv4]


def _apply_target(message: Cluster, target: InboundTarget) -> None:
    if not target.address:
        message.type = Cluster.ORIGINAL_DST
        message.lb_policy = Cluster.CLUSTER_PROVIDED
        message.cleanup_interval.CopyFrom(duration(IDLE_DESTINATIONS))
        return
    message.type = Cluster.STATIC
    message.load_assignment.cluster_name = message.name
    endpoint = message.load_assignment.endpoints.add().lb_endpoints.add().endpoint
    endpoint.address.CopyFrom(address(target.address, target.port))


def _own_pool(view: View, key: Inbound) -> api.ConnectionPoolSettings | None:
    """What the Sidecar says of connections to its application: for the port, else for all."""
    config = view.config(key.sidecar) if key.sidecar else None
    if config is None:
        return None
    spec: api.Sidecar = config.spec
    for listener in spec.ingress:
        if listener.port is not None and listener.port.number == key.port and listener.connection_pool is not None:
            return listener.connection_pool
    return spec.inbound_connection_pool


def _configs(service: Service | None, key: Inbound) -> tuple[ConfigKey, ...]:
    own = (service.config,) if service and service.config else ()
    return (*own, *key.rule, *((key.sidecar,) if key.sidecar else ()))
