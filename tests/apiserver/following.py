"""A listener that keeps the objects it was told of, and checks that it is told nothing twice."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import attrs
import trio

from mesh_pilot.base.backoff import Backoff
from mesh_pilot.kubernetes.apiserver import ApiClient, ApiResource, reflect
from tests.support.api_double import IN_MEMORY, PODS, ApiDouble


@attrs.define(eq=False)
class Following:
    """State: the objects by namespace and name, all that was told in one line each, and who waits for more."""

    client: ApiClient
    objects: dict[str, Any] = attrs.field(factory=dict)
    told: list[str] = attrs.field(factory=list)
    losses: list[str] = attrs.field(factory=list)
    version: str | None = None
    is_lost: bool = False
    _news: trio.Event = attrs.field(factory=trio.Event)

    async def listed(self, resource: ApiResource, version: str, objects: list[Any]) -> None:
        assert version or not objects
        self.version, self.objects = version, {key(found): found for found in objects}
        self._note("listed " + " ".join(name(each) for each in sorted(self.objects)))

    async def changed(self, resource: ApiResource, version: str, found: Any, *, there: bool) -> None:
        assert version == self.version
        assert (key(found) in self.objects) or there, "it is not there, and goes"
        assert self.objects.get(key(found)) != found, "it is as it was"
        if there:
            self.objects[key(found)] = found
        else:
            del self.objects[key(found)]
        self._note(f"{'there' if there else 'gone'} {name(key(found))}")
        await trio.lowlevel.checkpoint()

    def lost(self, resource: ApiResource, reason: str) -> None:
        assert "\n" not in reason
        self.is_lost = True
        self.losses.append(reason)
        self._wake()

    def found(self, resource: ApiResource) -> None:
        self.is_lost = False
        self._wake()

    def take(self) -> list[str]:
        """What was told since the last time."""
        told, self.told = self.told, []
        return told

    async def until(self, holds: Callable[[], object]) -> None:
        while not holds():
            await self._news.wait()

    def _note(self, line: str) -> None:
        self.told.append(line)
        self._wake()

    def _wake(self) -> None:
        news, self._news = self._news, trio.Event()
        news.set()


def key(found: Any) -> str:
    return f"{found['metadata'].get('namespace', '')}/{found['metadata']['name']}"


def name(key: str) -> str:
    return key.rpartition("/")[2]


def pod(name: str, **spec: Any) -> dict[str, Any]:
    labels = {"app": str(spec.get("app", "x"))}
    return {"metadata": {"name": name, "namespace": "shop", "labels": labels}, "spec": spec, "status": {}}


@asynccontextmanager
async def following(
    double: ApiDouble, resource: ApiResource = PODS, *, client: ApiClient | None = None, **options: Any
) -> AsyncIterator[Following]:
    """What follows a resource of a double; one more of the same server with its ``client``."""
    own = client or ApiClient(IN_MEMORY, transport=double.transport())
    listener = Following(own)
    backoff = Backoff(random=lambda: 1.0)
    async with trio.open_nursery() as nursery:
        if client is None:
            await nursery.start(_open, own)
        nursery.start_soon(partial(reflect, own, resource, listener, backoff, **options))
        yield listener
        nursery.cancel_scope.cancel()


async def _open(client: ApiClient, *, task_status: trio.TaskStatus[None]) -> None:
    async with client:
        task_status.started()
        await trio.sleep_forever()
