"""One xDS stream as a pure state machine: requests in, responses out; no bytes, no clock, no I/O.

A stream serves State of the World or Delta, all types (ADS) or one. It never queues: ``next_response`` compares what
the client was sent with what there is now, so whatever changes while a response waits for its ACK is merged.

Order is make before break, as in Envoy's "Eventual consistency considerations": clusters go first, listeners and
routes wait until the clusters they may name were sent and, where a new cluster gets its endpoints from us, those too;
clusters that are gone are removed only once listeners and routes that no longer name them were accepted.

A listener that is new to the client comes after the route tables that it asks for already: Envoy keeps the table of a
listener that is gone while that drains, and one that comes back takes it as it is.

Where virtual hosts are resources of their own, a client asks for them once, for all its route tables (Envoy: VHDS over
ADS). It takes those of a table only while it has the table, and does not say when it has it anew: so they go after
their table, and all of them whenever that is new to the client.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

import attrs

from mesh_pilot.model.bounds import DEFAULT_BOUNDS, Bounds
from mesh_pilot.model.proxy import NodeError, Proxy, parse_proxy
from mesh_pilot.model.resource import (
    CLUSTER,
    ENDPOINT,
    EXTENSION,
    LISTENER,
    ROUTE,
    TYPES,
    VIRTUAL_HOST,
    Resource,
    table_of,
)
from mesh_pilot.xds.encode import no_endpoints
from mesh_pilot.xds.held import State, remember
from mesh_pilot.xds.journal import NO_JOURNAL, Journal
from mesh_pilot.xds.messages import Code, DeltaRequest, Nack, Node, Request, Response, SotwRequest, StreamError, Variant
from mesh_pilot.xds.phase import SubscriptionStatistics
from mesh_pilot.xds.placeholders import MAX_PLACEHOLDERS, placeholder
from mesh_pilot.xds.plan import Plan
from mesh_pilot.xds.sets import Catalog, ProxyResources, ResourceSet
from mesh_pilot.xds.shared import NO_NAMES
from mesh_pilot.xds.subscription import Subscription
from mesh_pilot.xds.unserved import Unserved

REFERRERS = (LISTENER, ROUTE, VIRTUAL_HOST, EXTENSION)
"""Types whose resources name clusters."""

_MADE_FOR = {ROUTE: {ROUTE, VIRTUAL_HOST}}
"""The types of which there may be more to make when a client asks for other names of one: by default itself."""


@attrs.frozen
class Waiting:
    """What a stream waits for before it can go on; all empty when it waits only for the world to change."""

    node: bool = False
    """The first request, with the node."""
    acks: tuple[str, ...] = ()
    """Types whose last response was not answered."""
    endpoints: frozenset[str] = frozenset()
    """New clusters whose endpoints the client should ask for before it is sent listeners and routes. A client may never
    do that: end the waiting after a while with ``stop_warming``."""
    referrers: tuple[str, ...] = ()
    """Types that a reconnecting client should ask for before clusters that are gone are taken from it. Envoy asks for
    all it has at once: end the waiting soon with ``stop_rejoining``."""
    clusters: bool = False
    """Whether a State of the World client should ask for clusters before it is told that some whose endpoints it asks
    for have none. Envoy never does while it waits for those: end this waiting with ``stop_rejoining`` too."""


class Stream:
    """One stream of one client.

    Mutable state: who the client is, its resources, a subscription for each type it asked for, and the new clusters
    whose endpoints must be sent before anything names them.
    """

    def __init__(
        self,
        catalog: Catalog,
        variant: Variant,
        *,
        only: str | None = None,
        journal: Journal = NO_JOURNAL,
        wake: Callable[[], None] = lambda: None,
        admit: Callable[[Proxy], Proxy] = lambda proxy: proxy,
        bounds: Bounds = DEFAULT_BOUNDS,
    ) -> None:
        """``only`` is the type of a per-type service, None for ADS. ``wake`` is called when there may be news.

        ``admit`` sees the proxy before anything else: it may note its identity, or raise StreamError.
        """
        self._catalog = catalog
        self._variant = variant
        self._only = only
        self._journal = journal
        self._wake = wake
        self._admit = admit
        self._bounds = bounds
        self.proxy: Proxy | None = None
        """Who the client is; None before its first request."""
        self._resources: ProxyResources | None = None
        self._subscriptions: dict[str, Subscription] = {}
        self._newly_asked: set[str] = set()
        """Types of which the client asks for something that may not be made yet."""
        self._unserved = Unserved(variant)
        self._warming: set[str] = set()
        """New clusters that the client may not be able to use before it has their endpoints."""
        self._new_tables: set[str] = set()
        """Route tables sent anew before the client asked for virtual hosts."""
        self._is_reconnect = False
        """Whether the client has been here before, or at another replica."""
        self._is_rejoining = False
        """Whether such a client, whose clusters are known, has not asked for its listeners and routes yet."""
        self._is_past_unknown = False
        """Whether a State of the World client has clusters of which nothing is known yet."""
        self._placeholders: frozenset[str] = NO_NAMES
        """Clusters that such a client has, that are gone, and of which only the name is known."""
        self._is_late = False
        """Whether the client has had its time to ask for what it has."""

    def __repr__(self) -> str:
        who = self.proxy.id if self.proxy else "nobody yet"
        parts = [self._variant, who, *map(repr, self._subscriptions.values())]
        if self._warming:
            parts.append(f"{len(self._warming)} clusters warming")
        return f"<Stream {' '.join(parts)}>"

    def statistics(self) -> tuple[SubscriptionStatistics, ...]:
        """How each type is doing, in the order in which they are sent."""
        return tuple(self._subscriptions[t].statistics() for t in TYPES if t in self._subscriptions)

    def held(self, type_url: str) -> Mapping[str, Resource]:
        """What the client was sent of a type and should have now. The bytes are empty where it came with them."""
        subscription = self._subscriptions.get(type_url)
        return subscription.held.entries if subscription else {}

    def waiting_for(self) -> Waiting:
        awaited = (LISTENER, ROUTE, VIRTUAL_HOST) if self._is_rejoining and self._has_hosts() else (LISTENER, ROUTE)
        if self._is_past_unknown:
            awaited = (ENDPOINT, *awaited)
        return Waiting(
            node=self.proxy is None,
            acks=tuple(t for t, s in self._subscriptions.items() if s.outstanding is not None),
            endpoints=frozenset(self._warming) if self._must_warm() else frozenset(),
            referrers=tuple(t for t in awaited if self._is_rejoining and t not in self._subscriptions),
            clusters=not self._is_late and self._lacks_clusters(),
        )

    def stop_warming(self) -> None:
        """Go on although the client has not asked for the endpoints of new clusters."""
        self._warming.clear()

    def stop_rejoining(self) -> None:
        """Go on although a reconnecting client has not asked for clusters, listeners or routes."""
        self._is_rejoining = False
        self._is_late = True

    def close(self) -> None:
        """The stream is over; nothing wakes it any more."""
        for subscription in self._subscriptions.values():
            if subscription.whole_state and subscription.wildcard and subscription.is_settled:
                remember(subscription.held)
        if self._resources is not None:
            self._resources.close()
            self._resources = None
        self._subscriptions.clear()

    # -- requests

    def work(self) -> Iterator[None]:
        """Make what the client asks for, one resource a step, so that others get their turn in between.

        May be left at any step, and begun again: what was made is not made twice. ``next_response`` does at once what
        was left.
        """
        for type_url in TYPES:
            subscription = self._subscriptions.get(type_url) if type_url in self._newly_asked else None
            source = self._resources.set(type_url) if subscription and self._resources else None
            if subscription is not None and source is not None:
                yield from source.work(subscription.names)
            self._newly_asked.discard(type_url)

    @property
    def is_newly_asked(self) -> bool:
        """Whether ``work`` may have something to do."""
        return bool(self._newly_asked)

    def answers(self, request: Request) -> bool:
        """Whether a request answers the last response of its type: such a one costs us no more than we chose to send.

        Call it before ``on_request``.
        """
        subscription = self._subscriptions.get(self._only or request.type_url)
        outstanding = subscription.outstanding if subscription else None
        return outstanding is not None and request.nonce == outstanding.nonce

    def on_request(self, request: Request) -> None:
        """Take a request in. Raises StreamError when it must end the stream."""
        resources = self._resources or self._identify(request.node)
        self._check_node(request.node)
        type_url = self._type_of(request.type_url)
        source = resources.set(type_url) if type_url in TYPES else None
        if source is None:
            if self._unserved.on_request(request, type_url):
                self._journal.unserved(type_url)
            return
        subscription = self._subscriptions.get(type_url)
        first = subscription is None
        if subscription is None:
            subscription = self._subscriptions[type_url] = Subscription(type_url, self._variant, self._bounds)
        names = subscription.names
        if isinstance(request, DeltaRequest):
            self._on_delta(subscription, request, source, first)
        else:
            self._on_sotw(subscription, request, source, first)
        if first or subscription.names is not names:
            self._newly_asked |= _MADE_FOR.get(type_url, {type_url})

    def _identify(self, node: Node | None) -> ProxyResources:
        if node is None:
            raise StreamError(
                Code.INVALID_ARGUMENT, "the first request of a stream must have a node, and this has none"
            )
        try:
            proxy = parse_proxy(
                node.id, node.metadata, locality=node.locality, cluster=node.cluster, version=node.version
            )
        except NodeError as error:
            raise StreamError(Code.INVALID_ARGUMENT, str(error)) from error
        proxy = attrs.evolve(proxy, incremental=self._variant is Variant.DELTA and self._only is None)
        proxy = self.proxy = self._admit(proxy)
        self._resources = self._catalog.open(proxy)
        self._resources.watch(self._wake, self._names)
        self._journal.connected(proxy)
        return self._resources

    def _names(self, type_url: str) -> frozenset[str]:
        """What the client asks for by name; for virtual hosts, the tables that it asks for."""
        subscription = self._subscriptions.get(ROUTE if type_url == VIRTUAL_HOST else type_url)
        return subscription.names if subscription else frozenset()

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

    def _on_sotw(self, subscription: Subscription, request: SotwRequest, source: ResourceSet, first: bool) -> None:
        if subscription.nonce and request.nonce and request.nonce != subscription.nonce:
            subscription.drop_by_stale(request.names)
            return
        if subscription.nonce and request.nonce:
            self._on_answer(subscription, request.error)
        subscription.want(request.names)
        if first and request.version and subscription.whole_state and subscription.wildcard:
            subscription.refresh(source)
            is_known = subscription.take_back(request.version)
            self._note_reconnect(subscription, knows_past=is_known)

    def _on_delta(self, subscription: Subscription, request: DeltaRequest, source: ResourceSet, first: bool) -> None:
        if request.nonce and request.nonce == subscription.nonce:
            self._on_answer(subscription, request.error)
        subscription.change(request.subscribe, request.unsubscribe, first=first)
        if first and request.initial_versions:
            self._note_reconnect(subscription, knows_past=True)
            subscription.refresh(source)
            subscription.believe(self._believable(subscription, request), self._marking(subscription))

    def _believable(self, subscription: Subscription, request: DeltaRequest) -> Mapping[str, str]:
        """What a client has of what it says. It also names virtual hosts of tables that it has let go of since."""
        versions, new = request.initial_versions, self._new_tables
        if not _is(subscription, VIRTUAL_HOST) or not new:
            return versions
        self._new_tables = set()
        return {name: version for name, version in versions.items() if table_of(name) not in new}

    def _note_reconnect(self, subscription: Subscription, *, knows_past: bool) -> None:
        self._is_reconnect = True
        if _is(subscription, CLUSTER) and self._only is None:
            self._is_rejoining = True
            self._is_past_unknown = not knows_past

    def _on_answer(self, subscription: Subscription, error: str | None) -> None:
        nonce, version = subscription.nonce, subscription.version
        if error is None:
            if subscription.ack():
                self._journal.acked(subscription.type_url, nonce, version)
            return
        refused = subscription.nack()
        if _is(subscription, CLUSTER):
            self._warming.clear()
        assert self.proxy is not None
        self._journal.rejected(_nack(self.proxy, subscription.type_url, nonce, version, error, refused))

    # -- responses

    def next_response(self, hold: Collection[str] = ()) -> Response | None:
        """What to send now, None for nothing (until a request comes or the stream is woken).

        The response counts as sent when it is returned. Types in ``hold`` are left for later.
        """
        for type_url in TYPES:
            subscription = self._subscriptions.get(type_url)
            if subscription is None or subscription.outstanding is not None or type_url in hold:
                continue
            plan = self._plan(subscription)
            if plan is None or (type_url in REFERRERS and (self._clusters_unsent() or self._must_warm())):
                continue
            if type_url == VIRTUAL_HOST and self._are_tables_unsent():
                continue
            if type_url == CLUSTER and self._is_past_unknown:
                continue
            if type_url == LISTENER and subscription.adds(plan) and self._must_update_tables(hold):
                continue
            return self._send(subscription, plan)
        return self._unserved.next_response()

    def _send(self, subscription: Subscription, plan: Plan) -> Response:
        if _is(subscription, CLUSTER):
            self._follow_clusters(subscription, plan)
        if _is(subscription, ROUTE) and self._variant is Variant.DELTA:
            self._follow_tables(subscription, plan)
        response = subscription.send(plan, self._marking(subscription))
        self._journal.sent(response)
        if self._placeholders and _is(subscription, CLUSTER):
            self._placeholders &= subscription.held.names
        return response

    def _marking(self, subscription: Subscription) -> State | None:
        """Endpoints are marked with the version of their cluster. A client that had a changed cluster but lost the
        stream before the endpoints that follow it comes back with the mark of the cluster before, and gets them."""
        clusters = self._subscriptions.get(CLUSTER)
        is_marked = clusters is not None and self._variant is Variant.DELTA and _is(subscription, ENDPOINT)
        return clusters.held if is_marked and clusters is not None else None

    def _plan(self, subscription: Subscription) -> Plan | None:
        self._refresh(subscription)
        if _is(subscription, CLUSTER):
            if self._is_past_unknown:
                self._presume_clusters(subscription)
            unsettled = _once(self._are_referrers_unsettled)
            return subscription.plan(keep=lambda name: unsettled())
        if _is(subscription, ENDPOINT):
            return subscription.plan(keep=self._keep_endpoints, stand_in=self._stand_in())
        return subscription.plan()

    def _refresh(self, subscription: Subscription) -> None:
        assert self._resources is not None
        subscription.refresh(self._resources.set(subscription.type_url))

    def _presume_clusters(self, clusters: Subscription) -> None:
        """Once a client whose clusters are not known has asked for endpoints, or has had its time to: what it asks for
        and what is not there any more is a cluster that it has, and may need a little longer."""
        endpoints = self._subscriptions.get(ENDPOINT)
        if endpoints is None and self._is_rejoining:
            return
        self._is_past_unknown = False
        if endpoints is not None:
            gone = sorted(clusters.absent(endpoints.names))
            self._placeholders = frozenset(gone[:MAX_PLACEHOLDERS])
            clusters.presume(map(placeholder, self._placeholders))

    def _follow_clusters(self, clusters: Subscription, plan: Plan) -> None:
        """Envoy waits for the endpoints of every cluster that is new or changed, even if they are as before."""
        touched = plan.put_names.union(clusters.in_doubt)
        endpoints = self._subscriptions.get(ENDPOINT)
        if endpoints is not None:
            endpoints.ask_again(touched)
        if clusters.wildcard and (clusters.version or self._is_reconnect):
            self._warming.update(touched - clusters.held.names, touched.intersection(clusters.in_doubt))

    def _follow_tables(self, routes: Subscription, plan: Plan) -> None:
        """A table that is new to the client has none of its virtual hosts, whatever was sent of them before."""
        new = {resource.name for resource in plan.puts if routes.is_new(resource.name)}
        hosts = self._subscriptions.get(VIRTUAL_HOST)
        if hosts is None:
            self._new_tables |= new
        elif new:
            hosts.ask_again(name for name in hosts.held.entries if table_of(name) in new)

    def _are_tables_unsent(self) -> bool:
        """Whether there are route tables to send first: virtual hosts of a table that is not there are lost."""
        routes = self._subscriptions.get(ROUTE)
        return routes is not None and self._plan(routes) is not None

    def _must_update_tables(self, hold: Collection[str]) -> bool:
        """Whether the client may have route tables that are not up to date, and that are not on hold."""
        for type_url in (ROUTE, VIRTUAL_HOST):
            subscription = self._subscriptions.get(type_url)
            if subscription is None or type_url in hold or not (subscription.version or self._is_reconnect):
                continue
            if self._plan(subscription) is not None:
                return True
        return False

    def _has_hosts(self) -> bool:
        """Whether the client gets virtual hosts as resources of their own."""
        is_delta = self._variant is Variant.DELTA
        return is_delta and self._resources is not None and self._resources.set(VIRTUAL_HOST) is not None

    def _clusters_unsent(self) -> bool:
        """Whether there are clusters that the client was not sent, which a listener or route may name."""
        clusters = self._subscriptions.get(CLUSTER)
        return clusters is not None and clusters.wildcard and self._plan(clusters) is not None

    def _must_warm(self) -> bool:
        """Whether the client gets endpoints from us and lacks those of a new cluster."""
        clusters, endpoints = self._subscriptions.get(CLUSTER), self._subscriptions.get(ENDPOINT)
        if not self._warming or clusters is None or endpoints is None:
            return False
        self._refresh(endpoints)
        self._warming = {n for n in self._warming if clusters.is_current(n) and endpoints.lacks(n)}
        return bool(self._warming)

    def _are_referrers_unsettled(self) -> bool:
        """Whether listeners or routes may still name a cluster that is gone, so that it must stay."""
        return bool(self.waiting_for().referrers) or any(self._is_unsettled(type_url) for type_url in REFERRERS)

    def _is_unsettled(self, type_url: str) -> bool:
        subscription = self._subscriptions.get(type_url)
        return subscription is not None and (not subscription.is_settled or self._plan(subscription) is not None)

    def _keep_endpoints(self, name: str) -> bool:
        """Endpoints that are gone stay while the client still has their cluster, if that is going too."""
        clusters = self._subscriptions.get(CLUSTER)
        if clusters is None:
            return False
        self._refresh(clusters)
        return clusters.is_retiring(name)

    def _lacks_clusters(self) -> bool:
        """Whether a client asks for endpoints of clusters that it does not ask for, which are not there.

        It may wait for them since its last stream broke, and until it has them for everything else."""
        endpoints = self._subscriptions.get(ENDPOINT)
        is_sotw_ads = self._variant is Variant.SOTW and self._only is None
        return is_sotw_ads and endpoints is not None and CLUSTER not in self._subscriptions and endpoints.is_missing_any

    def _stand_in(self) -> Callable[[str], Resource | None]:
        """What a client gets for endpoints that are not there. Where a placeholder stands for their cluster it gets
        nothing while it may need that: it has the old cluster as long as it waits for the endpoints of the new one."""
        if not self._placeholders:
            return self._last_endpoints
        is_needed = _once(self._are_referrers_unsettled)
        return lambda name: None if name in self._placeholders and is_needed() else self._last_endpoints(name)

    def _last_endpoints(self, name: str) -> Resource | None:
        """What a client gets that asks for the endpoints of a cluster which it has and which is gone meanwhile: those
        it had, or none. It waits for them before it accepts the clusters, and then learns that this one is gone."""
        clusters = self._subscriptions.get(CLUSTER)
        is_awaited = self._is_late if clusters is None else name in clusters.held.entries
        if not is_awaited:
            return None
        held = self.held(ENDPOINT).get(name)
        return held if held is not None and held.body else no_endpoints(name)


def _is(subscription: Subscription, type_url: str) -> bool:
    return subscription.type_url == type_url


def _nack(proxy: Proxy, type_url: str, nonce: str, version: str, reason: str, refused: Response | None) -> Nack:
    resources = refused.resources if refused else ()
    guilty = resources if len(resources) == 1 else [r for r in resources if r.name and r.name in reason]
    names = tuple(r.name for r in guilty if not any(r.name != o.name and r.name in o.name for o in guilty))
    configs = dict.fromkeys(key for r in guilty if r.name in names for key in r.configs)
    return Nack(proxy, type_url, nonce, version, reason, names, tuple(configs))


def _once(ask: Callable[[], bool]) -> Callable[[], bool]:
    """A question that is asked when it is needed, and then once. It is made for every push and seldom asked:
    ``functools.cache`` takes ten times as long to make."""
    answers: list[bool] = []

    def answer() -> bool:
        if not answers:
            answers.append(ask())
        return answers[0]

    return answer
