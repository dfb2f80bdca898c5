"""The history as ``mesh-pilot history`` prints it: plain values for JSON and YAML, and lines of text."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

import attrs
import yaml

from mesh_pilot.config.encode_json import to_json
from mesh_pilot.model.config import Config
from mesh_pilot.model.events import (
    Endpoints,
    Item,
    KeySet,
    MeshConfigValue,
    MeshNetworksValue,
    Quarantine,
    Secret,
)
from mesh_pilot.model.history import RevisionNack
from mesh_pilot.model.resource import RESOURCE_TYPES, Resource
from mesh_pilot.model.service import Service
from mesh_pilot.ops.past_world import resource_lines
from mesh_pilot.ops.responses import Json
from mesh_pilot.ops.world_pages import show_config, show_endpoints, show_service
from mesh_pilot.state.reader import ChangeRecord, PastPictures, ProxyPosition, RevisionRecord, name_of

COLUMNS = ("REVISION", "AGE", "OBJECTS", "PROXIES", "SENT", "ACKED", "NACKS", "CAUSE")
PROXY_COLUMNS = ("PROXY", "REVISION", "STATE", "SEEN")
NONE = "-"


@attrs.frozen
class Difference:
    """A thing of which two revisions differ; no lines: it is not there."""

    name: str
    before: Sequence[str]
    after: Sequence[str]

    @property
    def action(self) -> str:
        return "add" if not self.before else "delete" if not self.after else "update"

    def lines(self, older: int, newer: int) -> Iterator[str]:
        """The difference as a unified diff."""
        old = f"{self.name} (revision {older})" if self.before else "/dev/null"
        new = f"{self.name} (revision {newer})" if self.after else "/dev/null"
        return difflib.unified_diff(self.before, self.after, old, new, lineterm="")

    def as_json(self, older: int, newer: int) -> Json:
        return {"name": self.name, "action": self.action, "diff": list(self.lines(older, newer))}


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
    yield f"revision {record.number}, {age(now, record.at)} ago ({record.at:%F %T} UTC)"
    more = f" and {record.more_causes} more" if record.more_causes else ""
    yield f"cause: {'; '.join(record.causes) or 'unknown'}{more}"
    if record.proxies:
        sent = f"{record.proxies} proxies were sent {size(record.bytes)}"
        yield f"{sent}; the last ACK came after {seconds(record.acked_seconds)}" if record.acked_seconds else sent
    else:
        yield "no proxy was sent anything"
    if record.waiting:
        why = "had not answered when it was no longer counted" if record.is_over else "have not answered yet"
        yield f"{record.waiting} {why}"
    if changes:
        yield ""
        for change in changes:
            cause = f"  {change.cause}" if change.cause else ""
            yield f"{change.action:6}  {name_of(change.key)}  {change.source}{cause}"
    for nack in nacks:
        made_from = f" (made from {', '.join(nack.configs)})" if nack.configs else ""
        yield ""
        yield f"{nack.proxy} refused {nack.type} {', '.join(nack.names)}{made_from}:"
        yield f"  {' '.join(nack.reason.split())}"
    if record.nacked > len(nacks):
        yield f"and {record.nacked - len(nacks)} more refusals"


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


# -- differences


def object_differences(older: PastPictures, newer: PastPictures) -> Iterator[Difference]:
    """The objects of sources that differ, by name."""
    found: dict[tuple[str, str], Difference] = {}
    for source in dict.fromkeys((*older.items, *newer.items)):
        before, after = older.items.get(source, {}), newer.items.get(source, {})
        for key in before.keys() | after.keys():
            old, new = before.get(key), after.get(key)
            if old != new:
                found[name_of(key), source] = Difference(name_of(key), item_lines(old), item_lines(new))
    for name in sorted(found):
        yield found[name]


def resource_differences(
    older: Mapping[str, Mapping[str, Resource]], newer: Mapping[str, Mapping[str, Resource]]
) -> Iterator[Difference]:
    """The resources of a proxy that differ, by type in the order in which they are sent, and name."""
    for type_url, resource_type in RESOURCE_TYPES.items():
        before, after = older.get(type_url, {}), newer.get(type_url, {})
        for name in sorted(before.keys() | after.keys()):
            old, new = before.get(name), after.get(name)
            if old != new:
                yield Difference(f"{resource_type.short} {name}", resource_lines(old), resource_lines(new))


def item_lines(item: Item | None) -> list[str]:
    """An object in YAML; no lines if there is none."""
    if item is None:
        return []
    text: str = yaml.safe_dump(_plain(_item_json(item)), sort_keys=False, allow_unicode=True, width=120)
    return text.splitlines()


def _item_json(item: Item) -> Json:
    match item:
        case Config():
            return show_config(item)
        case Service():
            return show_service(item)
        case Endpoints():
            return show_endpoints(item.service, item.endpoints)
        case MeshConfigValue(config=message) | MeshNetworksValue(networks=message):
            shown: Json = to_json(message)
            return shown
        case Secret():
            parts = {"certificate_chain": item.certificate_chain, "ca_certificates": item.ca_certificates}
            digests = {name: hashlib.sha256(part).hexdigest() for name, part in parts.items() if part}
            return {"name": item.name, "namespace": item.namespace, "sha256": digests}
        case KeySet():
            return {"issuer": item.issuer, "url": item.url, "keys": item.keys}
        case Quarantine():
            return {"from": item.domain, "withheld": [name_of(each.key) for each in item.withheld]}


def _plain(value: Json) -> object:
    """The same of Python's own containers, which YAML can write."""
    if isinstance(value, Mapping):
        return {str(name): _plain(member) for name, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(member) for member in value]
    return value


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
