"""A client in words: it asks a stream for what an Envoy with this node asks for, and accepts all that it is sent.

It runs the stream that serves real proxies, so what it is sent, and in how many bytes, is what they would be sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set

import attrs

from mesh_pilot.explain.plan.picture import ConnectedProxy
from mesh_pilot.model.resource import (
    CLUSTER,
    ENDPOINT,
    EXTENSION,
    LISTENER,
    NAME_TABLE,
    RESOURCE_TYPES,
    ROUTE,
    SECRET,
    VIRTUAL_HOST,
    Resource,
    table_of,
)
from mesh_pilot.xds.ads.messages import DeltaRequest, Node, Response, SotwRequest, Variant
from mesh_pilot.xds.ads.references import References
from mesh_pilot.xds.ads.resources import Catalog
from mesh_pilot.xds.ads.stream import Stream

_NAMED = (ENDPOINT, ROUTE, SECRET, EXTENSION)
"""Types that an Envoy requests by the names in its clusters and listeners."""

_REFERRING = (CLUSTER, LISTENER, ROUTE)
"""Types whose resources name others."""

RESPONSES_AT_MOST = 10_000
"""More than any change comes to; a stream that never stops is a fault of ours."""


@attrs.define
class Received:
    """The responses that a client was sent."""

    responses: int = 0
    bytes: int = 0


class PlannedClient:
    """One proxy and the stream that serves it.

    Mutable state: what it has by type and name, and what it has asked for.
    """

    def __init__(
        self,
        catalog: Catalog,
        connected: ConnectedProxy,
        references: Callable[[Resource], References],
        size_of: Callable[[Response], int],
    ) -> None:
        """``references`` says what a resource names; ``size_of`` how many bytes a response is."""
        self.connected = connected
        self.has: dict[str, dict[str, Resource]] = {type_url: {} for type_url in RESOURCE_TYPES}
        self._references = references
        self._size_of = size_of
        self._is_delta = connected.variant is Variant.DELTA
        self._asked: dict[str, Set[str]] = {}
        self._nonces: dict[str, str] = {}
        self._node: Node | None = Node(connected.proxy.id)
        self._stream = Stream(catalog, connected.variant, admit=lambda _: connected.proxy)

    def __repr__(self) -> str:
        return f"<PlannedClient {self._stream!r}>"

    def connect(self) -> None:
        """Ask for what it asks for at first."""
        if self.connected.proxy.is_grpc:
            self._ask(LISTENER, set(self.connected.listeners))
            return
        self._ask(CLUSTER, set())
        self._ask(LISTENER, set())
        if self.connected.clusters:
            self._ask(CLUSTER, set(self.connected.clusters))
        if NAME_TABLE in self.connected.types:
            self._ask(NAME_TABLE, set())

    def settle(self) -> Received:
        """Take all that there is."""
        received = Received()
        for _ in range(RESPONSES_AT_MOST):
            response = self._stream.next_response()
            if response is None:
                return received
            received.responses += 1
            received.bytes += self._size_of(response)
            self._take(response)
        raise RuntimeError(f"{self!r} still sends after {RESPONSES_AT_MOST} responses")

    def held(self) -> Mapping[str, Mapping[str, Resource]]:
        """All that it has now, by type and name."""
        return {type_url: dict(found) for type_url, found in self.has.items() if found}

    def close(self) -> None:
        self._stream.close()

    def _ask(self, type_url: str, names: Set[str], nonce: str = "") -> None:
        before = self._asked.get(type_url, set())
        self._asked[type_url] = set(names)
        node, self._node = self._node, None
        if self._is_delta:
            new, lost = tuple(sorted(names - before)), tuple(sorted(before - names))
            self._stream.on_request(DeltaRequest(type_url, new, lost, nonce=nonce, node=node))
        else:
            nonce = nonce or self._nonces.get(type_url, "")
            self._stream.on_request(SotwRequest(type_url, tuple(sorted(names)), nonce, node=node))

    def _take(self, response: Response) -> None:
        """Apply a response, accept it, and ask for what it names."""
        type_url = response.type_url
        has = self.has[type_url]
        is_whole = type_url in (CLUSTER, LISTENER) and not self.connected.proxy.is_grpc
        if is_whole and not self._is_delta:
            has.clear()
        for resource in response.resources:
            if is_whole or type_url in (NAME_TABLE, VIRTUAL_HOST) or resource.name in self._asked[type_url]:
                has[resource.name] = resource
        for name in response.removed:
            has.pop(name, None)
        self._nonces[type_url] = response.nonce
        self._ask(type_url, self._asked[type_url], response.nonce)
        if type_url in _REFERRING:
            self._follow()

    def _follow(self) -> None:
        """Drop what nothing names any more, and ask for what the resources at hand name."""
        while True:
            wanted = self._wanted()
            gone = [(kind, name) for kind, names in wanted.items() for name in self.has[kind].keys() - names]
            for kind, name in gone:
                del self.has[kind][name]
            if not gone:
                break
        for name in [name for name in self.has[VIRTUAL_HOST] if table_of(name) not in self.has[ROUTE]]:
            del self.has[VIRTUAL_HOST][name]
        for kind, names in wanted.items():
            if names != self._asked.get(kind, set()):
                self._ask(kind, names)
        has_hosts_apart = any(self._references(each).has_hosts_apart for each in self.has[ROUTE].values())
        if has_hosts_apart and VIRTUAL_HOST not in self._asked:
            self._ask(VIRTUAL_HOST, set())

    def _wanted(self) -> dict[str, Set[str]]:
        """The names to ask for, by type."""
        is_grpc = self.connected.proxy.is_grpc
        found: dict[str, set[str]] = {kind: set() for kind in (*_NAMED, *((CLUSTER,) if is_grpc else ()))}
        for kind in (CLUSTER, LISTENER, *((ROUTE,) if is_grpc else ())):
            for resource in self.has[kind].values():
                for wanted, names in self._references(resource).by_type.items():
                    if wanted in found:
                        found[wanted].update(names)
        return {**found}
