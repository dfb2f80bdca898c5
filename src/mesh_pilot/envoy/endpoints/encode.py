"""Load assignments written as bytes, without protobuf's classes: endpoints are the most numerous of all messages.

The bytes are those that Envoy's classes give. Sources: Envoy's ``endpoint_components.proto`` and
``address.proto``; Protocol Buffers, "Encoding".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from envoy.config.core.v3 import health_check_pb2
from envoy.config.core.v3.address_pb2 import Address, Pipe, SocketAddress
from envoy.config.core.v3.base_pb2 import Locality as LocalityMessage
from envoy.config.endpoint.v3.endpoint_components_pb2 import Endpoint as EndpointMessage
from envoy.config.endpoint.v3.endpoint_components_pb2 import LbEndpoint, LocalityLbEndpoints
from envoy.config.endpoint.v3.endpoint_pb2 import ClusterLoadAssignment

from mesh_pilot.base.protowire import VARINT, field, tag, varint
from mesh_pilot.envoy.core.protobuf import UNLIMITED, encode
from mesh_pilot.envoy.tls.upstream import TLS_MODE_KEY
from mesh_pilot.model.service import CONNECT_TLS_MODE, MESH_TLS_MODE, Endpoint, Health, Locality

SOCKET_MATCH = "envoy.transport_socket_match"

_SOCKET_ADDRESS = SocketAddress.ADDRESS_FIELD_NUMBER
_SOCKET_PORT = tag(SocketAddress.PORT_VALUE_FIELD_NUMBER, VARINT)
_ADDRESS_SOCKET = Address.SOCKET_ADDRESS_FIELD_NUMBER
_ADDRESS_PIPE = Address.PIPE_FIELD_NUMBER
_PIPE_PATH = Pipe.PATH_FIELD_NUMBER
_ENDPOINT_ADDRESS = EndpointMessage.ADDRESS_FIELD_NUMBER
_ADDITIONAL_ADDRESS = EndpointMessage.ADDITIONAL_ADDRESSES_FIELD_NUMBER
_ENDPOINT = LbEndpoint.ENDPOINT_FIELD_NUMBER
_METADATA = LbEndpoint.METADATA_FIELD_NUMBER
_WEIGHT = LbEndpoint.LOAD_BALANCING_WEIGHT_FIELD_NUMBER
_REGION, _ZONE, _SUBZONE = (LocalityMessage.DESCRIPTOR.fields_by_name[n].number for n in ("region", "zone", "sub_zone"))
_LOCALITY = LocalityLbEndpoints.LOCALITY_FIELD_NUMBER
_MEMBERS = tag(LocalityLbEndpoints.LB_ENDPOINTS_FIELD_NUMBER)
_LOCALITY_WEIGHT = LocalityLbEndpoints.LOAD_BALANCING_WEIGHT_FIELD_NUMBER
_PRIORITY = tag(LocalityLbEndpoints.PRIORITY_FIELD_NUMBER, VARINT)
_CLUSTER = ClusterLoadAssignment.CLUSTER_NAME_FIELD_NUMBER
_GROUPS = ClusterLoadAssignment.ENDPOINTS_FIELD_NUMBER

_HEALTH = {
    Health.UNHEALTHY: encode(LbEndpoint(health_status=health_check_pb2.UNHEALTHY)),
    Health.DRAINING: encode(LbEndpoint(health_status=health_check_pb2.DRAINING)),
}


def _tls_mode(mode: str) -> bytes:
    message = LbEndpoint()
    message.metadata.filter_metadata[SOCKET_MATCH].fields[TLS_MODE_KEY].string_value = mode
    return encode(message)


_MESH_TLS = _tls_mode(MESH_TLS_MODE)
_CONNECT_TLS = _tls_mode(CONNECT_TLS_MODE)
_HEALTHY = Health.HEALTHY


def lb_endpoint(endpoint: Endpoint, weight: int, mesh_tls: bool, names: bytes = b"") -> bytes:
    """An LbEndpoint; ``mesh_tls``: clients whose cluster decides TLS per endpoint use mesh mTLS.

    ``names``: more metadata, encoded (``telemetry.metrics.upstream_metadata``).
    """
    host, port = endpoint.address.encode(), varint(endpoint.port)
    length = len(host) + len(port) + 3
    if endpoint.additional_addresses:
        body = field(_ENDPOINT, b"".join(_addresses(endpoint)))
    elif length < 0x7C and not endpoint.is_unix:
        # Every length is a varint of one byte, as nearly always: one format string takes a third of the time.
        body = b"\x0a%c\x0a%c\x0a%c\x12%c%b\x18%b" % (length + 4, length + 2, length, len(host), host, port)
    elif endpoint.is_unix:
        body = field(_ENDPOINT, field(_ENDPOINT_ADDRESS, field(_ADDRESS_PIPE, field(_PIPE_PATH, host))))
    else:
        body = field(_ENDPOINT, b"".join(_addresses(endpoint)))
    if endpoint.health is not _HEALTHY:
        body += _HEALTH[endpoint.health]
    if mesh_tls:
        body += _MESH_TLS
    elif endpoint.tls_mode == CONNECT_TLS_MODE:
        body += _CONNECT_TLS
    if names:
        body += field(_METADATA, names)  # the entries of both join the same map
    return body if weight == 1 else body + field(_WEIGHT, _uint32(weight))


def _addresses(endpoint: Endpoint) -> Iterator[bytes]:
    """The fields of an Endpoint with sockets: Envoy connects to the first address, and soon to the others."""
    port = _SOCKET_PORT + varint(endpoint.port)
    for index, address in enumerate(endpoint.addresses):
        body = field(_ENDPOINT_ADDRESS, field(_ADDRESS_SOCKET, field(_SOCKET_ADDRESS, address.encode()) + port))
        yield field(_ADDITIONAL_ADDRESS, body) if index else body


def locality_lb_endpoints(locality: Locality, members: Iterable[bytes], weight: int, priority: int) -> bytes:
    """A LocalityLbEndpoints of encoded LbEndpoints.

    The locality is written even if it is empty: Envoy ignores the weight of a group without one.
    """
    names = zip((_REGION, _ZONE, _SUBZONE), locality, strict=True)
    parts = [field(_LOCALITY, b"".join(field(number, text.encode()) for number, text in names if text))]
    for member in members:
        parts += (_MEMBERS, varint(len(member)), member)
    parts.append(field(_LOCALITY_WEIGHT, _uint32(weight)))
    if priority:
        parts.append(_PRIORITY + varint(priority))
    return b"".join(parts)


def cluster_load_assignment(name: str, groups: Iterable[bytes]) -> bytes:
    """A ClusterLoadAssignment of encoded LocalityLbEndpoints."""
    return field(_CLUSTER, name.encode()) + b"".join(field(_GROUPS, group) for group in groups)


def _uint32(value: int) -> bytes:
    """A UInt32Value."""
    if not 0 <= value <= UNLIMITED:
        raise ValueError(f"{value} is not a weight: it must be between 0 and {UNLIMITED}")
    return b"\x08" + varint(value) if value else b""
