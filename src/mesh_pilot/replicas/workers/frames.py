"""The messages between the processes of a control plane, and their frames: a length, then a pickle.

Pickle, because both ends are the same code on a socket pair that no other can open: it takes every item as it is,
with its origin, and shares what items share. Messages of the Istio API and mapping proxies have reducers here: the
messages' own would encode them as protobuf and parse that again, which takes ten times as long.
"""

from __future__ import annotations

import array
import io
import pickle
import socket
import struct
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import attrs
import betterproto2

from mesh_pilot.identity.trust.bundles import Bundle
from mesh_pilot.identity.trust.callers import TrustDomains
from mesh_pilot.model.events import Event

HEADER = struct.Struct("!QB")
"""The length of a frame's body, and how many descriptors come with it."""

MAX_DESCRIPTORS = 64


@attrs.frozen
class Setup:
    """To the fork server, first: what its World is like, and the settings of its workers."""

    settings: Any
    """Whoever runs a worker knows what they are."""
    shutdown_seconds: float
    """The time that workers have to drain."""
    sources: tuple[str, ...]
    """In order of precedence."""
    domain: str
    root_namespace: str
    short_names_in: str
    http: str
    """Where the web pages are, for people."""
    cluster_id: str = ""


@attrs.frozen
class Applied:
    """The events of a revision that take effect. Times are those of ``time.monotonic()``, as all processes see it."""

    revision: int
    events: tuple[Event, ...]
    first_event_at: float
    published_at: float


@attrs.frozen
class Fork:
    """To the fork server: make a worker. Its descriptors: its link, then the listeners."""

    number: int
    secure: int
    """The number of listeners, the last ones, that are of the TLS port."""


@attrs.frozen
class Kill:
    """To the fork server: end a worker that does not answer."""

    number: int


@attrs.frozen
class Roots:
    """To a worker: the foreign roots, and the mesh's own trust domains."""

    bundles: Mapping[tuple[str, str], Bundle]
    """Bundles by source and trust domain, see ``TrustStore.entries``."""
    domains: TrustDomains


@attrs.frozen
class Serving:
    """From a worker: it accepts connections."""

    pid: int


@attrs.frozen
class Drain:
    """To a worker: send proxies elsewhere, and end. From a worker: it does so, as somebody else has told it to."""


@attrs.frozen
class LogStatistics:
    """To a worker: log statistics."""


@attrs.frozen
class Question:
    """A question to the other end."""

    number: int
    question: object


@attrs.frozen
class Reply:
    """The answer to the question of this number."""

    number: int
    value: object


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, betterproto2.Message):
            return _message, (type(value), object.__getattribute__(value, "__dict__"))
        if type(value) is MappingProxyType:
            return _mapping, (dict(value),)
        return NotImplemented


def _message(kind: type[betterproto2.Message], fields: dict[str, object]) -> betterproto2.Message:
    made = object.__new__(kind)
    object.__getattribute__(made, "__dict__").update(fields)
    return made


def _mapping(content: dict[object, object]) -> Mapping[object, object]:
    return MappingProxyType(content)


def encode(message: object) -> bytes:
    """The body of a message's frame."""
    out = io.BytesIO()
    _Pickler(out, pickle.HIGHEST_PROTOCOL).dump(message)
    return out.getvalue()


def decode(body: bytes | bytearray) -> object:
    """The message of a frame's body."""
    return pickle.loads(body)


def ancillary(descriptors: Sequence[int]) -> list[tuple[int, int, bytes]]:
    """Descriptors, for ``socket.sendmsg``."""
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors).tobytes())] if descriptors else []


def receive(sock: socket.socket) -> tuple[object, list[int]] | None:
    """The next message on a blocking socket, with its descriptors; None at the end."""
    head, descriptors = bytearray(), []
    while len(head) < HEADER.size:
        data, more, _, _ = socket.recv_fds(sock, HEADER.size - len(head), MAX_DESCRIPTORS)
        if not data:
            return None
        head += data
        descriptors += more
    length, _ = HEADER.unpack(head)
    body = bytearray(length)
    view, done = memoryview(body), 0
    while done < length:
        count = sock.recv_into(view[done:])
        if not count:
            return None
        done += count
    return decode(body), descriptors
