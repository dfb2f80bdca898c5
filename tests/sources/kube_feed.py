"""Istio's objects at the double of an API server, as the tests of sources follow them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import trio

from mesh_pilot.base.backoff import Backoff
from mesh_pilot.istio.kinds import KINDS
from mesh_pilot.kubernetes.apiserver import Access, ApiResource, Pem
from mesh_pilot.kubernetes.source import KubernetesSource
from mesh_pilot.model.events import Item
from tests.support.api_double import TOKEN, ApiDouble
from tests.support.api_double_http import serve_double

RESOURCES = {
    kind.name: ApiResource(kind.group, kind.versions, kind.plural, kind.name, kind.cluster_scoped)
    for kind in KINDS.values()
}
ROUTES = RESOURCES["VirtualService"]


def virtual_service(name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "default"}, "spec": spec}


class KubeFeed:
    """An API server that can be stopped and started on its port."""

    def __init__(self, nursery: trio.Nursery, port: int) -> None:
        self.api = ApiDouble(RESOURCES.values(), largest_page=2)
        self.port = port
        self._nursery = nursery
        access = Access(server=f"http://127.0.0.1:{port}", token=Pem(text=TOKEN.encode()))
        backoff = partial(Backoff, first_seconds=0.01, limit_seconds=0.05)
        self.source = KubernetesSource(access, backoff=backoff)
        self._scope = trio.CancelScope()
        self._stopped = trio.Event()

    @classmethod
    async def open(cls, nursery: trio.Nursery, port: int) -> KubeFeed:
        feed = cls(nursery, port)
        await feed.restore()
        return feed

    async def put(self, name: str, version: int) -> None:
        route = {"route": [{"destination": {"host": name}}], "timeout": f"{version}s"}
        self.api.put(ROUTES, virtual_service(name, {"hosts": [name], "http": [route]}))

    async def put_bad(self, name: str) -> None:
        self.api.put(ROUTES, virtual_service(name, {"hosts": [name]}))

    async def remove(self, name: str) -> None:
        self.api.remove(ROUTES, name)

    async def break_off(self) -> None:
        self._scope.cancel()
        await self._stopped.wait()

    async def restore(self) -> None:
        await self._nursery.start(self._serve)

    async def _serve(self, *, task_status: trio.TaskStatus[int]) -> None:
        self._stopped = trio.Event()
        with trio.CancelScope() as self._scope:
            await serve_double(self.api.answer, self.port, task_status=task_status)
        self._stopped.set()

    def key(self, name: str) -> tuple[str, ...]:
        return ("config", "VirtualService", "default", name)

    def version(self, item: Item) -> int:
        return int(item.spec.http[0].timeout.total_seconds())  # type: ignore[union-attr]
