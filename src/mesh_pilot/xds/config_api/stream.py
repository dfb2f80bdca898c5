"""The server's side of MCP as a pure state machine: requests in, responses out.

Each collection has its own subscription: one response at a time, and the next once that is answered and something has
changed; changes in between are merged. The rules are those of MCP's ResourceSource: a NACKed response counts as not
applied, and is not sent again before the collection changes; stale nonces are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import attrs

from mesh_pilot.xds.mcp.messages import McpRequest, McpResource, McpResponse


class ServedCollections(Protocol):
    """The collections that are served, by name."""

    def revision(self, collection: str) -> int:
        """Grows with each change of the collection; 0 before the first."""

    def resources(self, collection: str) -> Mapping[str, McpResource]:
        """All resources by name. Read-only; may change with the next revision."""

    def changed_since(self, collection: str, revision: int) -> tuple[str, ...]:
        """Names added, changed or removed after a revision."""


@attrs.define
class _CollectionSubscription:
    acked: dict[str, str]
    """The client's resources, name to version, as it declared and acknowledged them."""
    incremental: bool
    revision: int = -1
    """The collection's revision at the last response."""
    pending: McpResponse | None = None
    """The unanswered response."""
    is_uncertain: bool = True
    """``acked`` may differ from the collection at ``revision``."""


class CollectionStream:
    """One client's stream. State: a subscription for each requested collection."""

    def __init__(self, collections: ServedCollections) -> None:
        self._collections = collections
        self._subscriptions: dict[str, _CollectionSubscription] = {}
        self._nonce = 0

    def __repr__(self) -> str:
        pending = sum(subscription.pending is not None for subscription in self._subscriptions.values())
        return f"<CollectionStream {len(self._subscriptions)} collections, {pending} pending responses>"

    def on_request(self, request: McpRequest) -> bool:
        """Process a request. True for the NACK of the pending response."""
        subscription = self._subscriptions.get(request.collection)
        if subscription is None:
            if request.error is None:
                new = _CollectionSubscription(dict(request.versions), request.incremental)
                self._subscriptions[request.collection] = new
            return False
        if subscription.pending is None or request.nonce != subscription.pending.nonce:
            return False
        sent, subscription.pending = subscription.pending, None
        subscription.incremental = request.incremental
        if request.error is not None:
            subscription.is_uncertain = True
            for resource in sent.resources:  # the client may have applied part of it
                subscription.acked.setdefault(resource.name, "")
            return True
        if not sent.incremental:
            subscription.acked = {}
        for name in sent.removed:
            subscription.acked.pop(name, None)
        subscription.acked.update((resource.name, resource.version) for resource in sent.resources)
        subscription.is_uncertain = False
        return False

    def next_response(self) -> McpResponse | None:
        """The response to send now; None if there is none. It counts as sent."""
        for collection, subscription in self._subscriptions.items():
            if subscription.pending is None and subscription.revision != self._collections.revision(collection):
                return self._respond(collection, subscription)
        return None

    def _respond(self, collection: str, subscription: _CollectionSubscription) -> McpResponse:
        current, acked = self._collections.resources(collection), subscription.acked
        revision = self._collections.revision(collection)
        self._nonce += 1
        nonce = str(self._nonce)
        if subscription.incremental:
            changed = (
                {**acked, **current}.keys()
                if subscription.is_uncertain
                else self._collections.changed_since(collection, subscription.revision)
            )
            response = McpResponse(
                collection,
                tuple(
                    current[name] for name in changed if name in current and acked.get(name) != current[name].version
                ),
                tuple(name for name in changed if name in acked and name not in current),
                nonce,
                str(revision),
                incremental=True,
            )
        else:
            response = McpResponse(collection, tuple(current.values()), nonce=nonce, version=str(revision))
        subscription.revision = revision
        subscription.pending = response
        return response
