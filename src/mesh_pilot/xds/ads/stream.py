"""One xDS stream as a pure state machine: requests in, responses out; no bytes, no clock, no I/O.

A stream serves State of the World or Delta, all types (ADS) or one. It has a ``Subscription`` for each type that the
client requests, which knows what to send next, and a ``PushOrder``, which knows what has to wait for what. Read
``subscription`` first.

::

    stream.on_request(request)                         # may raise StreamError, which ends the stream
    while (response := stream.next_response()) is not None: ...
    stream.waiting_for()                               # why there is nothing to send

The stream calls ``wake`` when there may be something to send again. It has no clock: the caller ends what a client may
never do (``end_warming``, ``end_reconnect_grace``) when ``waiting_for`` names it for too long.

What to send next is asked for (``next_response``), not queued: a queue would hold what a slow client has not read, and
again what has changed since. Asked late, the answer is the difference to the latest state. One type's response at a
time, rather than a snapshot of all types, because Envoy answers types one by one, may refuse one and accept the next,
and warms clusters on its own time; the order between types is a question that is asked again for each response. That
makes it cheap to be wrong: after any lost or odd answer, the next difference sets it right.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Hashable, Iterator, Mapping, Sequence

import attrs

from mesh_pilot.engine.patched import Names
from mesh_pilot.engine.snapshots import NO_NAMES, Snapshot, SnapshotStore, without
from mesh_pilot.model.bounds import DEFAULT_BOUNDS, Bounds
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.resource import HEALTH, RESOURCE_TYPES, ROUTE, VIRTUAL_HOST, WARMING, Resource
from mesh_pilot.xds.ads.messages import (
    Code,
    DeltaRequest,
    Nack,
    Node,
    Request,
    Response,
    SotwRequest,
    StreamError,
    SubscriptionStatistics,
    Variant,
    proxy_of,
)
from mesh_pilot.xds.ads.ordering import PushOrder
from mesh_pilot.xds.ads.resources import Catalog, ProxyResources, TypeResources
from mesh_pilot.xds.ads.subscription import Subscription
from mesh_pilot.xds.ads.unserved import Unserved

_GENERATED_FOR = {ROUTE: {ROUTE, VIRTUAL_HOST}}
"""The types of which there may be more to generate when a client requests other names of one: by default itself."""


_IDLE = Subscription("", Variant.DELTA, SnapshotStore())
"""Stands for the types that the client never requested."""


class StreamObserver:
    """Learns what happens on a stream. This one does nothing."""

    def connected(self, proxy: Proxy) -> None: ...

    def sent(self, response: Response) -> None: ...

    def acked(self, type_url: str, nonce: str, version: str) -> None: ...

    def rejected(self, nack: Nack) -> None: ...

    def ignored(self, type_url: str) -> None:
        """A request answers an older response than the last."""

    def reported(self, error: str | None) -> None:
        """The client reports the health of its application: why it is ill, None if it is well. Nothing is answered."""

    def warms(self, report: str | None) -> None:
        """An agent reports what its Envoy has accepted and does not use yet; None for nothing."""

    def unserved(self, type_url: str) -> None:
        """The client requests, for the first time on the stream, a type that is not served."""


@attrs.frozen
class Waiting:
    """The reasons why a stream cannot go on; all empty when it waits only for the world to change."""

    node: bool = False
    """The first request, with the node."""
    acks: tuple[str, ...] = ()
    """Types whose last response was not answered."""
    endpoints: frozenset[str] = frozenset()
    """New clusters whose endpoints the client should request before it is sent listeners and routes. A client may never
    do that: end the waiting after a while with ``end_warming``."""
    referrers: tuple[str, ...] = ()
    """Types that a reconnecting client should request before clusters that are gone are taken from it. Envoy requests
    all it has at once: end the waiting soon with ``end_reconnect_grace``."""
    clusters: bool = False
    """A State of the World client should request clusters before it gets an answer about endpoints of clusters that
    do not exist. Envoy never does while it waits for those: end this waiting with ``end_reconnect_grace`` too. A
    Delta client that comes back with endpoints should too, before it gets any: their versions depend on clusters."""


class Stream:
    """One stream of one client.

    Mutable state: who the client is, its resources, a subscription for each type it requested, in the order in which
    types are sent, and what the order has to wait for.
    """

    def __init__(
        self,
        catalog: Catalog,
        variant: Variant,
        *,
        only: str | None = None,
        observer: StreamObserver | None = None,
        wake: Callable[[], None] = lambda: None,
        admit: Callable[[Proxy], Proxy] = lambda proxy: proxy,
        trial_of: Callable[[], str] = lambda: "",
        warms: Callable[[str], bool] = lambda type_url: False,
        bounds: Bounds = DEFAULT_BOUNDS,
    ) -> None:
        """``only`` is the type of a per-type service, None for ADS. ``wake`` is called when there may be news.

        ``admit`` sees the proxy before anything else: it may note its identity, or raise StreamError. ``trial_of``
        gives the type of which quarantine looks for what the client refuses, empty if it does not. ``warms`` is true
        while the client does not use something of a type that it has accepted.
        """
        self.warms = warms
        self._catalog = catalog
        self._variant = variant
        self._only = only
        self._observer = observer or StreamObserver()
        self._wake = wake
        self._admit = admit
        self._bounds = bounds
        self.proxy: Proxy | None = None
        """The client; None before its first request."""
        self._subscriptions: dict[str, Subscription] = {}
        self._order = PushOrder(
            variant,
            catalog,
            self._subscriptions,
            is_aggregated=only is None,
            trial_of=trial_of,
        )
        self._to_generate = NO_NAMES
        """Types of which the client requests something that may not be generated yet."""
        self._unserved = Unserved(variant)

    def __repr__(self) -> str:
        who = self.proxy.id if self.proxy else "no proxy yet"
        parts = [self._variant, who, *map(repr, self._subscriptions.values())]
        if self._order.warming:
            parts.append(f"{self._order.warming} clusters warming")
        return f"<Stream {' '.join(parts)}>"

    def statistics(self) -> tuple[SubscriptionStatistics, ...]:
        """How each type is doing, in the order in which they are sent."""
        return tuple(each.statistics() for each in self._subscriptions.values())

    def client_state(self, type_url: str) -> Mapping[str, Resource]:
        """The resources of a type that the client should have now. Those that it brought with it have no bytes."""
        return self._subscriptions.get(type_url, _IDLE).client_state.entries

    def accepted(self, type_url: str) -> Mapping[str, Resource] | None:
        """As ``client_state``, empty while a response is unanswered; None for a type that was not asked for."""
        found = self._subscriptions.get(type_url)
        if found is None:
            return None
        return found.client_state.entries if found.last.nonce == found.last.acked_nonce else {}

    def explained(
        self, type_url: str, seen: dict[Hashable, Mapping[str, Resource]] | None = None
    ) -> Mapping[str, Resource]:
        """As ``client_state``, each resource with the objects that this client has it from (see ``ProxyResources``)."""
        held = self.client_state(type_url)
        return held if self._order.resources is None else self._order.resources.explained(held, type_url, seen)

    def names(self, type_url: str) -> Names:
        """The names of a type that the client subscribes to, besides the wildcard."""
        return self._subscriptions.get(type_url, _IDLE).names

    @property
    def is_aggregated(self) -> bool:
        """True if the client may request all types on this stream."""
        return self._only is None

    def holds(self, type_url: str) -> Snapshot:
        """The same as a snapshot."""
        return self._subscriptions.get(type_url, _IDLE).client_state

    def requests(self, type_url: str) -> Names | None:
        """The names of a type that the client subscribes to; None if it never requested the type."""
        subscription = self._subscriptions.get(type_url)
        return subscription.names if subscription else None

    def missing(self, type_url: str) -> frozenset[str]:
        """The names of a type that the client subscribes to, does not have, and that do not exist."""
        return self._subscriptions.get(type_url, _IDLE).missing()

    def has_doubts(self, type_url: str) -> bool:
        """True unless the client has accepted all resources of a type that it was sent."""
        return not self._subscriptions.get(type_url, _IDLE).is_settled

    def in_doubt(self, type_url: str) -> Collection[str]:
        """The names of a type that the client was sent in a response that it refused."""
        return self._subscriptions.get(type_url, _IDLE).nacked_names

    def unanswered(self, type_url: str) -> Collection[str]:
        """The names of a type that are new to the client in a response that it has not answered."""
        outstanding = self._subscriptions.get(type_url, _IDLE).last.outstanding
        return outstanding.touched if outstanding else ()

    def is_refused(self, type_url: str, but: Container[Resource] = ()) -> bool:
        """True while anything of a type ``but`` these is not sent because the client has refused it as it is."""
        return self._subscriptions.get(type_url, _IDLE).is_refused(but)

    @property
    def is_acked(self) -> bool:
        """True unless a response waits for its ACK."""
        return not [each for each in self._subscriptions.values() if each.last.outstanding is not None]

    @property
    def awaits_requests(self) -> bool:
        """True while the client should request something first, see ``Waiting``."""
        return self.proxy is None or self._order.awaits_requests

    @property
    def is_settled(self) -> bool:
        """True unless the client has to answer, or to request, something first."""
        return self.is_acked and not self.awaits_requests

    @property
    def has_news(self) -> bool:
        """False if there is nothing to do or to send for certain: it costs little to ask."""
        if self._to_generate or Subscription.have_news(self._subscriptions.values()):
            return True
        return self._unserved.is_due

    def waiting_for(self) -> Waiting:
        return Waiting(
            node=self.proxy is None,
            acks=tuple(t for t, s in self._subscriptions.items() if s.last.outstanding is not None),
            endpoints=self._order.awaited_endpoints(),
            referrers=self._order.awaited_referrers(),
            clusters=self._order.awaits_clusters(),
        )

    def end_warming(self) -> None:
        """Go on although the client has not requested the endpoints of new clusters."""
        self._order.end_warming()

    def end_reconnect_grace(self) -> None:
        """Go on although a reconnecting client has not requested clusters, listeners or routes."""
        self._order.end_reconnect_grace()

    def push_again(self) -> None:
        """Send all that the client holds once more, changed or not."""
        for subscription in self._subscriptions.values():
            subscription.request_again(subscription.client_state.names)

    def close(self) -> None:
        """The stream is over; nothing wakes it any more."""
        for subscription in self._subscriptions.values():
            if subscription.is_full_state and subscription.wildcard and subscription.is_settled:
                self._catalog.snapshots.retain(subscription.client_state)
        if self._order.resources is not None:
            self._order.resources.close()
            self._order.resources = None
        self._subscriptions.clear()

    # -- requests

    def work(self) -> Iterator[None]:
        """Generate what the client requests, one resource a step, so that others get their turn in between.

        May be left at any step, and begun again: nothing is generated twice. ``next_response`` does at once what was
        left.
        """
        for type_url in RESOURCE_TYPES:
            if type_url in self._to_generate:
                subscription, source = self._subscriptions.get(type_url), self._order.source_of(type_url)
                if subscription is not None and source is not None:
                    yield from source.work(subscription.names)
                self._to_generate = without(self._to_generate, frozenset((type_url,)))

    @property
    def has_work(self) -> bool:
        """True if ``work`` may have something to do."""
        return bool(self._to_generate)

    def answers(self, request: Request) -> bool:
        """True if a request answers the last response of its type: it costs no more than what we chose to send.

        Call it before ``on_request``.
        """
        outstanding = self._subscriptions.get(self._only or request.type_url, _IDLE).last.outstanding
        return outstanding is not None and request.nonce == outstanding.nonce

    def on_request(self, request: Request) -> None:
        """Take a request in. Raises StreamError or BoundError when it must end the stream."""
        resources = self._order.resources or self._identify(request.node)
        self._check_node(request.node)
        type_url = self._type_of(request.type_url)
        if type_url == HEALTH:
            self._observer.reported(request.error)
            return
        if type_url == WARMING:
            self._observer.warms(request.error)
            return
        source = resources.set(type_url) if type_url in RESOURCE_TYPES else None
        if source is None:
            if self._unserved.on_request(request, type_url):
                self._observer.unserved(type_url)
            return
        subscription = self._subscriptions.get(type_url)
        first = subscription is None
        if subscription is None:
            subscription = self._subscribe(type_url)
        names = subscription.names
        if isinstance(request, DeltaRequest):
            self._on_delta(subscription, request, source, first)
        else:
            self._on_sotw(subscription, request, source, first)
        if first or subscription.names is not names:
            self._to_generate |= _GENERATED_FOR.get(type_url, {type_url})
            if type_url == ROUTE and (hosts := self._subscriptions.get(VIRTUAL_HOST)) is not None:
                hosts.is_stale = True

    def _subscribe(self, type_url: str) -> Subscription:
        """The first request of a type. Subscriptions stay in the order in which types are sent."""
        added = Subscription(type_url, self._variant, self._catalog.snapshots, self._bounds)
        found = {**self._subscriptions, type_url: added}
        self._subscriptions.clear()
        self._subscriptions.update((each, found[each]) for each in RESOURCE_TYPES if each in found)
        return added

    def _identify(self, node: Node | None) -> ProxyResources:
        proxy = attrs.evolve(proxy_of(node), incremental=self._variant is Variant.DELTA and self._only is None)
        proxy = self.proxy = self._admit(proxy)
        self._order.resources = self._catalog.open(proxy, self._woken, self._requested)
        self._observer.connected(proxy)
        return self._order.resources

    def _woken(self, type_url: str) -> None:
        """The resources of a type may have changed; of all types, without one."""
        subscriptions = self._subscriptions
        for each in [subscriptions.get(type_url)] if type_url else subscriptions.values():
            if each is not None:
                each.is_stale = True
        self._wake()

    def _requested(self, type_url: str) -> Names:
        """The names that the client subscribes to; for virtual hosts, the tables."""
        return self._subscriptions.get(ROUTE if type_url == VIRTUAL_HOST else type_url, _IDLE).names

    def _check_node(self, node: Node | None) -> None:
        if node is not None and node.id and self.proxy is not None and node.id != self.proxy.id:
            raise StreamError(
                Code.INVALID_ARGUMENT, f"the stream is that of {self.proxy.id}; a request on it came from {node.id}"
            )

    def _type_of(self, type_url: str) -> str:
        if self._only is not None:
            if type_url not in ("", self._only):
                raise StreamError(Code.INVALID_ARGUMENT, f"this stream serves {self._only}, not {type_url}")
            return self._only
        if not type_url:
            raise StreamError(Code.INVALID_ARGUMENT, "a request on an aggregated stream must have a type URL")
        return type_url

    def _on_sotw(self, subscription: Subscription, request: SotwRequest, source: TypeResources, first: bool) -> None:
        if subscription.last.nonce and request.nonce:
            if request.nonce != subscription.last.nonce:
                subscription.note_stale_request(request.names)
                self._observer.ignored(subscription.type_url)
                return
            self._on_answer(subscription, request.error)
        subscription.request(request.names)
        if first and request.version and subscription.is_full_state and subscription.wildcard:
            subscription.refresh(source)
            is_known = subscription.restore(request.version)
            self._order.note_reconnect(subscription, is_state_known=is_known)

    def _on_delta(self, subscription: Subscription, request: DeltaRequest, source: TypeResources, first: bool) -> None:
        if request.nonce and request.nonce == subscription.last.nonce:
            self._on_answer(subscription, request.error)
        elif request.nonce and subscription.last.nonce:
            self._observer.ignored(subscription.type_url)
        subscription.change(request.subscribe, request.unsubscribe, first=first)
        if first and request.initial_versions:
            self._order.note_reconnect(subscription, is_state_known=True)
            subscription.refresh(source)
            self._order.seed(subscription, request)

    def _on_answer(self, subscription: Subscription, error: str | None) -> None:
        nonce, version = subscription.last.nonce, subscription.last.version
        if error is None:
            if subscription.ack():
                self._observer.acked(subscription.type_url, nonce, version)
            return
        refused = subscription.nack()
        self._order.note_nack(subscription)
        assert self.proxy is not None and self._order.resources is not None
        sent = {resource.name: resource for resource in refused.resources} if refused else {}
        resources = [*self._order.resources.explained(sent, subscription.type_url).values()]
        self._observer.rejected(_nack(self.proxy, subscription.type_url, nonce, version, error, resources))

    # -- responses

    def next_response(self, on_hold: Collection[str] = ()) -> Response | None:
        """The next response, None for nothing (until a request comes or the stream is woken).

        The response counts as sent when it is returned. Types ``on_hold`` are left for later.
        """
        if self._order.resources is not None and not self._order.resources.is_known:
            return None  # to say that there is nothing would take from a client what it has
        for type_url, subscription in self._subscriptions.items():
            if subscription.is_even or subscription.last.outstanding is not None or type_url in on_hold:
                continue
            pending = self._order.pending(subscription)
            if pending is None or self._order.must_wait(subscription, pending, on_hold):
                continue
            self._order.note_sending(subscription, pending)
            response = subscription.send(pending, self._order.clusters_of(subscription))
            self._order.note_sent(subscription)
            self._observer.sent(response)
            return response
        return self._unserved.next_response()


def _nack(proxy: Proxy, type_url: str, nonce: str, version: str, reason: str, resources: Sequence[Resource]) -> Nack:
    """A NACK with the refused resources that its reason names. Of names that contain each other, the longest counts."""
    guilty = resources if len(resources) == 1 else [r for r in resources if r.name and r.name in reason]
    names = tuple(r.name for r in guilty if not any(r.name != o.name and r.name in o.name for o in guilty))
    configs = dict.fromkeys(key for r in guilty if r.name in names for key in r.configs)
    named = tuple(r for r in guilty if r.name in names) or tuple(resources)
    return Nack(proxy, type_url, nonce, version, reason, names, tuple(configs), named)
