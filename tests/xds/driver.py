"""Drives one stream by hand: short requests in, what was sent out."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from mesh_pilot.model.proxy import Proxy
from mesh_pilot.xds.ads.messages import DeltaRequest, Nack, Node, Response, SotwRequest, Variant
from mesh_pilot.xds.ads.resources import Catalog
from mesh_pilot.xds.ads.stream import Stream
from tests.xds.fake_world import NODE


class Recorder:
    """A journal that keeps everything."""

    def __init__(self) -> None:
        self.proxies: list[Proxy] = []
        self.responses: list[Response] = []
        self.acks: list[tuple[str, str, str]] = []
        self.nacks: list[Nack] = []
        self.unserved_types: list[str] = []

    def connected(self, proxy: Proxy) -> None:
        self.proxies.append(proxy)

    def sent(self, response: Response) -> None:
        self.responses.append(response)

    def acked(self, type_url: str, nonce: str, version: str) -> None:
        self.acks.append((type_url, nonce, version))

    def rejected(self, nack: Nack) -> None:
        self.nacks.append(nack)

    def ignored(self, type_url: str) -> None: ...

    def reported(self, error: str | None) -> None: ...

    def warms(self, report: str | None) -> None: ...

    def unserved(self, type_url: str) -> None:
        self.unserved_types.append(type_url)


def names(response: Response | None) -> list[str]:
    """The names of the resources of a response that must be there."""
    assert response is not None
    return [resource.name for resource in response.resources]


class Driver:
    """A client's hand on a stream: it answers only when told to."""

    def __init__(self, world: Catalog, variant: Variant, *, only: str | None = None, node: Node = NODE) -> None:
        self.observer = Recorder()
        self.wakes = 0
        self.stream = Stream(world, variant, only=only, observer=self.observer, wake=self._wake)
        self._node: Node | None = node

    def _wake(self) -> None:
        self.wakes += 1

    def _take_node(self) -> Node | None:
        node, self._node = self._node, None
        return node

    def next(self) -> Response | None:
        return self.stream.next_response()

    def responses(self) -> list[Response]:
        """All that can be sent without an answer."""
        found = []
        while (response := self.next()) is not None:
            found.append(response)
        return found

    def settle(self) -> list[Response]:
        """All that is sent to a client that ACKs everything and changes nothing."""
        found = []
        while (response := self.next()) is not None:
            found.append(response)
            self.ack(response)
        return found


class Sotw(Driver):
    def __init__(self, world: Catalog, *, only: str | None = None, node: Node = NODE) -> None:
        super().__init__(world, Variant.SOTW, only=only, node=node)
        self._names: dict[str, tuple[str, ...]] = {}

    def ask(self, type_url: str, *names: str, nonce: str = "", version: str = "", error: str | None = None) -> None:
        self._names[type_url] = names
        self.stream.on_request(SotwRequest(type_url, names, nonce, version, error, self._take_node()))

    def ack(self, response: Response, *names: str) -> None:
        """``names`` as they were, unless given."""
        wanted = names or self._names.get(response.type_url, ())
        self.ask(response.type_url, *wanted, nonce=response.nonce, version=response.version)

    def nack(self, response: Response, error: str = "no") -> None:
        wanted = self._names.get(response.type_url, ())
        self.ask(response.type_url, *wanted, nonce=response.nonce, error=error)


class Delta(Driver):
    def __init__(self, world: Catalog, *, only: str | None = None, node: Node = NODE) -> None:
        super().__init__(world, Variant.DELTA, only=only, node=node)

    def ask(
        self,
        type_url: str,
        *subscribe: str,
        unsubscribe: Collection[str] = (),
        has: Mapping[str, str] | None = None,
        nonce: str = "",
        error: str | None = None,
    ) -> None:
        request = DeltaRequest(type_url, subscribe, tuple(unsubscribe), has or {}, nonce, error, self._take_node())
        self.stream.on_request(request)

    def ack(self, response: Response) -> None:
        self.ask(response.type_url, nonce=response.nonce)

    def nack(self, response: Response, error: str = "no") -> None:
        self.ask(response.type_url, nonce=response.nonce, error=error)
