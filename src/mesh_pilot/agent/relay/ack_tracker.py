"""The answers that the Envoy of a stream has accepted: its requests matched with the responses that they answer."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import attrs

from mesh_pilot.agent.relay.messages import Head, XdsProtocol, read_request, request_head, response_head
from mesh_pilot.model.resource import CLUSTER, LISTENER

MAX_UNANSWERED = 64
"""Responses of one stream that are remembered until they are answered. mesh-pilot has one of a type under way."""

FULL_TYPES = frozenset((CLUSTER, LISTENER))
"""Types of which a State of the World response holds everything."""


@attrs.define(eq=False)
class _Sent:
    data: bytes
    head: Head | None = None


class AckTracker:
    """Mutable state: the responses that wait for an answer, oldest first."""

    def __init__(self, protocol: XdsProtocol) -> None:
        self.protocol = protocol
        self._sent: deque[_Sent] = deque(maxlen=MAX_UNANSWERED)

    def __repr__(self) -> str:
        return f"<AckTracker {self.protocol.name}, {len(self._sent)} unanswered>"

    def sent(self, response: bytes) -> None:
        """A response is on its way to Envoy. It is looked at when it is answered."""
        self._sent.append(_Sent(response))

    def head(self, request: bytes) -> Head:
        """The head of a request. Raises WireError, UnicodeDecodeError."""
        return request_head(request, self.protocol)

    def answered(self, head: Head) -> bytes | None:
        """The response that a request with this head accepts; None for a refusal, and where it answers none."""
        if not head.nonce:
            return None
        found = None
        for sent in self._sent:
            sent.head = sent.head or response_head(sent.data)
            if sent.head.type_url == head.type_url and sent.head.nonce == head.nonce:
                found = sent
        if found is None:
            return None
        assert found.head is not None
        before = True
        for sent in list(self._sent):  # those of the type before it will not be answered any more
            if sent.head is not None and sent.head.type_url == head.type_url and before:
                self._sent.remove(sent)
            before = before and sent is not found
        return found.data if head.error is None else None


class Interest:
    """The names that the Envoy of a stream subscribes to. Mutable state: those, by type; State of the World lists all
    in each request, of which the last is kept as it came."""

    def __init__(self, protocol: XdsProtocol) -> None:
        self._protocol = protocol
        self._requests: dict[str, bytes] = {}
        self._names: dict[str, set[str]] = {}

    def note(self, request: bytes, head: Head) -> None:
        """Take in a request with this head."""
        if head.type_url in FULL_TYPES:
            return
        if self._protocol is XdsProtocol.SOTW:
            self._requests[head.type_url] = request
            return
        read = read_request(request, self._protocol)
        names = self._names.setdefault(head.type_url, set())
        names.difference_update(read.unsubscribed)
        names.update(read.names)

    def by_type(self) -> dict[str, frozenset[str]]:
        """The names of each type, ``*`` among those of one that all are wanted of."""
        found = {url: frozenset(names) for url, names in self._names.items()}
        for url, request in self._requests.items():
            found[url] = frozenset(read_request(request, self._protocol).names)
        return {url: names for url, names in found.items() if names}


def wanted_by_name(interests: Iterable[Interest]) -> dict[str, frozenset[str]]:
    """The names of each type that streams subscribe to by name only, together: two during a hot restart."""
    found: dict[str, frozenset[str]] = {}
    for interest in interests:
        for url, names in interest.by_type().items():
            found[url] = found.get(url, frozenset()) | names
    return {url: names for url, names in found.items() if "*" not in names}
