"""The order between the types of one stream: make before break.

The rules, as in Envoy's "Eventual consistency considerations" and decision 003:

* Types go in the order of ``RESOURCE_TYPES``: clusters, endpoints, listeners, routes, ...
* *Make.* Listeners and routes wait until the clusters that they may name were sent. Where a new cluster gets its
  endpoints from us they wait for those too: Envoy warms the cluster until it has them, and answers 503 until then.
* *Break.* A cluster that is gone stays until listeners and routes that no longer name it were accepted. Its endpoints
  stay as long as the cluster.
* *Trials.* While quarantine looks for what the client refuses, not all that belongs together is withheld together. So
  clusters that are gone stay, unless the client never had them: its routes may be those of before. And while it is
  clusters or endpoints that were refused, listeners and routes wait.
* Endpoints are sent again with their cluster, changed or not: Envoy waits for them whenever it gets a cluster.
* A listener that is new to the client comes after the route tables that it requests already: Envoy keeps the table of a
  listener that is gone while that drains, and a listener that comes back takes it as it is.
* Virtual hosts that are separate resources go after their route table, and all of them whenever the table is new to
  the client: Envoy subscribes to them once, for all its tables, drops those of a table that it does not have, and does
  not say when it has it again (Envoy: VHDS over ADS). They stay as long as it requests their table, also where that is
  gone: Envoy keeps a table as it is for the connections of a listener that drains.

A client that reconnects (decision 011) has all of this already, so nothing may be taken from it before it has told what
it has. It gets a short grace period to request its listeners and routes again; then clusters that are gone are
removed. A State of the World client whose version is unknown does not tell which clusters it has, but it requests their
endpoints. Clusters that are gone and whose endpoints it requests are sent as placeholders, until it has routes that do
not name them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from mesh_pilot.engine.patched import flat
from mesh_pilot.engine.snapshots import NO_NAMES, Snapshot, absent, without
from mesh_pilot.model.proxy import LOCAL_CLUSTER
from mesh_pilot.model.resource import (
    CLUSTER,
    ENDPOINT,
    LISTENER,
    RESOURCE_TYPES,
    ROUTE,
    VIRTUAL_HOST,
    Resource,
    table_of,
)
from mesh_pilot.xds.ads.messages import DeltaRequest, PresentedVersions, Variant
from mesh_pilot.xds.ads.pending_response import PendingResponse
from mesh_pilot.xds.ads.resources import Catalog, ProxyResources, TypeResources
from mesh_pilot.xds.ads.subscription import Subscription

REFERRERS = tuple(url for url, resource_type in RESOURCE_TYPES.items() if resource_type.refers_to_clusters)
"""Types whose resources name clusters."""

MAX_PLACEHOLDERS = 1000
"""The limit for one client, which may request any number of names; beyond it, clusters that are gone are removed at
once."""


class PushOrder:
    """The order in which one stream sends.

    Mutable state: the clusters and route tables that something else has to wait for, and how far a reconnecting client
    has come.
    """

    def __init__(
        self,
        variant: Variant,
        catalog: Catalog,
        subscriptions: Mapping[str, Subscription],
        *,
        is_aggregated: bool,
        trial_of: Callable[[], str],
    ) -> None:
        """``subscriptions`` are those of the stream, which adds to them. ``trial_of`` gives the type
        of which quarantine looks for what the client refuses, empty if it does not.
        """
        self.resources: ProxyResources | None = None
        """The client's resources; None before it is known, and at the end."""
        self._variant = variant
        self._catalog = catalog
        self._subscriptions = subscriptions
        self._is_aggregated = is_aggregated
        self._trial_of = trial_of
        self._warming = NO_NAMES
        """New clusters whose endpoints the client was not sent yet."""
        self._new_tables = NO_NAMES
        """Route tables that were sent again before the client subscribed to virtual hosts."""
        self._is_reconnect = False
        """The client was connected before, here or to another replica."""
        self._reconnect_grace = False
        """Such a client has clusters, and may not have requested its listeners and routes yet."""
        self._grace_over = False
        """The client has had its time to request what it has."""
        self._has_unknown_clusters = False
        """A State of the World client came back with a version of clusters that is not known."""
        self._early_versions = PresentedVersions()
        """Versions of endpoints that a Delta client presented before its clusters, which say what they are worth."""
        self._placeholders = NO_NAMES
        """Clusters of such a client that are gone and that it keeps for now."""
        self._brought = NO_NAMES
        """Clusters that a client is known to have come back with, and that it was not sent since: it has endpoints for
        them, and is not waiting for any."""

    @property
    def warming(self) -> int:
        """The number of clusters whose endpoints listeners and routes wait for."""
        return len(self._warming)

    def source_of(self, type_url: str) -> TypeResources | None:
        """The client's resources of a type."""
        return self.resources.set(type_url) if self.resources is not None else None

    # -- what the stream waits for

    @property
    def awaits_requests(self) -> bool:
        """True while the client should request something first."""
        # Asked twice for each push: what is not so mostly is not asked.
        if (self._warming and self._must_warm()) or (self._reconnect_grace and self.awaited_referrers()):
            return True
        return CLUSTER not in self._subscriptions and self.awaits_clusters()

    def awaited_endpoints(self) -> frozenset[str]:
        return self._warming if self._must_warm() else NO_NAMES

    def awaited_referrers(self) -> tuple[str, ...]:
        """Types that a reconnecting client should request before anything is taken from it."""
        if not self._reconnect_grace:
            return ()
        awaited = [LISTENER, ROUTE]
        if self._variant is Variant.DELTA and self.source_of(VIRTUAL_HOST) is not None:
            awaited.append(VIRTUAL_HOST)
        if self._has_unknown_clusters:
            awaited.insert(0, ENDPOINT)
        return tuple(t for t in awaited if t not in self._subscriptions)

    def awaits_clusters(self) -> bool:
        """True if a client requests endpoints of clusters that do not exist, before it subscribes to clusters.

        Since its last stream broke it may wait for those endpoints, and until it has them for everything else. True
        also for a Delta client that comes back and requests endpoints first, as one with a local cluster does.
        """
        endpoints = self._subscriptions.get(ENDPOINT)
        if self._must_hold_endpoints():
            return True
        is_possible = self._variant is Variant.SOTW and self._is_aggregated and not self._grace_over
        if not is_possible or endpoints is None or CLUSTER in self._subscriptions:
            return False
        self._refresh(endpoints)
        return endpoints.is_missing_any

    def _must_hold_endpoints(self) -> bool:
        return bool(self._early_versions) and CLUSTER not in self._subscriptions

    def end_warming(self) -> None:
        """Go on although the client has not requested the endpoints of new clusters."""
        self._warming = NO_NAMES

    def end_reconnect_grace(self) -> None:
        """Go on although a reconnecting client has not requested clusters, listeners or routes."""
        self._reconnect_grace = False
        self._grace_over = True
        self._early_versions = PresentedVersions()

    # -- what the client says

    def note_reconnect(self, subscription: Subscription, *, is_state_known: bool) -> None:
        """The client's first request of a type tells that it has resources of it."""
        self._is_reconnect = True
        if subscription.type_url == CLUSTER and self._is_aggregated:
            self._reconnect_grace = True
            self._has_unknown_clusters = not is_state_known
            if self._variant is Variant.SOTW:
                self._brought = subscription.client_state.names

    def seed(self, subscription: Subscription, request: DeltaRequest) -> None:
        """A Delta client comes back: it has what its first request of a type presents."""
        versions = self.presented_versions(subscription, request)
        subscription.seed_from_versions(versions, self.clusters_of(subscription))
        endpoints = self._subscriptions.get(ENDPOINT)
        if subscription.type_url == ENDPOINT and self._is_aggregated and CLUSTER not in self._subscriptions:
            self._early_versions = PresentedVersions() if self._grace_over else versions
        elif subscription.type_url == CLUSTER and endpoints is not None and self._early_versions:
            self._refresh(endpoints)
            endpoints.seed_from_versions(self._early_versions, self.clusters_of(endpoints))
            self._early_versions = PresentedVersions()

    def presented_versions(self, subscription: Subscription, request: DeltaRequest) -> PresentedVersions:
        """The versions that a client has of those it presents: also virtual hosts of tables that it dropped since."""
        versions, new = request.initial_versions, self._new_tables
        if subscription.type_url != VIRTUAL_HOST or not new:
            return versions
        self._new_tables = NO_NAMES
        return PresentedVersions({name: had for name, had in versions.items() if table_of(name) not in new})

    def note_nack(self, subscription: Subscription) -> None:
        if subscription.type_url == CLUSTER:
            self._warming = NO_NAMES

    # -- what to send

    def pending(self, subscription: Subscription) -> PendingResponse | None:
        """The next response of a type, whether or not it has to wait for other types."""
        self._refresh(subscription)
        if subscription.is_even:
            return None
        if subscription.type_url == CLUSTER:
            if self._has_unknown_clusters:
                self._assume_clusters(subscription)
            unsettled = _once(self._are_referrers_unsettled)
            return subscription.pending(
                must_stay=lambda name: unsettled() and not (self._trial_of() and subscription.has_never_had(name))
            )
        if subscription.type_url == ENDPOINT:
            return subscription.pending(must_stay=self._is_cluster_retiring, stand_in=self._stand_in())
        if subscription.type_url == VIRTUAL_HOST:
            return subscription.pending(must_stay=self._is_of_gone_table)
        return subscription.pending()

    def must_wait(self, subscription: Subscription, pending: PendingResponse, on_hold: Collection[str]) -> bool:
        """True if a response has to wait for others. It does not wait for types ``on_hold``."""
        type_url = subscription.type_url
        if type_url in REFERRERS and (
            self._trial_of() in (CLUSTER, ENDPOINT) or self._are_clusters_unsent() or self._must_warm()
        ):
            return True
        if type_url == VIRTUAL_HOST:
            return self._has_pending(ROUTE)  # virtual hosts of a table that the client does not have are lost
        if type_url == CLUSTER:
            return self._has_unknown_clusters
        if type_url == ENDPOINT:
            return self._must_hold_endpoints()
        return type_url == LISTENER and subscription.adds(pending) and self._are_tables_outdated(on_hold)

    def note_sending(self, subscription: Subscription, pending: PendingResponse) -> None:
        """Take note of what has to follow a response. Call it before the subscription's ``send``."""
        if subscription.type_url == CLUSTER:
            self._follow_clusters(subscription, pending)
        if subscription.type_url == ROUTE and self._variant is Variant.DELTA:
            self._follow_tables(subscription, pending)

    def note_sent(self, subscription: Subscription) -> None:
        if self._placeholders and subscription.type_url == CLUSTER:
            self._placeholders &= subscription.client_state.names

    def clusters_of(self, subscription: Subscription) -> Snapshot | None:
        """The clusters whose versions the versions of endpoints are suffixed with, None for other types.

        A client that had a changed cluster, but lost the stream before the endpoints that follow it, comes back with
        the suffix of the cluster before, and gets them.
        """
        clusters = self._subscriptions.get(CLUSTER)
        is_suffixed = self._variant is Variant.DELTA and subscription.type_url == ENDPOINT
        return clusters.client_state if clusters is not None and is_suffixed else None

    def _refresh(self, subscription: Subscription) -> None:
        if subscription.is_stale:
            subscription.refresh(self.source_of(subscription.type_url))

    # -- make

    def _follow_clusters(self, clusters: Subscription, pending: PendingResponse) -> None:
        """Envoy waits for the endpoints of every cluster that is new or changed, even if they are as before."""
        touched = pending.put_names.union(clusters.nacked_names)
        self._brought = without(self._brought, touched)
        endpoints = self._subscriptions.get(ENDPOINT)
        if endpoints is not None:
            endpoints.request_again(touched)
        # On the first connect nothing serves yet, so that nothing has to be kept from breaking.
        if clusters.wildcard and (clusters.last.version or self._is_reconnect):
            new = absent(touched, clusters.client_state.entries)
            self._warming = self._warming.union(new, touched.intersection(clusters.nacked_names))

    def _follow_tables(self, routes: Subscription, pending: PendingResponse) -> None:
        """A table that is new to the client has none of its virtual hosts, whatever was sent of them before."""
        new = {resource.name for resource in pending.puts if routes.is_new(resource.name)}
        hosts = self._subscriptions.get(VIRTUAL_HOST)
        if hosts is None:
            self._new_tables |= new
        elif new:
            hosts.request_again(name for name in hosts.client_state.entries if table_of(name) in new)

    def _are_clusters_unsent(self) -> bool:
        """True if there are clusters that the client was not sent and that a listener or route may name."""
        clusters = self._subscriptions.get(CLUSTER)
        return clusters is not None and clusters.wildcard and self.pending(clusters) is not None

    def _must_warm(self) -> bool:
        """True if the client gets endpoints from us and lacks those of a new cluster."""
        if not self._warming:
            return False
        clusters, endpoints = self._subscriptions.get(CLUSTER), self._subscriptions.get(ENDPOINT)
        source = self.source_of(ENDPOINT)
        if source is None or clusters is None or endpoints is None:
            return False
        self._refresh(endpoints)
        warm = [
            name
            for name in self._warming
            if not (clusters.is_current(name) and source.get(name) is not None and endpoints.lacks(name))
        ]
        self._warming = without(self._warming, frozenset(warm))
        return bool(self._warming)

    def _are_tables_outdated(self, on_hold: Collection[str]) -> bool:
        """True if the client may have route tables that are not up to date, and that are not on hold."""
        return any(
            self._has_pending(type_url)
            for type_url in (ROUTE, VIRTUAL_HOST)
            if type_url not in on_hold and self._may_have_sent(type_url)
        )

    def _may_have_sent(self, type_url: str) -> bool:
        subscription = self._subscriptions.get(type_url)
        return subscription is not None and bool(subscription.last.version or self._is_reconnect)

    def _has_pending(self, type_url: str) -> bool:
        subscription = self._subscriptions.get(type_url)
        return subscription is not None and self.pending(subscription) is not None

    # -- break

    def _are_referrers_unsettled(self) -> bool:
        """True if listeners or routes may still name a cluster that is gone, so that it must stay."""
        return bool(self._trial_of() or self.awaited_referrers()) or any(map(self._is_unsettled, REFERRERS))

    def _is_unsettled(self, type_url: str) -> bool:
        subscription = self._subscriptions.get(type_url)
        return subscription is not None and (not subscription.is_settled or self.pending(subscription) is not None)

    def _is_cluster_retiring(self, name: str) -> bool:
        """True if the client still has a cluster that is to be removed: its endpoints stay until then."""
        clusters = self._subscriptions.get(CLUSTER)
        if clusters is None:
            return False
        self._refresh(clusters)
        return clusters.is_retiring(name)

    def _is_of_gone_table(self, host: str) -> bool:
        """True for a virtual host of a table that is gone, while the client has it for connections that are left."""
        routes = self._subscriptions.get(ROUTE)
        if routes is None:
            return False
        self._refresh(routes)
        table = table_of(host)
        return routes.is_subscribed(table) and bool(routes.absent(frozenset((table,))))

    # -- clusters that are gone and that a reconnecting client may have

    def _assume_clusters(self, clusters: Subscription) -> None:
        """Once a client with unknown clusters has requested endpoints, or has had its time to: what it requests and
        what does not exist any more is a cluster that it has, and may need a little longer. The bootstrap's stays."""
        endpoints = self._subscriptions.get(ENDPOINT)
        if endpoints is None and self._reconnect_grace:
            return
        self._has_unknown_clusters = False
        if endpoints is not None:
            gone = sorted(clusters.absent(flat(endpoints.names) - {LOCAL_CLUSTER}))
            self._placeholders = frozenset(gone[:MAX_PLACEHOLDERS])
            clusters.assume(map(self._catalog.placeholder_cluster, self._placeholders))

    def _stand_in(self) -> Callable[[str], Resource | None]:
        """The answer to a request for endpoints that do not exist.

        For a placeholder cluster it gets nothing while that is needed: it has the old cluster as long as it waits for
        the endpoints of the new one. Neither does a client that came back for a cluster that it brought: it has the
        endpoints of before, and routes to them. (One that it was sent since it waits for, and for that with everything
        else: not to answer would be forever.)
        """
        if not self._placeholders and not self._brought:
            return self._last_endpoints
        is_needed = _once(self._are_referrers_unsettled)

        def stand_in(name: str) -> Resource | None:
            is_kept = name in self._placeholders or (name in self._brought and self._is_cluster_retiring(name))
            return None if is_kept and is_needed() else self._last_endpoints(name)

        return stand_in

    def _last_endpoints(self, name: str) -> Resource | None:
        """The answer to a request for endpoints of a cluster that the client has and that is gone.

        Those it had, or none. It waits for them before it accepts the clusters, and then learns that this one is gone.
        """
        clusters, endpoints = self._subscriptions.get(CLUSTER), self._subscriptions.get(ENDPOINT)
        is_awaited = self._grace_over if clusters is None else name in clusters.client_state.entries
        if not is_awaited:
            return None
        last = endpoints.client_state.entries.get(name) if endpoints is not None else None
        return last if last is not None and last.body else self._catalog.no_endpoints(name)


def _once(ask: Callable[[], bool]) -> Callable[[], bool]:
    """A question that is asked when it is needed, and then once. It is made for every push and seldom asked:
    ``functools.cache`` takes ten times as long to make."""
    answers: list[bool] = []

    def answer() -> bool:
        if not answers:
            answers.append(ask())
        return answers[0]

    return answer
