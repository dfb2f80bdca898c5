"""The record of what connected proxies were sent, accepted and refused, for metrics, the CLI and the debug pages.

Nothing here decides anything. Times are added here because streams have no clock.

It is written for every push and every answer, and read by people, now and then. So writing is an addition to a counter
or a field of the stream's own record, with no lock, no event and no list of listeners; whatever has a size or an order
is put together when it is read. Totals outlive their streams and stay with the registry; all else ends with the stream,
so that a fleet that reconnects leaves nothing behind. Kept beyond are only refusals, the latest of all streams (a proxy
that restarts because of one is gone before anybody looks), and which proxies have left and are not back, the latest.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from datetime import UTC, datetime

import attrs

from mesh_pilot.model.history import ProxyRevision, RevisionNack, RevisionOutcome
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.resource import ENVOY_TYPES, RESOURCE_TYPES, Resource
from mesh_pilot.model.warming import WarmingResource
from mesh_pilot.xds.ads.known_proxies import KnownProxies
from mesh_pilot.xds.ads.messages import Nack, Response, SubscriptionStatistics, Variant
from mesh_pilot.xds.ads.observers import PushObserver
from mesh_pilot.xds.ads.proxy_names import MeantProxies, machine_of, meant_by
from mesh_pilot.xds.ads.revisions import Revisions
from mesh_pilot.xds.ads.statistics import PushTimes, XdsStatistics, XdsTotals
from mesh_pilot.xds.ads.stream import Stream, Waiting
from mesh_pilot.xds.ads.warming import Warming

MAX_NACKS_PER_STREAM = 20
"""The latest NACKs of each stream that are recorded."""

MAX_RECENT_NACKS = 200
"""The latest NACKs of all streams that are recorded, including streams that have ended."""

MAX_UNSERVED_TYPES = 100
"""Types not served that are remembered, so that each is logged once."""


@attrs.frozen
class NackRecord:
    """A NACK and when it came."""

    at: datetime
    nack: Nack


@attrs.frozen
class TypeStatus:
    """One type of one stream."""

    subscription: SubscriptionStatistics
    """The subscription with the versions and nonces that were sent and accepted."""
    sent_at: datetime | None = None
    acked_at: datetime | None = None
    """When a response was last accepted."""
    pushes: int = 0
    rejects: int = 0
    bytes_sent: int = 0

    @property
    def type_url(self) -> str:
        return self.subscription.type_url

    @property
    def is_synced(self) -> bool:
        """True if the client has accepted the last response."""
        return self.subscription.nonce == self.subscription.acked_nonce


@attrs.frozen
class ConnectionStatus:
    """One stream of one proxy."""

    id: int
    """The stream's number, counted from 1 since the start."""
    proxy: Proxy | None
    """None until its first request."""
    peer: str
    """Address of the other side."""
    variant: Variant
    connected_at: datetime
    types: tuple[TypeStatus, ...]
    waiting: Waiting
    nacks: tuple[NackRecord, ...]
    """The latest last."""
    position: ProxyRevision
    """The revision that it is at."""
    warming: tuple[Warming, ...] = ()
    """The resources that it has accepted, and does not use though it has had the time."""
    certificate_end: datetime | None = None
    """The end of the certificate that it has shown; None without one."""

    @property
    def agent(self) -> str:
        """The version of the agent whose own stream this is; empty for a stream of a proxy."""
        return self.proxy.agent if self.proxy is not None else ""


@attrs.frozen
class TypeDump:
    """The resources of a type that a proxy was sent."""

    type_url: str
    version: str
    """The version of the last response."""
    is_acked: bool
    """True if that response was accepted."""
    resources: tuple[Resource, ...]
    """Resources by name. Empty bytes mean that the proxy brought a version that this server has never seen."""


@attrs.define(eq=False)
class _TypeRecord:
    """One type of one stream, as `TypeStatus` shows it. Mutable."""

    sent_at: datetime | None = None
    acked_at: datetime | None = None
    pushes: int = 0
    rejects: int = 0
    bytes_sent: int = 0


class Connection:
    """The record of one stream: responses and answers, with times."""

    def __init__(
        self,
        registry: StatusRegistry,
        number: int,
        variant: Variant,
        peer: str,
        tls_since: datetime | None,
        certificate_end: datetime | None,
    ) -> None:
        self._registry = registry
        self.id = number
        self.variant = variant
        self.peer = peer
        self.tls_since = tls_since
        self.certificate_end = certificate_end
        """The end of the certificate that the client has shown; None without one."""
        self.connected_at = registry.now()
        self.stream: Stream | None = None
        self.proxy: Proxy | None = None
        self.is_agent = False
        """True for the stream that an agent has for itself."""
        self.nacks: tuple[NackRecord, ...] = ()
        self.warming: tuple[Warming, ...] = ()
        """The resources that it has accepted, and does not use though it has had the time."""
        self.report: tuple[WarmingResource, ...] | None = None
        """The latest report of an agent on what warms at its proxy; None before the first."""
        self.look_again: Callable[[], None] = _nothing
        """Called when its agent has reported."""
        self.follower = registry.revisions.follow()
        self._types: defaultdict[str, _TypeRecord] = defaultdict(_TypeRecord)

    def connected(self, proxy: Proxy) -> None:
        """The first request has said whose stream it is."""
        self.proxy = proxy
        self.is_agent = bool(proxy.agent)
        if proxy.agent:
            self._registry.agents[_owner(proxy)] = self
        else:
            self._registry.known.came(self.id, proxy)
        for notice in self._registry.newcomers:
            notice(proxy)
        if proxy.agent:
            self.follower.left()
            self.follower = Revisions().follow()  # no revision waits for an agent

    def sent(self, response: Response) -> None:
        record = self._types[response.type_url]
        record.sent_at = self._registry.now()
        record.pushes += 1
        self._registry.totals.pushes[response.type_url] += 1

    def sending(self, response: Response, size: int, began: float) -> None:
        """A response of so many bytes, on which work began then, is about to leave."""
        revision = self.follower.sent(size)
        observer = self._registry.observer
        if observer is not None and revision and self.proxy is not None:
            resources = len(response.resources)
            observer.pushing(
                revision, self.id, self.proxy.name, response.type_url, resources=resources, size=size, began=began
            )

    def written(self, response: Response, size: int, at: float) -> None:
        """The response has left for the network, as so many bytes."""
        self._types[response.type_url].bytes_sent += size
        self._registry.totals.bytes_sent[response.type_url] += size
        if self._registry.observer is not None:
            self._registry.observer.written(self.id, response.type_url, at)

    def acked(self, type_url: str, nonce: str, version: str) -> None:
        self._types[type_url].acked_at = self._registry.now()
        self._registry.totals.acks[type_url] += 1
        self.follower.accepted(type_url)

    def rejected(self, nack: Nack) -> None:
        record = NackRecord(self._registry.now(), nack)
        self.nacks = (*self.nacks, record)[-MAX_NACKS_PER_STREAM:]
        self._types[nack.type_url].rejects += 1
        self._registry.rejected(record)
        self.follower.refused(_revision_nack(record), nack.type_url)

    def warms(self, report: tuple[WarmingResource, ...]) -> None:
        """An agent reports what warms at its proxy."""
        before, self.report = self.report, report
        if self.proxy is None or not self.proxy.agent or report == before:
            return
        for other in self._registry.proxies():
            if other.proxy is not None and _owner(other.proxy) == _owner(self.proxy):
                other.look_again()

    def agents_report(self) -> tuple[WarmingResource, ...] | None:
        """The latest report of this proxy's agent; None without one that reports."""
        agent = self._registry.agents.get(_owner(self.proxy)) if self.proxy is not None else None
        return agent.report if agent is not None else None

    def position(self) -> ProxyRevision:
        """The revision that the client is at."""
        return self.follower.position()

    def status(self) -> ConnectionStatus:
        subscriptions = self.stream.statistics() if self.stream else ()
        records = ((each, self._types[each.type_url]) for each in subscriptions)
        types = tuple(TypeStatus(each, **attrs.asdict(record, recurse=False)) for each, record in records)
        return ConnectionStatus(
            id=self.id,
            proxy=self.proxy,
            peer=self.peer,
            variant=self.variant,
            connected_at=self.connected_at,
            types=types,
            waiting=self.stream.waiting_for() if self.stream else Waiting(node=True),
            nacks=self.nacks,
            position=self.position(),
            warming=self.warming,
            certificate_end=self.certificate_end,
        )


def _nothing() -> None: ...


def _owner(proxy: Proxy) -> tuple[str, str]:
    """The proxy that a stream is of, by what it cannot choose: an agent speaks for no proxy of another identity's."""
    return proxy.id, proxy.identity or proxy.peer


def _revision_nack(record: NackRecord) -> RevisionNack:
    nack = record.nack
    return RevisionNack(
        at=record.at,
        proxy=nack.proxy.name,
        type=RESOURCE_TYPES[nack.type_url].short,
        names=nack.names,
        configs=tuple(map(str, nack.configs)),
        reason=nack.reason,
    )


def _utc_now() -> datetime:
    return datetime.now(UTC)


class StatusRegistry:
    """All streams: those that are open, and what came of all of them.

    Mutable state: the connections, the totals, histograms and tallies of revisions, the latest refusals, the proxies
    that have left and the types that were not served, and when the last change was published and the last response
    sent.
    """

    def __init__(self, *, now: Callable[[], datetime] = _utc_now) -> None:
        self.now = now
        self.totals = XdsTotals()
        self.times = PushTimes()
        self.published_at: float | None = None
        """When the latest revision was published, on the caller's monotonic clock; None before the first."""
        self.sent_at: float | None = None
        """When the latest response was sent, on the same clock."""
        self.revisions = Revisions()
        """The tallies of revisions."""
        self.newcomers: list[Callable[[Proxy], None]] = []
        """The functions that are told of a proxy, once it is known which one has connected."""
        self.observer: PushObserver | None = None
        """Traces; None if there are none."""
        self.agents: dict[tuple[str, str], Connection] = {}
        """The latest stream of each agent for itself, by whom it speaks for."""
        self.known = KnownProxies()
        self._connections: dict[int, Connection] = {}
        self.streams_ended = 0
        self._unserved_types: set[str] = set()
        """The types not served that were requested."""
        self._recent: deque[NackRecord] = deque(maxlen=MAX_RECENT_NACKS)

    def __repr__(self) -> str:
        return f"<StatusRegistry {len(self._connections)} connected, {self.totals.rejects.total()} rejects>"

    @property
    def pushed_at(self) -> float:
        """When a push last began or continued; minus infinity before the first."""
        return max(at if at is not None else -math.inf for at in (self.published_at, self.sent_at))

    # -- recording

    def published(self, at: float, revision: int = 0) -> None:
        """The world changed at this time (``trio.current_time()``): convergence is counted from here.

        `revision`: the number of the revision; 0, or the same as before, if there is no new one.
        """
        self.published_at = at
        if revision > self.revisions.latest:
            self.revisions.published(revision, at)

    def connect(
        self,
        variant: Variant,
        peer: str,
        tls_since: datetime | None = None,
        certificate_end: datetime | None = None,
    ) -> Connection:
        """A stream began; ``tls_since``: when the client verified this server's certificate, None without TLS;
        ``certificate_end``: when the client's own certificate ends."""
        self.totals.streams_total += 1
        connection = Connection(self, self.totals.streams_total, variant, peer, tls_since, certificate_end)
        self._connections[connection.id] = connection
        return connection

    def disconnect(self, connection: Connection) -> None:
        """A stream ended."""
        self._connections.pop(connection.id, None)
        proxy = connection.proxy
        if proxy is not None and self.agents.get(_owner(proxy)) is connection:
            del self.agents[_owner(proxy)]
        if proxy is not None and not proxy.agent:
            position = connection.position().revision
            self.known.left(connection.id, proxy, self.now(), self.revisions.latest if position is None else position)
        connection.follower.left()
        connection.stream, connection.look_again = None, _nothing  # both have the connection: a cycle
        self.streams_ended += 1

    def rejected(self, record: NackRecord) -> None:
        self.totals.rejects[record.nack.type_url] += 1
        self._recent.append(record)

    def unserved(self, type_url: str) -> bool:
        """A stream requests a type that is not served; returns True for the first one that is known to."""
        self.totals.unserved += 1
        is_new = type_url not in self._unserved_types and len(self._unserved_types) < MAX_UNSERVED_TYPES
        if is_new:
            self._unserved_types.add(type_url)
        return is_new

    # -- reading

    def statistics(self) -> XdsStatistics:
        versions = Counter(c.proxy.version or "unknown" for c in self.proxies() if c.proxy)
        return XdsStatistics(
            connected=versions.total(),
            connected_by_version=versions,
            agents_by_version=Counter(c.proxy.agent for c in self._connections.values() if c.proxy and c.is_agent),
            times=self.times.state(),
            **{name: copy(count) for name, count in attrs.asdict(self.totals, recurse=False).items()},
        )

    def connections(self) -> tuple[ConnectionStatus, ...]:
        """Every open stream, the oldest first."""
        return tuple(connection.status() for connection in self._connections.values())

    def streams(self) -> tuple[Connection, ...]:
        """Every open stream, the oldest first, as it changes."""
        return tuple(self._connections.values())

    def take_outcomes(self) -> Sequence[RevisionOutcome]:
        """The revisions whose effects changed since the last call."""
        return self.revisions.take()

    def refusing(self) -> Mapping[str, set[str]]:
        """The node ids of the proxies that refuse a type now, by type; costs little for each."""
        found: dict[str, set[str]] = {}
        for connection in self.proxies():
            for type_url in connection.follower.refusing if connection.proxy is not None else ():
                assert connection.proxy is not None
                found.setdefault(type_url, set()).add(connection.proxy.id)
        return found

    def proxies(self) -> Iterable[Connection]:
        """The open streams of proxies, without those of agents."""
        return (connection for connection in self._connections.values() if not connection.is_agent)

    def recent_nacks(self) -> tuple[NackRecord, ...]:
        """The latest NACKs of all proxies, the latest last."""
        return tuple(self._recent)

    def accepted(self, type_url: str, *, agents: bool = False) -> Iterator[tuple[Proxy, Mapping[str, Resource]]]:
        """The resources of a type that each proxy holds, by name; those of an unanswered response do not count.

        With ``agents`` those of agents' own streams.
        """
        for connection in self._connections.values() if agents else self.proxies():
            if agents and not connection.is_agent:
                continue
            stream = connection.stream
            if connection.proxy is not None and stream is not None and (held := stream.accepted(type_url)) is not None:
                yield connection.proxy, held

    def meant(self, text: str) -> MeantProxies:
        """The connected proxies that a name, a node id or an address means."""
        return meant_by(text, (each.proxy for each in self.proxies() if each.proxy is not None))

    def config_dump(self, proxy: Proxy) -> tuple[TypeDump, ...]:
        """The resources that a proxy holds, by type, from all its streams."""
        own = self.known.streams_named(proxy.name).items()
        found = [self._connections[stream] for stream, each in own if machine_of(each) == machine_of(proxy)]
        # While one that has lost its connection is back before the loss is known, the older stream tells nothing.
        aggregated = [each for each in found if each.stream is not None and each.stream.is_aggregated]
        dumps = [dump for each in found if each not in aggregated[:-1] for dump in _dumps(each)]
        types = [*ENVOY_TYPES]
        return tuple(sorted(dumps, key=lambda dump: types.index(dump.type_url)))


def _dumps(connection: Connection) -> list[TypeDump]:
    stream = connection.stream
    if stream is None:
        return []
    return [
        TypeDump(
            type_url=each.type_url,
            version=each.version,
            is_acked=each.nonce == each.acked_nonce,
            resources=tuple(resource for _, resource in sorted(stream.explained(each.type_url).items())),
        )
        for each in stream.statistics()
        if each.type_url in ENVOY_TYPES
    ]
