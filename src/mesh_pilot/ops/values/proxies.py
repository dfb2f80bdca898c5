"""Connected proxies, each with its state. The names of some members are those of Istio's ``syncz``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType

import attrs

from mesh_pilot.explain.truth.facts import PlaneFacts, of_types, streams_by_proxy
from mesh_pilot.explain.truth.states import SYNC_WORDS, Truth, TruthState
from mesh_pilot.model.json import IF_GIVEN, SPREAD
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.resource import RESOURCE_TYPES
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.ops.values.assessments import Assessment
from mesh_pilot.ops.values.certificates import certificate_of
from mesh_pilot.ops.values.quarantine import WithheldFrom
from mesh_pilot.safety.quarantine.clients import in_words
from mesh_pilot.safety.quarantine.verdicts import name_of
from mesh_pilot.xds.ads.known_proxies import GoneProxy
from mesh_pilot.xds.ads.status import ConnectionStatus, NackRecord
from mesh_pilot.xds.ads.warming import Warming

FAILURES_NAMED = 20
"""Internal errors listed for a proxy."""


@attrs.frozen
class ProxyRefusal:
    """A response that a proxy refused."""

    at: datetime
    proxy: str
    type: str
    resources: Sequence[str]
    reason: str
    configs: Sequence[str]
    """The objects that the refused resources were made from."""
    version: str
    nonce: str
    held: str | None = attrs.field(default=None, metadata=IF_GIVEN)
    """The reason for doing nothing about it, where it still stands; empty if something is done."""

    @classmethod
    def of(cls, record: NackRecord, held: str | None = None) -> ProxyRefusal:
        nack = record.nack
        configs, short = [str(key) for key in nack.configs], RESOURCE_TYPES[nack.type_url].short
        return cls(record.at, nack.proxy.name, short, nack.names, nack.reason, configs, nack.version, nack.nonce, held)


@attrs.frozen
class WarmingState:
    """A resource that a proxy has accepted and does not use yet."""

    type: str
    resource: str
    waits_for: Sequence[str]
    seconds: int
    held: str | None = attrs.field(default=None, metadata=IF_GIVEN)

    @classmethod
    def of(cls, warming: Warming, held: str | None = None) -> WarmingState:
        own = warming.resource
        return cls(own.short, own.name, [*map(str, own.waits_for)], round(warming.seconds), held)


@attrs.frozen
class ProxyFailure:
    """An internal error because of which a proxy lacks something, or has an older version of it."""

    failure: str
    error: str
    since: datetime


@attrs.frozen
class ProxyState:
    """A proxy with its state: what it was sent, what of it is in use, and what keeps the rest back."""

    proxy: str
    """``web-1.shop``."""
    namespace: str
    address: str
    """The address that it connects from."""
    assessment: Assessment = attrs.field(metadata=SPREAD)
    certificate_expires: datetime | None
    """The end of its certificate, as far as that is known."""
    gone: bool
    """True for one that has left and is not back."""
    last_seen: datetime | None
    """When it left; null while it is connected."""
    proxy_id: str
    """The node id."""
    proxy_type: str
    proxy_version: str
    agent: str
    """The version of its agent that has a stream; empty for none."""
    addresses: Sequence[str]
    """The ones that it says it has."""
    cluster_id: str
    xds: str
    """``sotw`` or ``delta``."""
    connected_at: datetime | None
    """Null for one that is gone."""
    revision: int
    """The last revision of which it has everything."""
    status: Mapping[str, str]
    """The state of each type, in Istio's words: SYNCED, STALE, NACK, NOT SENT; and WARMING."""
    nonces: Mapping[str, str] = attrs.field(metadata=SPREAD)
    """The last nonces that were sent and acknowledged, by type: ``cluster_sent``,
    ``cluster_acked``."""
    refused: Sequence[ProxyRefusal]
    """The latest NACK of each type that is refused now."""
    warming: Sequence[WarmingState]
    failing: Sequence[ProxyFailure]
    """The first internal errors that concern it."""
    withheld: Sequence[WithheldFrom]
    trial: Sequence[str]
    """The objects that are withheld from it only to find out which one it refuses."""


def names(state: PlaneState) -> list[str]:
    """Names of the connected proxies, each once."""
    return sorted({c.proxy.name for c in state.xds.status.proxies() if c.proxy is not None})


def not_connected(state: PlaneState, proxy_id: str) -> str:
    """The answer to a page for a proxy that is not connected: with those that are."""
    known = "".join(f"  {name}\n" for name in names(state))
    asked = f"no connected proxy {proxy_id!r}" if proxy_id else "say which proxy: ?proxyID=NAME.NAMESPACE"
    return f"{asked}; connected are:\n{known or '  none'}\n"


def find_proxy(state: PlaneState, name: str | Proxy) -> Proxy | None:
    """The connected proxy of a name, a node id, an address, or a name without its namespace.

    Raises SeveralProxies. One that was found already is found again.
    """
    return name if isinstance(name, Proxy) else state.xds.status.meant(name).only(name)


def proxy_states(
    state: PlaneState,
    known: PlaneFacts,
    connections: Sequence[ConnectionStatus],
    assessments: Mapping[int, Assessment] = MappingProxyType({}),
) -> Iterator[ProxyState]:
    """The state of each stream of a proxy, one by one. ``known``: the facts of now; ``assessments``: by the numbers of
    streams."""
    failing = _failures_by_proxy(state)
    streams = streams_by_proxy(state.xds.status)
    agents = {each.proxy.id: each.agent for each in connections if each.proxy is not None and each.agent}
    for connection in connections:
        proxy = connection.proxy
        if proxy is None or connection.agent:
            continue
        types = of_types(connection)
        nonces: dict[str, str] = {}
        for each in connection.types:
            name, own = RESOURCE_TYPES[each.type_url].sync_name, each.subscription
            nonces |= {f"{name}_sent": own.nonce, f"{name}_acked": own.acked_nonce}
        position = connection.position.revision
        # One after another and not as a list: each row costs a walk over all types, and proxies are served in between.
        life = certificate_of(state, proxy, connection.certificate_end)
        yield ProxyState(
            proxy=proxy.name,
            namespace=proxy.namespace,
            address=proxy.peer or proxy.ip_addresses[0],
            assessment=assessments.get(connection.id, Assessment("")),
            certificate_expires=life.ends if life is not None else None,
            gone=False,
            last_seen=None,
            proxy_id=proxy.id,
            proxy_type=proxy.type.value,
            proxy_version=proxy.version,
            agent=agents.get(proxy.id, ""),
            addresses=proxy.ip_addresses,
            cluster_id=proxy.cluster_id,
            xds=connection.variant.value,
            connected_at=connection.connected_at,
            revision=state.xds.status.revisions.latest if position is None else position,
            status={RESOURCE_TYPES[type_url].short: SYNC_WORDS[each.state] for type_url, each in types.items()},
            nonces=nonces,
            refused=[
                ProxyRefusal.of(record, known.why_on_hold(proxy, record.nack.type_url))
                for record in _standing_nacks(connection, types)
            ],
            warming=[
                WarmingState.of(each, known.why_on_hold(proxy, each.resource.type_url)) for each in connection.warming
            ],
            failing=failing.get(proxy.name, ()),
            withheld=[
                WithheldFrom(name_of(own.key), in_words(domain))
                for domain, own in known.withheld_of(proxy, streams.get(proxy.id, ()))
            ],
            trial=[name_of(withheld.key) for withheld in known.on_trial(proxy)],
        )


def gone_state(gone: GoneProxy, assessment: Assessment) -> ProxyState:
    """The state of a proxy that has left."""
    proxy = gone.proxy
    return ProxyState(
        proxy=proxy.name,
        namespace=proxy.namespace,
        address=proxy.peer or proxy.ip_addresses[0],
        assessment=assessment,
        certificate_expires=None,
        gone=True,
        last_seen=gone.at,
        proxy_id=proxy.id,
        proxy_type=proxy.type.value,
        proxy_version=proxy.version,
        agent="",
        addresses=proxy.ip_addresses,
        cluster_id=proxy.cluster_id,
        xds="",
        connected_at=None,
        revision=gone.revision,
        status={},
        nonces={},
        refused=(),
        warming=(),
        failing=(),
        withheld=(),
        trial=(),
    )


def _failures_by_proxy(state: PlaneState) -> dict[str, list[ProxyFailure]]:
    """The first `FAILURES_NAMED` internal errors that concern each proxy."""
    found: dict[str, list[ProxyFailure]] = {}
    for standing in state.failures():
        failure = standing.failure
        shown = ProxyFailure(str(failure), failure.error, failure.since)
        for name in standing.proxies:
            of_proxy = found.setdefault(name, [])
            if len(of_proxy) < FAILURES_NAMED:
                of_proxy.append(shown)
    return found


def _standing_nacks(connection: ConnectionStatus, types: Mapping[str, Truth]) -> list[NackRecord]:
    """The latest NACK of each type that is refused now."""
    refused = {type_url for type_url, each in types.items() if each.state is TruthState.REFUSED}
    latest = {record.nack.type_url: record for record in connection.nacks}
    return [record for type_url, record in latest.items() if type_url in refused]


def recent_nacks(state: PlaneState) -> list[ProxyRefusal]:
    """The recent NACKs of all proxies, latest first."""
    return [ProxyRefusal.of(record) for record in reversed(state.xds.status.recent_nacks())]
