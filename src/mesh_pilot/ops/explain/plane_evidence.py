"""The resources that a proxy was sent, as ``explain.inspection.why`` reads them: decoded by name, in a thread."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import attrs
from envoy.config.listener.v3.listener_pb2 import Listener
from envoy.config.route.v3.route_components_pb2 import VirtualHost
from envoy.config.route.v3.route_pb2 import RouteConfiguration
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message as ProtoMessage

from mesh_pilot.explain.inspection.why.listeners import HTTP_PROXY, ListenerFacts
from mesh_pilot.explain.inspection.why.matchers import Message
from mesh_pilot.model.resource import CLUSTER, ENDPOINT, LISTENER, ROUTE, VIRTUAL_HOST, Resource, table_of
from mesh_pilot.xds.ads.config_dump import resource_json
from mesh_pilot.xds.ads.status import TypeDump


@attrs.frozen
class ProtoTable:
    """A route table, with the virtual hosts that came as separate resources."""

    table: RouteConfiguration
    hosts: Sequence[VirtualHost]

    @property
    def domains(self) -> Sequence[Sequence[str]]:
        return [host.domains for host in self.hosts]

    @property
    def settings(self) -> Message:
        return {"ignore_port_in_host_matching": self.table.ignore_port_in_host_matching}

    def virtual_host(self, index: int) -> Message:
        return _plain(self.hosts[index])


class PlaneEvidence:
    """Everything that a proxy was sent. It uses only immutable values, so it can be read in a thread."""

    def __init__(self, dumps: Iterable[TypeDump], addresses: Mapping[tuple[str, int], str]) -> None:
        """``addresses``: the address that a client finds for a host and port."""
        self._of: dict[str, dict[str, Resource]] = {}
        for dump in dumps:
            self._of.setdefault(dump.type_url, {}).update((r.name, r) for r in dump.resources)
        self._addresses = addresses

    def listeners(self) -> Iterable[ListenerFacts]:
        return [_listener_facts(resource) for resource in self._of.get(LISTENER, {}).values() if resource.body]

    def listener(self, name: str) -> Message:
        return _json(self._of[LISTENER][name])

    def route_table(self, name: str) -> ProtoTable | None:
        resource = self._of.get(ROUTE, {}).get(name)
        if resource is None or not resource.body:
            return None
        table = RouteConfiguration.FromString(resource.body)
        alone = (r for r in self._of.get(VIRTUAL_HOST, {}).values() if table_of(r.name) == name and r.body)
        return ProtoTable(table, [*table.virtual_hosts, *(VirtualHost.FromString(r.body) for r in alone)])

    def cluster(self, name: str) -> Message | None:
        resource = self._of.get(CLUSTER, {}).get(name)
        return _json(resource) if resource is not None else None

    def endpoints(self, name: str) -> Message | None:
        resource = self._of.get(ENDPOINT, {}).get(name)
        return _json(resource) if resource is not None else None

    def address_of(self, host: str, port: int) -> str:
        return self._addresses.get((host, port), "")


def _listener_facts(resource: Resource) -> ListenerFacts:
    listener = Listener.FromString(resource.body)
    socket = listener.address.socket_address
    direction = listener.traffic_direction
    return ListenerFacts(
        name=listener.name,
        address=socket.address,
        port=socket.port_value,
        direction={1: "INBOUND", 2: "OUTBOUND"}.get(int(direction), ""),
        captures=listener.use_original_dst.value,
        binds=listener.bind_to_port.value if listener.HasField("bind_to_port") else True,
        is_http_proxy=HTTP_PROXY.encode() in resource.body,
        is_udp=socket.protocol == socket.UDP,
    )


def _json(resource: Resource) -> Message:
    return cast(Message, resource_json(resource))


def _plain(message: ProtoMessage) -> Message:
    return cast(Message, MessageToDict(message, preserving_proto_field_name=True))
