"""Listeners of proxyless gRPC, by the name that a client or server requests.

A channel for ``xds:///reviews.shop:9080`` requests a listener of exactly that name, short or full; it names the
channel's route table. A server requests one named after its address, by the template in its bootstrap (Istio's:
``xds.istio.io/grpc/lds/inbound/%s``); it says whether the server uses mTLS.

Rules: the gRFCs A27 (clients), A36 (servers), A29 (mTLS), A39 (HTTP filters), A41 (RBAC).
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs
from envoy.config.listener.v3.listener_components_pb2 import FilterChain
from envoy.config.listener.v3.listener_pb2 import Listener
from envoy.config.route.v3 import route_components_pb2 as rc
from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2 as hcm_pb2

from mesh_pilot.engine import derived
from mesh_pilot.envoy.core.protobuf import address, any_of, encode, resource_of
from mesh_pilot.envoy.filters import grpc_client_filters, grpc_server_filters
from mesh_pilot.envoy.grpc.tls import server_socket
from mesh_pilot.mesh.inbound import served_ports
from mesh_pilot.mesh.legacy.ports import LegacyPolicies, legacy_policies
from mesh_pilot.mesh.names import outbound
from mesh_pilot.mesh.peer_authentication import PeerMode, peer_mode
from mesh_pilot.mesh.policies import PolicyContext, TrafficSide
from mesh_pilot.mesh.proxy.scope import OutboundScope, Workload
from mesh_pilot.mesh.selection import Labels
from mesh_pilot.mesh.virtual_hosts.planned import service_addresses, service_names
from mesh_pilot.mesh.visibility import scope_service
from mesh_pilot.model.net import is_ip
from mesh_pilot.model.resource import Resource
from mesh_pilot.model.service import UNSPECIFIED, Service
from mesh_pilot.world.view import View

INBOUND_PREFIX = "xds.istio.io/grpc/lds/inbound/"
"""Prefix of the names that servers request, before the address."""


@attrs.frozen(cache_hash=True)
class TargetAuthority:
    """The target of a channel, or the address of a server."""

    host: str
    port: int
    """0: not given."""


@derived
def client_listener(view: View, scope: OutboundScope, name: str) -> Resource | None:
    """The listener for a channel to ``host:port``, or to ``host`` of a service with just one port.

    None if the scope cannot reach a service of this host, or it has no such port.
    """
    if name.startswith(INBOUND_PREFIX):
        return None
    target = parse_authority(name)
    service = _service(view, scope, target.host)
    if service is None:
        return None
    port = target.port or (service.ports[0].number if len(service.ports) == 1 else 0)
    if service.port(port) is None:
        return None
    vip = next(iter(service_addresses(service, scope)), UNSPECIFIED)
    return _api_listener(view, name, outbound(service.host, port), vip, port)


@derived
def server_listener(view: View, workload: Workload, name: str) -> Resource | None:
    """The listener for a server on ``address:port`` of a workload; None for other names.

    Every server gets one, even if no service has the port: a registry may learn of a server only once it serves.
    """
    if not name.startswith(INBOUND_PREFIX):
        return None
    authority = parse_authority(name.removeprefix(INBOUND_PREFIX))
    if not authority.port or not is_ip(authority.host):
        return None
    namespace, labels = workload.scope.namespace, workload.labels
    served = tuple(port for port in served_ports(view, workload) if port.at == authority.port)
    mode = peer_mode(view, namespace, labels, authority.port, served)
    filters = _encoded_filters(view, namespace, labels, legacy_policies(view, namespace, served))
    return _inbound_listener(view, name, authority, mode is PeerMode.STRICT, filters)


def parse_authority(text: str) -> TargetAuthority:
    """``host:port``, ``[ipv6]:port`` or ``host``."""
    host, colon, port = text.rpartition(":")
    if colon and port.isdecimal() and (":" not in host or host.endswith("]")):
        return TargetAuthority(host.removeprefix("[").removesuffix("]"), int(port))
    return TargetAuthority(text, 0)


def _service(view: View, scope: OutboundScope, host: str) -> Service | None:
    """The service that a host names, by its full name or one of its short forms."""
    for full in _full_names(host, scope.dns_domain):
        service = scope_service(view, scope, full)
        if service is not None and host.lower() in service_names(service, scope.dns_domain)[0]:
            return scope_service(view, scope, service.alias_of) if service.alias_of else service
    return None


def _full_names(host: str, dns_domain: str) -> Iterator[str]:
    """The full names that a host can stand for: itself, then with each suffix of the client's domain, longest first."""
    host = host.lower()
    yield host
    while dns_domain:
        yield f"{host}.{dns_domain}"
        dns_domain = dns_domain.partition(".")[2]


@derived
def _api_listener(view: View, name: str, table: str, vip: str, port: int) -> Resource:
    """An API listener: it has no socket, but names the route table of a channel."""
    manager = hcm_pb2.HttpConnectionManager(stat_prefix=table, http_filters=grpc_client_filters())
    manager.rds.route_config_name = table
    manager.rds.config_source.ads.SetInParent()
    listener = Listener(name=name, address=address(vip, port))
    listener.api_listener.api_listener.CopyFrom(any_of(manager))
    return resource_of(name, listener)


@derived
def _encoded_filters(view: View, namespace: str, labels: Labels, legacy: LegacyPolicies) -> tuple[bytes, ...]:
    """The HTTP filters of a server, encoded."""
    context = PolicyContext(TrafficSide.INBOUND, namespace, labels, legacy=legacy)
    return tuple(encode(filter_) for filter_ in grpc_server_filters(view, context))


@derived
def _inbound_listener(
    view: View, name: str, authority: TargetAuthority, strict: bool, filters: tuple[bytes, ...]
) -> Resource:
    """A listener with one chain, of mTLS or of plaintext: gRPC cannot serve both on one port."""
    manager = hcm_pb2.HttpConnectionManager(
        stat_prefix=f"inbound_{authority.host}_{authority.port}",
        http_filters=map(hcm_pb2.HttpFilter.FromString, filters),
    )
    manager.route_config.name = f"inbound|{authority.port}||"
    host = manager.route_config.virtual_hosts.add(name=f"inbound|{authority.port}", domains=["*"])
    host.routes.add(match=rc.RouteMatch(prefix="/")).non_forwarding_action.SetInParent()
    chain = FilterChain(name="mtls" if strict else "plaintext")
    chain.filters.add(name="inbound").typed_config.CopyFrom(any_of(manager))
    if strict:
        chain.transport_socket.CopyFrom(server_socket())
    listener = Listener(name=name, address=address(authority.host, authority.port), filter_chains=[chain])
    return resource_of(name, listener)
