"""The history as ``mesh-pilot history`` prints it: plain values for JSON and YAML, and lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from mesh_pilot.model.counts import counted
from mesh_pilot.model.history import EdgeOutcome, RevisionNack, RevisionTraffic
from mesh_pilot.model.json import as_json
from mesh_pilot.safety.state.reader import ChangeRecord, ProxyPosition, RevisionRecord, name_of

if TYPE_CHECKING:
    from mesh_pilot.model.json import Json

COLUMNS = ("REVISION", "AGE", "OBJECTS", "PROXIES", "SENT", "ACKED", "NACKS", "TRAFFIC", "CAUSE")
PROXY_COLUMNS = ("PROXY", "REVISION", "STATE", "SEEN")
NONE = "-"


# -- revisions


def revision_row(record: RevisionRecord, now: datetime) -> tuple[str, ...]:
    """A row of `COLUMNS`."""
    others = len(record.causes[1:]) + record.more_causes
    return (
        str(record.number),
        age(now, record.at),
        str(record.objects),
        str(record.proxies) + (f" ({record.waiting} to answer)" if record.waiting else ""),
        size(record.bytes) if record.bytes else NONE,
        seconds(record.acked_seconds),
        str(record.nacked) if record.nacked else NONE,
        _traffic_word(record.traffic),
        "".join(record.causes[:1]) + (f" and {others} more" if others else ""),
    )


def revision_json(record: RevisionRecord) -> dict[str, Json]:
    return {
        "revision": record.number,
        "at": record.at.isoformat(),
        "causes": list(record.causes),
        "moreCauses": record.more_causes,
        "objects": record.objects,
        "proxies": record.proxies,
        "waiting": record.waiting,
        "bytes": record.bytes,
        "ackedSeconds": record.acked_seconds,
        "nacks": record.nacked,
        "settled": record.is_over and not record.waiting,
        "traffic": as_json(record.traffic) if record.traffic is not None else None,
    }


def change_json(change: ChangeRecord) -> dict[str, Json]:
    return {"object": name_of(change.key), "action": change.action, "source": change.source, "cause": change.cause}


def nack_json(nack: RevisionNack) -> dict[str, Json]:
    return {
        "at": nack.at.isoformat(),
        "proxy": nack.proxy,
        "type": nack.type,
        "resources": list(nack.names),
        "configs": list(nack.configs),
        "reason": nack.reason,
    }


def show_lines(
    record: RevisionRecord, changes: Sequence[ChangeRecord], nacks: Sequence[RevisionNack], now: datetime
) -> Iterator[str]:
    """Everything of a revision."""
    # A revision is written when it is published, and completed later: nobody may have answered yet, and what nobody
    # waits for any more stays open forever. The lines tell the two apart.
    yield f"revision {record.number}, {age(now, record.at)} ago ({record.at:%F %T} UTC)"
    more = f" and {record.more_causes} more" if record.more_causes else ""
    yield f"cause: {'; '.join(record.causes) or 'unknown'}{more}"
    if record.proxies:
        who = "1 proxy was" if record.proxies == 1 else f"{record.proxies} proxies were"
        sent = f"{who} sent {size(record.bytes)}"
        yield (
            f"{sent}; the last ACK came after {seconds(record.acked_seconds)}"
            if record.acked_seconds is not None
            else sent
        )
    else:
        yield "no proxy was sent anything"
    if record.waiting:
        have = "has" if record.waiting == 1 else "have"
        why = "had not answered when it was no longer counted" if record.is_over else f"{have} not answered yet"
        yield f"{record.waiting} {why}"
    if record.traffic is not None:
        yield from _traffic_lines(record.traffic)
    if changes:
        yield ""
        for change in changes:
            yield f"{change.action:6}  {name_of(change.key)}  {change.cause}"
    for nack in nacks:
        made_from = f" (made from {', '.join(nack.configs)})" if nack.configs else ""
        yield ""
        yield f"{nack.proxy} refused {nack.type} {', '.join(nack.names)}{made_from}:"
        yield f"  {' '.join(nack.reason.split())}"
    if record.nacked > len(nacks):
        yield f"and {record.nacked - len(nacks)} more refusals"


def _traffic_word(traffic: RevisionTraffic | None) -> str:
    """The outcome in a word, with the worst edge."""
    if traffic is None:
        return NONE
    return f"{traffic.verdict}: {_edge(traffic.worse[0])}" if traffic.worse else traffic.verdict


def _traffic_lines(traffic: RevisionTraffic) -> Iterator[str]:
    """The traffic on the edges that a revision touched."""
    before = _failed(traffic.tries_before, traffic.failures_before)
    after = _failed(traffic.tries_after, traffic.failures_after)
    counts = f" on {traffic.worse_edges} of {counted(traffic.edges, 'edge')}" if traffic.worse_edges else ""
    minutes = f"{counted(traffic.minutes_before, 'minute')} before, {after} in {traffic.minutes_after} after"
    yield f"traffic that it touches: {traffic.verdict}{counts}; {before} in {minutes}"
    for edge in traffic.worse:
        then, now = (
            _failed(edge.tries_before, edge.failures_before),
            _failed(edge.tries_after, edge.failures_after),
        )
        yield f"  {_edge(edge)}: {then} before, {now} after ({_UNIT_WORDS.get(edge.unit, edge.unit)})"
    if traffic.cut_by is not None:
        yield f"  until revision {traffic.cut_by}, which touches some of the same traffic"
    if not traffic.is_complete:
        yield "  not all of it was counted"


_UNIT_WORDS = {"allowed": "denials"}


def _edge(edge: EdgeOutcome) -> str:
    caller = f"{edge.caller}.{edge.namespace}" if edge.namespace else edge.caller
    return f"{caller} to {edge.called or 'all that is touched'}"


def _failed(tries: int, failures: int) -> str:
    return f"{failures:,} of {tries:,} failed ({failures / tries:.1%})" if tries else "none"


# -- proxies


def proxy_row(position: ProxyPosition, latest: int, now: datetime) -> tuple[str, ...]:
    """A row of `PROXY_COLUMNS`."""
    return (position.proxy.name, str(position.revision or NONE), proxy_state(position, latest), age(now, position.seen))


def proxy_state(position: ProxyPosition, latest: int) -> str:
    """A proxy's state, in a word or two."""
    if not position.is_connected:
        return "gone"
    if position.is_refusing:
        return "refuses what follows"
    behind = latest - position.revision
    return f"{behind} behind" if behind else "latest"


def proxy_json(position: ProxyPosition, latest: int) -> dict[str, Json]:
    return {
        "proxy": position.proxy.name,
        "id": position.proxy.id,
        "revision": position.revision,
        "connected": position.is_connected,
        "refusing": position.is_refusing,
        "behind": max(0, latest - position.revision) if position.is_connected else None,
        "seen": position.seen.isoformat(),
    }


# -- figures

_UNITS = (("GB", 9), ("MB", 6), ("kB", 3))


def age(now: datetime, at: datetime) -> str:
    """The time since, as ``14s``, ``3m``, ``5h`` or ``2d``."""
    since = max(0.0, (now - at).total_seconds())
    for unit, length, limit in (("s", 1, 120), ("m", 60, 120), ("h", 3600, 48)):
        if since < length * limit:
            return f"{since / length:.0f}{unit}"
    return f"{since / 86400:.0f}d"


def seconds(value: float | None) -> str:
    """A duration; `NONE` for none."""
    return NONE if value is None else f"{value * 1000:.0f}ms" if value < 1 else f"{value:.1f}s"


def size(count: int) -> str:
    """A number of bytes."""
    if count < 1000:
        return f"{count}B"
    unit, power = next((unit, power) for unit, power in _UNITS if count >= 10**power)
    return f"{count / 10**power:.3g}{unit}"


def utc_now() -> datetime:
    return datetime.now(UTC)
