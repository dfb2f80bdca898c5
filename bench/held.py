"""What a client holds of one type: immutable, and the same object for all clients that were sent the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import lru_cache

import attrs

from bench.wire import (
    CDS,
    LDS,
    Content,
    Item,
    References,
    endpoints_name,
    host_references,
    is_split,
    listener_references,
    route_references,
    table_of,
)


@attrs.frozen
class Condition:
    """What a client is to have: this text so often in what it holds of a type, or not at all."""

    type_url: str
    marker: bytes
    count: int = 1
    """At least so often; 0: nowhere."""

    def holds(self, found: int) -> bool:
        return found >= self.count if self.count else found == 0


class Held:
    """Resources by name. What is worked out about them, and what comes of a message, is remembered here."""

    def __init__(self, items: dict[str, Item]) -> None:
        self.items = items
        self._after: dict[tuple[Content, bool], Held] = {}
        self._found: dict[bytes, int] = {}
        self._names: frozenset[str] | None = None

    def after(self, content: Content, *, whole: bool) -> Held:
        """What is held once a response is taken in; with ``whole`` it replaces everything."""
        key = (content, whole)
        found = self._after.get(key)
        if found is None:
            items = {} if whole else dict(self.items)
            items.update((item.name, item) for item in content.items)
            for name in content.removed:
                items.pop(name, None)
            found = self if _same(items, self.items) else Held(items)
            if len(self._after) > 8:
                self._after.clear()
            self._after[key] = found
        return found

    def meets(self, condition: Condition) -> bool:
        found = self._found.get(condition.marker)
        if found is None:
            found = sum(item.body.count(condition.marker) for item in self.items.values())
            self._found[condition.marker] = found
        return condition.holds(found)

    def wanted(self, type_url: str) -> frozenset[str]:
        """Held clusters want these endpoints; held listeners these routes."""
        if self._names is None:
            if type_url == CDS:
                names: Iterable[str] = filter(None, (endpoints_name(item.body) for item in self.items.values()))
            else:
                names = (name for item in self.items.values() for name in listener_references(item.body).routes)
            self._names = frozenset(names)
        return self._names


NOTHING = Held({})


def _same(one: dict[str, Item], other: dict[str, Item]) -> bool:
    return len(one) == len(other) and all(
        (has := other.get(name)) is not None and (has is item or has.body == item.body) for name, item in one.items()
    )


def duplicates(content: Content) -> list[str]:
    """Names that a response has more than once."""
    return [name for name, count in Counter(item.name for item in content.items).items() if count > 1]


@lru_cache(maxsize=16)
def split_tables(routes: Held) -> frozenset[str]:
    """Held tables whose virtual hosts come by themselves."""
    return frozenset(name for name, item in routes.items.items() if is_split(item.body))


@lru_cache(maxsize=16)
def hosted_tables(hosts: Held) -> frozenset[str]:
    """Tables that held virtual hosts are in."""
    return frozenset(map(table_of, hosts.items))


def dangling(clusters: Held, endpoints: Held, listeners: Held, routes: Held, hosts: Held) -> list[str]:
    """What of these is named and not there, as sentences; ``hosts`` are virtual hosts that came by themselves."""
    problems = [f"no endpoints for cluster {n}" for n in clusters.wanted(CDS) - endpoints.items.keys()]
    problems += [f"no route {n}, which a listener names" for n in listeners.wanted(LDS) - routes.items.keys()]
    referrers: list[tuple[str, References]] = [
        *((f"listener {i.name}", listener_references(i.body)) for i in listeners.items.values()),
        *((f"route {i.name}", route_references(i.body)) for i in routes.items.values()),
        *((f"virtual host {i.name}", host_references(i.body)) for i in hosts.items.values()),
    ]
    problems += [f"no virtual hosts of table {name}" for name in split_tables(routes) - hosted_tables(hosts)]
    problems += [f"virtual hosts of table {n}, which is not there" for n in hosted_tables(hosts) - split_tables(routes)]
    for who, references in referrers:
        problems += [
            f"{who} names cluster {n}, which is not there" for n in references.clusters - clusters.items.keys()
        ]
    return problems


WHOLE = (CDS, LDS)
"""Types whose State of the World responses hold everything."""
