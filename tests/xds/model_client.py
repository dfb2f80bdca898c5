"""A client as the protocol describes it, with a network that delays everything, for the stateful tests."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

import attrs

from mesh_pilot.model.resource import CLUSTER, LISTENER, Resource
from mesh_pilot.xds.ads.messages import DeltaRequest, Node, Request, Response, SotwRequest, Variant
from mesh_pilot.xds.ads.stream import Stream
from tests.xds.fake_world import NODE, FakeWorld

UNSERVED = "type.googleapis.com/istio.workload.Address"
"""A type that no server here has."""

BAD = b"bad"
"""Content that begins so is refused."""


@attrs.define
class Interest:
    """What the client wants of a type, and what it has."""

    names: set[str] = attrs.field(factory=set)
    wildcard: bool = False
    legacy: bool = True
    """Never named anything: no names mean everything."""
    resources: dict[str, Resource] = attrs.field(factory=dict)
    nonce: str = ""
    version: str = ""
    versions: dict[str, str] = attrs.field(factory=dict)
    """Delta: those of the resources, as they came."""

    def wants(self, name: str) -> bool:
        return self.wildcard or name in self.names

    @property
    def is_empty(self) -> bool:
        return not self.wildcard and not self.names

    def spelled(self) -> tuple[str, ...]:
        """The names of a full request."""
        if self.wildcard and self.legacy:
            return ()
        return (*sorted(self.names), *(["*"] if self.wildcard else []))

    def drop_unwanted(self) -> None:
        self.resources = {name: found for name, found in self.resources.items() if self.wants(name)}


class ModelClient:
    """Its requests and the server's responses wait in two queues until the test lets them through."""

    def __init__(self, world: FakeWorld, variant: Variant, *, is_atomic: bool) -> None:
        self.world = world
        self.variant = variant
        self.is_atomic = is_atomic
        """True if a response with anything bad is refused as a whole, or its good part applied."""
        self.interests: dict[str, Interest] = {}
        self.connect()

    def connect(self, *, forgotten: bool = False) -> None:
        """A new stream, after the old one broke with all that was under way; with ``forgotten`` at a control plane that
        was started again, to which the versions of State of the World say nothing.
        """
        self.stream = Stream(self.world, self.variant)
        self.to_server: deque[Request] = deque()
        self.to_client: deque[Response] = deque()
        self.unanswered: dict[str, str] = {}
        """What the server waits for: type to nonce."""
        self._node: Node | None = NODE
        for type_url, interest in list(self.interests.items()):
            interest.nonce = ""
            if interest.is_empty:
                del self.interests[type_url]
            elif self.variant is Variant.SOTW:
                self._request(type_url, version=f"not {interest.version}" if forgotten else interest.version)
            else:
                versions = {name: interest.versions[name] for name in interest.resources}
                self._request(type_url, subscribe=interest.spelled(), has=versions)

    def _request(
        self,
        type_url: str,
        *,
        error: str | None = None,
        is_answer: bool = False,
        subscribe: Collection[str] = (),
        unsubscribe: Collection[str] = (),
        has: dict[str, str] | None = None,
        version: str = "",
    ) -> None:
        interest = self.interests[type_url]
        node, self._node = self._node, None
        request: Request
        if self.variant is Variant.SOTW:
            request = SotwRequest(type_url, interest.spelled(), interest.nonce, version, error, node)
        else:
            nonce = interest.nonce if is_answer else ""
            request = DeltaRequest(type_url, tuple(subscribe), tuple(unsubscribe), has or {}, nonce, error, node)
        self.to_server.append(request)

    # -- the client's decisions

    def subscribe(self, type_url: str, names: Collection[str], *, wildcard: bool = False) -> None:
        """More names; with none at all, the first time, everything. In Delta it may have forgotten what it asks for."""
        first = type_url not in self.interests
        interest = self.interests.setdefault(type_url, Interest())
        if first and not names and not wildcard:
            interest.wildcard = True
            self._request(type_url)
            return
        if interest.wildcard and interest.legacy and self.variant is Variant.SOTW:
            wildcard = True
        if not names and not wildcard:
            return
        interest.legacy = False
        interest.names |= set(names)
        if self.variant is Variant.DELTA:
            for name in list(interest.resources) if wildcard and interest.wildcard else names:
                interest.resources.pop(name, None)
        interest.wildcard = interest.wildcard or wildcard
        self._request(type_url, subscribe=[*names, *(["*"] if wildcard else [])])

    def unsubscribe(self, type_url: str, names: Collection[str], *, wildcard: bool = False) -> None:
        """Fewer names. What is no longer wanted is forgotten at once; in Delta what the wildcard may still give too."""
        interest = self.interests.get(type_url)
        if interest is None or not (names or wildcard):
            return
        if interest.legacy and not (wildcard and self.variant is Variant.DELTA):
            return
        interest.legacy = False
        if self.variant is Variant.DELTA:
            for name in interest.names.intersection(names):
                interest.resources.pop(name, None)
        interest.names -= set(names)
        if wildcard:
            interest.wildcard = False
        interest.drop_unwanted()
        self._request(type_url, unsubscribe=[*names, *(["*"] if wildcard else [])])

    # -- the network

    def server_reads(self) -> None:
        if not self.to_server:
            return
        request = self.to_server.popleft()
        if self.unanswered.get(request.type_url) == request.nonce:
            self.unanswered.pop(request.type_url, None)
        self.stream.on_request(request)

    def server_sends(self) -> bool:
        response = self.stream.next_response()
        if response is None:
            return False
        assert response.type_url not in self.unanswered, "two responses of a type without an answer"
        self.unanswered[response.type_url] = response.nonce
        self.to_client.append(response)
        return True

    def client_reads(self) -> None:
        if not self.to_client:
            return
        response = self.to_client.popleft()
        interest = self.interests[response.type_url]
        interest.nonce = response.nonce
        bad = [r.name for r in response.resources if r.body.startswith(BAD)]
        if not (bad and self.is_atomic):
            self._apply(response, interest, bad)
        if bad:
            interest.version = interest.version if self.is_atomic else ""
            self._request(response.type_url, error=f"refused: {', '.join(bad)}", is_answer=True)
        else:
            interest.version = response.version
            self._request(response.type_url, version=response.version, is_answer=True)

    def _apply(self, response: Response, interest: Interest, bad: Collection[str]) -> None:
        good = {r.name: r for r in response.resources if r.name not in bad and interest.wants(r.name)}
        if response.variant is Variant.SOTW and response.type_url in (CLUSTER, LISTENER):
            kept = {name: found for name, found in interest.resources.items() if name in bad}
            interest.resources = {**good, **kept}
            return
        interest.resources.update(good)
        interest.versions.update(zip((r.name for r in response.resources), response.versions(), strict=True))
        for name in response.removed:
            interest.resources.pop(name, None)

    def run_until_quiet(self, *, limit: int = 300) -> None:
        """Let everything through until nothing moves; a stream that never stops fails."""
        for _ in range(limit):
            if self.to_server:
                self.server_reads()
            elif self.server_sends():
                pass
            elif self.to_client:
                self.client_reads()
            elif self.stream.waiting_for().endpoints:
                self.stream.end_warming()
            elif self.stream.waiting_for().referrers:
                self.stream.end_reconnect_grace()
            else:
                return
        raise AssertionError(f"never quiet: {self.stream!r}")

    # -- the truth

    def expected(self, type_url: str) -> dict[str, Resource]:
        interest = self.interests[type_url]
        if type_url == UNSERVED:
            return {}
        source = self.world.sets[type_url]
        found = dict(source.all()) if interest.wildcard else {}
        for name in interest.names:
            resource = source.get(name)
            if resource is not None:
                found[name] = resource
        return found

    def check(self) -> None:
        """The client has what there is: nothing less and, where the protocol can say so, nothing more."""
        for type_url, interest in self.interests.items():
            expected = self.expected(type_url)
            has = interest.resources
            if self.variant is Variant.SOTW and type_url not in (CLUSTER, LISTENER):
                has = {name: found for name, found in has.items() if name in expected}
            assert {n: r.body for n, r in has.items()} == {n: r.body for n, r in expected.items()}, self.stream
            assert type_url != UNSERVED or interest.nonce, "a type that is not served was not answered"
