"""Traffic of listeners and of policies: rows that name no destination."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from mesh_pilot.model.traffic import Counter, RowKind
from mesh_pilot.ops.explain.attribution import policy_of
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.ops.values.service_traffic import ServedPorts, port_of_listener
from mesh_pilot.ops.values.traffic import SeenRow, TrafficSeen
from mesh_pilot.traffic.counts import together

NAMED = 20
"""Proxies that are named of a policy."""


@attrs.frozen
class ListenerTraffic:
    """Requests and connections at a listener of a proxy that went nowhere, or that policies judged."""

    proxy: str
    namespace: str
    listener: str
    """The prefix of its statistics."""
    port: int | None
    """The workload's port of an inbound one."""
    services: Sequence[str]
    """The hosts of services at this port."""
    no_route: int
    """Requests that no route matched: 404."""
    no_cluster: int
    """Requests whose route names a cluster that does not exist: 503."""
    denied: int
    """Requests and connections that policies denied."""
    requests: int
    """Requests that were answered, whoever answered."""
    errors: int
    """The number of them that were answered with a 5xx."""
    client_errors: int
    """The number of them that were answered with a 4xx."""


def listener_rows(state: PlaneState, seen: TrafficSeen) -> Iterator[ListenerTraffic]:
    """The listeners of a look that counted something."""
    served = ServedPorts(state.world.view)
    for row in seen.rows:
        if row.kind is RowKind.LISTENER and row.now:
            port, counts = port_of_listener(row.name), row.now
            hosts = [key.host for key in served.at(row.proxy, port)] if port else []
            yield ListenerTraffic(
                row.proxy.name,
                row.proxy.workload.namespace,
                row.name,
                port or None,
                hosts,
                counts[Counter.NO_ROUTE],
                counts[Counter.NO_CLUSTER],
                counts[Counter.DENIED],
                counts[Counter.REQUESTS],
                counts[Counter.ERRORS],
                counts[Counter.CLIENT_ERRORS],
            )


@attrs.frozen
class PolicyTraffic:
    """The calls that a rule of a policy admitted or denied."""

    name: str
    """The name that its statistics have."""
    policy: str | None
    """The object; null for a row of no policy, such as that of calls which no ALLOW matched."""
    rule: int | None
    """The number of the rule in the object, from 0."""
    allowed: int
    denied: int
    proxies: Sequence[str]
    """Proxies that counted it, at most twenty of them."""
    proxies_in_all: int


def policy_rows(seen: TrafficSeen) -> list[PolicyTraffic]:
    """The rules of policies of a look that counted something, by name."""
    groups = dict[str, list[SeenRow]]()
    for row in seen.rows:
        if row.kind is RowKind.POLICY and row.now:
            groups.setdefault(row.name, []).append(row)
    found = []
    for name, rows in sorted(groups.items()):
        key, rule = policy_of(name)
        counts, proxies = together(each.now for each in rows), sorted({each.proxy.name for each in rows})
        found.append(
            PolicyTraffic(
                name,
                str(key) if key is not None else None,
                rule if key is not None else None,
                counts[Counter.ALLOWED],
                counts[Counter.DENIED],
                proxies[:NAMED],
                len(proxies),
            )
        )
    return found
