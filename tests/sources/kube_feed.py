"""An API server of Kubernetes in a test's hand: lists in pages, watches with bookmarks, and a memory that ends."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any
from urllib.parse import parse_qs, urlsplit

import attrs
import trio

from mesh_pilot.apiserver import Access, Pem
from mesh_pilot.config.kinds import KINDS
from mesh_pilot.model.events import Item
from mesh_pilot.sources.base import Backoff
from mesh_pilot.sources.kubernetes import KubernetesSource

ROUTES = "virtualservices"
TOKEN = "a-token"

Object = dict[str, Any]


def all_versions() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for kind in KINDS.values():
        found.setdefault(kind.group, set()).update(kind.versions)
    return found


def virtual_service(name: str, spec: Mapping[str, Any]) -> Object:
    return {"metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", "managedFields": []}, "spec": spec}


@attrs.define(eq=False)
class ApiServer:
    """State: objects by plural and name, all that ever happened, and who waits for more."""

    served: dict[str, list[str]] = attrs.field(
        factory=lambda: {
            kind.group: sorted({v for k in KINDS.values() if k.group == kind.group for v in k.versions})
            for kind in KINDS.values()
        }
    )
    """The versions of each group."""
    objects: dict[str, dict[str, Object]] = attrs.field(factory=dict)
    history: list[tuple[int, str, str, Object]] = attrs.field(factory=list)
    """Version, plural, type of event, object."""
    version: int = 1
    forgotten: int = 0
    """Versions up to this one are no longer known."""
    page: int = 2
    requests: list[str] = attrs.field(factory=list)
    news: trio.Event = attrs.field(factory=trio.Event)
    watches: set[trio.CancelScope] = attrs.field(factory=set)

    def put(self, plural: str, found: Object) -> None:
        name = found["metadata"]["name"]
        kind = "MODIFIED" if name in self.objects.get(plural, {}) else "ADDED"
        self.version += 1
        found["metadata"]["resourceVersion"] = str(self.version)
        self.objects.setdefault(plural, {})[name] = found
        self._happened(plural, kind, found)

    def remove(self, plural: str, name: str) -> None:
        found = self.objects[plural].pop(name)
        self.version += 1
        gone = {**found, "metadata": {**found["metadata"], "resourceVersion": str(self.version)}}
        self._happened(plural, "DELETED", gone)

    def _happened(self, plural: str, kind: str, found: Object) -> None:
        self.history.append((self.version, plural, kind, json.loads(json.dumps(found))))
        self.wake()

    def wake(self) -> None:
        self.news.set()
        self.news = trio.Event()

    def forget(self) -> None:
        """End all watches, and the memory of all that happened."""
        self.version += 1
        self.forgotten = self.version
        for watch in self.watches:
            watch.cancel()

    async def handle(self, stream: trio.SocketStream) -> None:
        """One connection, one request after another."""
        data = b""
        try:
            while True:
                while b"\r\n\r\n" not in data:
                    more = await stream.receive_some()
                    if not more:
                        return
                    data += more
                head, _, data = data.partition(b"\r\n\r\n")
                await self._reply(stream, head.decode())
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass

    async def _reply(self, stream: trio.SocketStream, head: str) -> None:
        target = head.split(" ", 2)[1]
        self.requests.append(target)
        if f"Bearer {TOKEN}" not in head:
            return await _send(stream, 401, {"message": "Unauthorized"})
        url = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        group, *rest = url.path.removeprefix("/apis/").split("/")
        if group not in self.served or (rest and rest[0] not in self.served[group]):
            return await _send(stream, 404, {"message": "the server could not find the requested resource"})
        if len(rest) == 1:
            resources = [{"name": kind.plural} for kind in KINDS.values() if kind.group == group]
            return await _send(stream, 200, {"resources": resources})
        if not rest:
            return await _send(stream, 200, {"versions": [{"version": version} for version in self.served[group]]})
        if "watch" in query:
            return await self._watch(stream, rest[1], int(query["resourceVersion"]))
        names = sorted(self.objects.get(rest[1], {}))
        start = int(query.get("continue", 0))
        metadata: Object = {"resourceVersion": str(self.version)}
        if start + self.page < len(names):
            metadata["continue"] = str(start + self.page)
        items = [self.objects[rest[1]][name] for name in names[start : start + self.page]]
        return await _send(stream, 200, {"items": items, "metadata": metadata})

    async def _watch(self, stream: trio.SocketStream, plural: str, since: int) -> None:
        if since < self.forgotten:
            await _send(stream, 410, {"message": "too old resource version"})
            return
        with trio.CancelScope() as scope:
            self.watches.add(scope)
            await stream.send_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
            at = 0
            while True:
                news, upto = self.news, len(self.history)
                for version, where, kind, found in self.history[at:upto]:
                    if where == plural and version > since:
                        await _chunk(stream, {"type": kind, "object": found})
                at = upto
                position = max([since, *(event[0] for event in self.history[:upto])])
                bookmark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(position)}}}
                await _chunk(stream, bookmark)
                await news.wait()
        self.watches.discard(scope)
        if self.forgotten:
            await _chunk(stream, {"type": "ERROR", "object": {"code": 410, "message": "too old"}})
        await stream.send_all(b"0\r\n\r\n")


async def _send(stream: trio.SocketStream, status: int, body: Object) -> None:
    text = json.dumps(body).encode()
    head = f"HTTP/1.1 {status} x\r\ncontent-type: application/json\r\ncontent-length: {len(text)}\r\n\r\n"
    await stream.send_all(head.encode() + text)


async def _chunk(stream: trio.SocketStream, event: Object) -> None:
    line = json.dumps(event).encode() + b"\n"
    await stream.send_all(f"{len(line):x}\r\n".encode() + line + b"\r\n")


class KubeFeed:
    """An API server that can be stopped and started on its port."""

    def __init__(self, nursery: trio.Nursery, port: int) -> None:
        self.api = ApiServer()
        self._nursery = nursery
        self._port = port
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

    async def _serve(self, *, task_status: trio.TaskStatus[None]) -> None:
        self._stopped = trio.Event()
        with trio.CancelScope() as self._scope:
            await trio.serve_tcp(self.api.handle, self._port, host="127.0.0.1", task_status=_Ignoring(task_status))
        self._stopped.set()

    def key(self, name: str) -> tuple[str, ...]:
        return ("config", "VirtualService", "default", name)

    def version(self, item: Item) -> int:
        return int(item.spec.http[0].timeout.total_seconds())  # type: ignore[union-attr]


@attrs.frozen
class _Ignoring:
    """Of what serve_tcp says of itself, only that it has started."""

    status: trio.TaskStatus[None]

    def started(self, value: object = None) -> None:
        self.status.started()
