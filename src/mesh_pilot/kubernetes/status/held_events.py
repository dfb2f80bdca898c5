"""Kubernetes events about deleted objects that are kept in force: ``kubectl get events`` shows them.

The objects themselves do not exist any more, so an event is about their namespace. It says no more than
`admin status`, and names every object that decides who may do what.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

import structlog
import trio

from mesh_pilot.kubernetes.apiserver import Access, ApiClient, ApiResource, ApiServerError, KubernetesError
from mesh_pilot.kubernetes.status.live import Json
from mesh_pilot.replicas.election.base import Term
from mesh_pilot.world.guard import HeldObjects, accept_command

log = structlog.get_logger(scope="status")

EVENTS = ApiResource("", ("v1",), "events", "Event")

MAX_WAITING = 100
"""Events that wait for the server; the oldest give way."""

MAX_MESSAGE = 1000
"""Characters of a message; the API allows 1,024."""

_CONFLICT = 409


class HeldEvents:
    """Mutable state: what was held at the last look, by source, and the events to write, each with its namespace."""

    def __init__(
        self,
        access: Access,
        held: Callable[[], Mapping[str, HeldObjects]],
        *,
        client: Callable[[Access], ApiClient] = ApiClient,
    ) -> None:
        self._access = access
        self._held = held
        self._client = client
        self._known: dict[str, frozenset[tuple[str, ...]]] = {}
        self._waiting: deque[tuple[str, Json]] = deque(maxlen=MAX_WAITING)
        self._news = trio.Event()

    def __repr__(self) -> str:
        return f"<HeldEvents {len(self._waiting)} waiting>"

    def published(self) -> None:
        """The World has a new revision: look for what is held since."""
        held = self._held()
        for source, picture in held.items():
            known = self._known.get(source, frozenset())
            new = [key for key in picture.keys if key not in known and key[0] == "config"]
            for namespace in sorted({key[2] for key in new if key[2]}):
                keys = tuple(key for key in new if key[2] == namespace)
                self._waiting.append((namespace, event_of(namespace, HeldObjects(source, keys, picture.reason, 0.0))))
                self._news.set()
        self._known = {source: frozenset(picture.keys) for source, picture in held.items()}

    async def run(self, term: Term) -> None:
        """Write events while leading. What the server refuses is said and dropped."""
        async with self._client(self._access) as client:
            while True:
                while self._waiting:
                    term.check()
                    namespace, body = self._waiting.popleft()
                    try:
                        await client.create(EVENTS, body, namespace)
                    except ApiServerError as error:
                        if error.status != _CONFLICT:  # an earlier leader has written it
                            log.warning("event is refused", namespace=namespace, error=str(error))
                    except KubernetesError as error:
                        log.warning("event cannot be written", namespace=namespace, error=str(error))
                news = self._news = trio.Event()
                await news.wait()


def event_of(namespace: str, held: HeldObjects) -> Json:
    """The event about a namespace of which objects are held."""
    security = f" Among them: {', '.join(held.security)}." if held.security else ""
    message = (
        f"{held.first_names}: gone from {held.source}, and still in force, because {held.reason}.{security} "
        f"To let them go: {accept_command(held.source)}"
    )[:MAX_MESSAGE]
    now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
    digest = hashlib.blake2b(f"{now[:16]} {message}".encode(), digest_size=8).hexdigest()
    return {
        "metadata": {"name": f"mesh-pilot-held.{digest}", "namespace": namespace},
        "involvedObject": {"apiVersion": "v1", "kind": "Namespace", "name": namespace, "namespace": namespace},
        "type": "Warning",
        "reason": "HeldInForce",
        "message": message,
        "source": {"component": "mesh-pilot"},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
