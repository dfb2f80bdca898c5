"""The few fields of discovery requests and responses that the relay reads and writes, on their encoded form.

Resources stay encoded. Field numbers: Envoy's ``service/discovery/v3/discovery.proto``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from enum import Enum

import attrs

from mesh_pilot.agent.base.wire import Parts
from mesh_pilot.base.protowire import LEN, field, fields, read_varint, value_span


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
            error = Parts(data[start:at]).text(_MESSAGE_OF_STATUS, "replace")
    return Head(type_url, nonce, error)


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
    head, parts = request_head(data, protocol), Parts(data)
    if protocol is XdsProtocol.SOTW:
        return Request(head, parts.text(1), parts.texts(3))
    pairs = map(Parts, parts.all(5))
    held = {pair.text(1): pair.text(2) for pair in pairs}
    return Request(head, "", parts.texts(3), parts.texts(4), held)


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
            answers.append(_sotw_answer(bytes(part)) if protocol is XdsProtocol.SOTW else _delta_answer(Parts(part)))
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


def _delta_answer(resource: Parts) -> KeptResource:
    return KeptResource(resource.text(3), resource.text(1), resource.last(2), resource.texts(4))


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
