"""The few fields of discovery requests and responses that the relay reads and writes, on their encoded form.

Resources stay encoded. Field numbers: Envoy's ``service/discovery/v3/discovery.proto``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import Enum

import attrs

from mesh_pilot.base.protowire import LEN, field, fields, read_varint, value_span

CLUSTER = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
ENDPOINT = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
LISTENER = "type.googleapis.com/envoy.config.listener.v3.Listener"
ROUTE = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"
VIRTUAL_HOST = "type.googleapis.com/envoy.config.route.v3.VirtualHost"
SECRET = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"


class XdsProtocol(Enum):
    """A form of the xDS protocol; its value is the method of ADS."""

    SOTW = "StreamAggregatedResources"
    DELTA = "DeltaAggregatedResources"

    @property
    def path(self) -> str:
        return f"/envoy.service.discovery.v3.AggregatedDiscoveryService/{self.value}"


@attrs.frozen
class Head:
    """The subject of a request or response, without its resources and names."""

    type_url: str
    nonce: str
    """In a request: of the response that it answers; empty for one that answers none."""
    error: str | None = None
    """In a request: the reason why that response was refused."""


_REQUEST_HEAD = {XdsProtocol.SOTW: (4, 5, 6), XdsProtocol.DELTA: (2, 6, 7)}
"""Fields of type, nonce and error."""
_RESPONSE_HEAD = (4, 5, 0)
"""The same of both responses, which have no error."""
_MESSAGE_OF_STATUS = 2


def request_head(data: bytes, protocol: XdsProtocol) -> Head:
    """The head of a request. Raises WireError, UnicodeDecodeError, as all functions here that read."""
    return _head(data, _REQUEST_HEAD[protocol])


def response_head(data: bytes) -> Head:
    """The head of a response of either form."""
    return _head(data, _RESPONSE_HEAD)


def _head(data: bytes, numbers: tuple[int, int, int]) -> Head:
    type_number, nonce_number, error_number = numbers
    type_url = nonce = ""
    error = None
    at, size = 0, len(data)
    while at < size:
        key, at = read_varint(data, at)
        start, at = value_span(data, at, key & 7)
        number = key >> 3
        if number == type_number:
            type_url = str(data[start:at], "utf-8")
        elif number == nonce_number:
            nonce = str(data[start:at], "utf-8")
        elif number == error_number:
            error = _status_message(data[start:at])
    return Head(type_url, nonce, error)


def _status_message(data: bytes) -> str:
    for number, kind, start, end in fields(data):
        if number == _MESSAGE_OF_STATUS and kind == LEN:
            return str(data[start:end], "utf-8", "replace")
    return ""


@attrs.frozen
class Request:
    """A request with all that an answer depends on."""

    head: Head
    version: str = ""
    """State of the World: of the last response that was accepted."""
    names: tuple[str, ...] = ()
    """State of the World: all that are subscribed to. Delta: those that are from now on."""
    unsubscribed: tuple[str, ...] = ()
    held: Mapping[str, str] = attrs.field(factory=dict)
    """Delta: the version of each resource that the client has, in the first request of a type."""


def read_request(data: bytes, protocol: XdsProtocol) -> Request:
    """A whole request."""
    head = request_head(data, protocol)
    if protocol is XdsProtocol.SOTW:
        version = "".join(_texts(data, 1))
        return Request(head, version, tuple(_texts(data, 3)))
    held = {}
    for number, _, start, end in fields(data):
        if number == 5:
            entry = data[start:end]
            held["".join(_texts(entry, 1))] = "".join(_texts(entry, 2))
    return Request(head, "", tuple(_texts(data, 3)), tuple(_texts(data, 4)), held)


def _texts(data: bytes, wanted: int) -> Iterator[str]:
    for number, kind, start, end in fields(data):
        if number == wanted and kind == LEN:
            yield str(data[start:end], "utf-8")


@attrs.frozen
class KeptResource:
    """A resource as a client accepted it."""

    name: str
    version: str
    """Empty for one of State of the World."""
    body: bytes
    """The encoded ``Any``."""
    aliases: tuple[str, ...] = ()


@attrs.frozen
class ResponseParts:
    """A response taken apart."""

    type_url: str
    version: str
    answers: tuple[KeptResource, ...]
    removed: tuple[str, ...] = ()


def read_response(data: bytes, protocol: XdsProtocol) -> ResponseParts:
    """A whole response. The body of each resource is a copy, so that the response can go."""
    type_url = version = ""
    answers: list[KeptResource] = []
    removed: list[str] = []
    whole = memoryview(data)
    for number, kind, start, end in fields(data):
        if kind != LEN:
            continue
        if number == 1:
            version = str(data[start:end], "utf-8")
        elif number == 2:
            part = whole[start:end]
            answers.append(_sotw_answer(bytes(part)) if protocol is XdsProtocol.SOTW else _delta_answer(part))
        elif number == 4:
            type_url = str(data[start:end], "utf-8")
        elif number == 6 and protocol is XdsProtocol.DELTA:
            removed.append(str(data[start:end], "utf-8"))
    return ResponseParts(type_url, version, tuple(answers), tuple(removed))


def _sotw_answer(body: bytes) -> KeptResource:
    """All types of Envoy's that are resources have their name as the first field. Others begin with any bytes."""
    for number, kind, start, end in fields(body):
        if number == 2 and kind == LEN:
            value = memoryview(body)[start:end]
            for inner, inner_kind, inner_start, inner_end in fields(value):
                if inner == 1 and inner_kind == LEN:
                    return KeptResource(str(value[inner_start:inner_end], "utf-8", "replace"), "", body)
    return KeptResource("", "", body)


def _delta_answer(resource: memoryview) -> KeptResource:
    name = version = ""
    body = b""
    aliases: list[str] = []
    for number, kind, start, end in fields(resource):
        if kind != LEN:
            continue
        if number == 1:
            version = str(resource[start:end], "utf-8")
        elif number == 2:
            body = bytes(resource[start:end])
        elif number == 3:
            name = str(resource[start:end], "utf-8")
        elif number == 4:
            aliases.append(str(resource[start:end], "utf-8"))
    return KeptResource(name, version, body, tuple(aliases))


def write_sotw(type_url: str, version: str, nonce: str, bodies: Iterable[bytes]) -> bytes:
    """A ``DiscoveryResponse``."""
    parts = [field(1, version.encode()), *(field(2, body) for body in bodies)]
    return b"".join([*parts, field(4, type_url.encode()), field(5, nonce.encode())])


def write_delta(type_url: str, nonce: str, answers: Iterable[KeptResource], removed: Collection[str]) -> bytes:
    """A ``DeltaDiscoveryResponse``."""
    parts = [field(1, nonce.encode()), *(field(2, _write_resource(answer)) for answer in answers)]
    parts += [field(4, type_url.encode()), field(5, nonce.encode())]
    return b"".join([*parts, *(field(6, name.encode()) for name in removed)])


def _write_resource(answer: KeptResource) -> bytes:
    aliases = b"".join([field(4, alias.encode()) for alias in answer.aliases])
    name = field(3, answer.name.encode())
    return field(1, answer.version.encode()) + field(2, answer.body) + name + aliases


def empty_body(type_url: str, name: str) -> bytes:
    """The ``Any`` of a resource that has only its name."""
    return field(1, type_url.encode()) + field(2, field(1, name.encode()))
