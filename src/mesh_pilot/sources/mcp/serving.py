"""The source's side of MCP as a pure state machine: requests in, responses out; no bytes, no clock, no I/O.

Each collection has its own watch: one response at a time, the next one once it is answered and something has changed.
What changes meanwhile is merged by waiting. Rules are those of MCP's ResourceSource: a refused response counts as not
taken, and is not sent again before the collection changes; stale nonces are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import attrs

from mesh_pilot.sources.mcp.messages import Refusal, Request, Resource, Response


class Shelf(Protocol):
    """The collections that are served. Every call is synchronous."""

    def revision(self, collection: str) -> int:
        """Grows whenever the collection changes; 0 for one that never held anything."""

    def resources(self, collection: str) -> Mapping[str, Resource]:
        """All of it, by name. Not to be changed; may change when the shelf does."""

    def changed_since(self, collection: str, revision: int) -> tuple[str, ...]:
        """Names that came, changed or went after a revision."""


@attrs.frozen
class Refused:
    """A sink did not take a response."""

    collection: str
    refusal: Refusal


@attrs.define
class _Watch:
    acked: dict[str, str]
    """What the sink has, name to version, as far as it said."""
    incremental: bool
    revision: int = -1
    """Of the collection when the last response was made."""
    pending: Response | None = None
    doubtful: bool = True
    """Whether ``acked`` may differ from the collection at ``revision``."""


class SourceStream:
    """One sink's stream. State: a watch for each collection that it asked for."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._watches: dict[str, _Watch] = {}
        self._nonce = 0

    def __repr__(self) -> str:
        waiting = sum(watch.pending is not None for watch in self._watches.values())
        return f"<SourceStream {len(self._watches)} collections, {waiting} not answered>"

    @property
    def collections(self) -> tuple[str, ...]:
        """What the sink asked for."""
        return tuple(self._watches)

    def on_request(self, request: Request) -> Refused | None:
        """Take a request in; tells a refusal."""
        watch = self._watches.get(request.collection)
        if watch is None:
            if request.error is None:
                self._watches[request.collection] = _Watch(dict(request.versions), request.incremental)
            return None
        if watch.pending is None or request.nonce != watch.pending.nonce:
            return None
        sent, watch.pending = watch.pending, None
        watch.incremental = request.incremental
        if request.error is not None:
            watch.doubtful = True
            for resource in sent.resources:  # the sink may have taken it all the same
                watch.acked.setdefault(resource.name, "")
            return Refused(request.collection, request.error)
        if not sent.incremental:
            watch.acked = {}
        for name in sent.removed:
            watch.acked.pop(name, None)
        watch.acked.update((resource.name, resource.version) for resource in sent.resources)
        watch.doubtful = False
        return None

    def next_response(self) -> Response | None:
        """What to send now, None for nothing. It counts as sent when it is returned."""
        for collection, watch in self._watches.items():
            if watch.pending is None and watch.revision != self._shelf.revision(collection):
                return self._respond(collection, watch)
        return None

    def _respond(self, collection: str, watch: _Watch) -> Response:
        all_of_it = self._shelf.resources(collection)
        self._nonce += 1
        nonce, revision = str(self._nonce), self._shelf.revision(collection)
        if watch.incremental:
            names = {**watch.acked, **all_of_it}.keys()
            touched = names if watch.doubtful else self._shelf.changed_since(collection, watch.revision)
            response = Response(
                collection,
                tuple(all_of_it[n] for n in touched if n in all_of_it and watch.acked.get(n) != all_of_it[n].version),
                tuple(n for n in touched if n in watch.acked and n not in all_of_it),
                nonce,
                str(revision),
                incremental=True,
            )
        else:
            response = Response(collection, tuple(all_of_it.values()), nonce=nonce, version=str(revision))
        watch.revision = revision
        watch.pending = response
        return response
