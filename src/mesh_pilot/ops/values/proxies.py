"""Sent, acknowledged and refused resources of proxies: JSON for the debug pages, tables for the web page.

The field names of ``syncz`` are Istio's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from mesh_pilot.explain.truth.facts import of_types
from mesh_pilot.explain.truth.states import SYNC_WORDS, Truth, TruthState
from mesh_pilot.model.history import ProxyRevision
from mesh_pilot.model.json import Json
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.resource import RESOURCE_TYPES
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.ops.values import quarantine as quarantine_pages
from mesh_pilot.xds.ads.status import ConnectionStatus, NackRecord, TypeStatus
from mesh_pilot.xds.ads.warming import Warming

FAILURES_NAMED = 20
"""Internal errors listed for a proxy."""


def names(state: PlaneState) -> list[str]:
    """Names of the connected proxies, each once."""
    return sorted({c.proxy.name for c in state.xds.status.proxies() if c.proxy is not None})


def not_connected(state: PlaneState, proxy_id: str) -> str:
    """The answer to a page for a proxy that is not connected: with those that are."""
    known = "".join(f"  {name}\n" for name in names(state))
    asked = f"no connected proxy {proxy_id!r}" if proxy_id else "say which proxy: ?proxyID=NAME.NAMESPACE"
    return f"{asked}; connected are:\n{known or '  none'}\n"


def find_proxy(state: PlaneState, name: str) -> Proxy | None:
    """The connected proxy of a name, an id, or a name without its namespace that only one has."""
    proxies = [connection.proxy for connection in state.xds.status.proxies() if connection.proxy is not None]
    exact = next((proxy for proxy in proxies if name in (proxy.name, proxy.id)), None)
    short = {proxy.name: proxy for proxy in proxies if proxy.name.partition(".")[0] == name}
    return exact or (next(iter(short.values())) if len(short) == 1 else None)


def sync_entries(state: PlaneState, connections: Sequence[ConnectionStatus]) -> Iterator[Json]:
    """An entry for each stream: by type its state and the last nonces sent and acknowledged; its NACKs; what warms
    at it and is withheld from it; and the internal errors that concern it."""
    failing = _failures_by_proxy(state)
    known = state.facts()
    agents = _agents(connections)
    for connection in connections:
        proxy = connection.proxy
        if proxy is None or connection.agent:
            continue
        types = of_types(connection)
        entry: dict[str, Json] = {
            "proxy": proxy.name,
            "proxy_id": proxy.id,
            "proxy_type": proxy.type.value,
            "proxy_version": proxy.version,
            "agent": agents.get(proxy.id, ""),
            "cluster_id": proxy.cluster_id,
            "xds": connection.variant.value,
            "connected_at": connection.connected_at.isoformat(),
            "revision": _revision(state, connection.position),
            "status": {RESOURCE_TYPES[type_url].short: SYNC_WORDS[each.state] for type_url, each in types.items()},
        }
        for each in connection.types:
            name = RESOURCE_TYPES[each.type_url].sync_name
            entry[f"{name}_sent"] = each.subscription.nonce
            entry[f"{name}_acked"] = each.subscription.acked_nonce
        entry["refused"] = [
            {**_nack(record), "held": known.why_on_hold(proxy, record.nack.type_url)}
            for record in _standing_nacks(connection, types)
        ]
        entry["warming"] = [
            {**_warming(each), "held": known.why_on_hold(proxy, each.resource.type_url)} for each in connection.warming
        ]
        entry["failing"] = failing.get(proxy.name, [])
        entry |= quarantine_pages.stream_entry(known, proxy)
        yield entry


def _agents(connections: Sequence[ConnectionStatus]) -> dict[str, str]:
    """By node id, the versions of the agents that have a stream for themselves."""
    return {each.proxy.id: each.agent for each in connections if each.proxy is not None and each.agent}


def _failures_by_proxy(state: PlaneState) -> dict[str, list[Json]]:
    """The first `FAILURES_NAMED` internal errors that concern each proxy."""
    found: dict[str, list[Json]] = {}
    for standing in state.failures():
        failure = standing.failure
        shown: Json = {"failure": str(failure), "error": failure.error, "since": failure.since.isoformat()}
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


def _revision(state: PlaneState, position: ProxyRevision) -> int:
    return state.xds.status.revisions.latest if position.revision is None else position.revision


def rejections(state: PlaneState) -> list[Json]:
    """The recent NACKs of all proxies, latest first."""
    return [_nack(record) for record in reversed(state.xds.status.recent_nacks())]


def stream(connection: ConnectionStatus) -> Json:
    """A stream in full: node, subscriptions, counters, and the responses that it waits for."""
    proxy = connection.proxy
    waiting = connection.waiting
    types = of_types(connection)
    return {
        "stream": connection.id,
        "peer": connection.peer,
        "xds": connection.variant.value,
        "connected_at": connection.connected_at.isoformat(),
        "node": _node(proxy) if proxy else None,
        "types": {RESOURCE_TYPES[t.type_url].short: _type(t, types[t.type_url]) for t in connection.types},
        "waiting_for": {
            "node": waiting.node,
            "acks": [RESOURCE_TYPES[t].short for t in waiting.acks],
            "endpoints": sorted(waiting.endpoints),
        },
        "warming": [_warming(each) for each in connection.warming],
        "refused": [_nack(record) for record in connection.nacks],
    }


def _node(proxy: Proxy) -> Json:
    return {
        "id": proxy.id,
        "addresses": list(proxy.ip_addresses),
        "labels": dict(proxy.labels),
        "locality": str(proxy.locality),
        "version": proxy.version,
        "agent": proxy.agent,
    }


def _type(status: TypeStatus, truth: Truth) -> Json:
    own = status.subscription
    return {
        "state": SYNC_WORDS[truth.state],
        "wildcard": own.wildcard,
        "names": own.names,
        "held": own.resources,
        "in_doubt": own.nacked,
        "version": own.version,
        "acked_version": own.acked_version,
        "sent_at": status.sent_at.isoformat() if status.sent_at else None,
        "acked_at": status.acked_at.isoformat() if status.acked_at else None,
        "pushes": status.pushes,
        "rejects": status.rejects,
        "bytes_sent": status.bytes_sent,
    }


def _warming(warming: Warming) -> dict[str, Json]:
    resource = warming.resource
    return {
        "type": resource.short,
        "resource": resource.name,
        "waits_for": list(map(str, resource.waits_for)),
        "seconds": round(warming.seconds),
    }


def _nack(record: NackRecord) -> dict[str, Json]:
    nack = record.nack
    return {
        "at": record.at.isoformat(),
        "proxy": nack.proxy.name,
        "type": RESOURCE_TYPES[nack.type_url].short,
        "resources": list(nack.names),
        "reason": nack.reason,
        "configs": [str(key) for key in nack.configs],
        "version": nack.version,
        "nonce": nack.nonce,
    }
