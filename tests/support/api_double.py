"""A double of a Kubernetes API server that does on demand what a real one won't.

    double = ApiDouble([PODS, ApiResource("networking.istio.io", ("v1",), "gateways", "Gateway")])
    double.put(PODS, {"metadata": {"name": "a", "namespace": "shop"}, "spec": {}})
    async with serving(double) as access:           # on a port; access has its token
        async with ApiClient(access) as client: ...
    ApiClient(IN_MEMORY, transport=double.transport())      # or without sockets, on any clock

It has lists in pages, watches with bookmarks and streaming lists, selectors, metadata only, create, update (409 where
the resourceVersion is another), patches (merge, JSON; strategic and apply are merged), status as a subresource, and
generations.

    double.fail("GET /api/v1/pods", 429, times=2, retry_after=3)     # the next requests that begin so
    double.forbid("pods"); double.allow("pods")                      # RBAC taken away and given back
    double.compact()            # versions up to now are forgotten: who watches from one of them is told 410
    double.end_watches(); double.cut_watches(); double.gone_watches(); double.write_to_watches(b"garbage\n")
    double.silent = True        # connections stay, and nothing comes
    before = double.snapshot(); double.restore(before)     # an older backup: the version goes backwards
"""

from __future__ import annotations

import copy
import itertools
import json
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import attrs
import httpx
import trio

from mesh_pilot.kubernetes.apiserver import Access, ApiResource, Pem
from tests.support.api_double_http import Answer, DoubleTransport, serve_double
from tests.support.api_objects import (
    Key,
    Object,
    Place,
    Refusal,
    Request,
    Selection,
    content_of,
    group_of,
    key_of,
    patched,
    place_of,
    shown,
    watch_line,
)

TOKEN = "a-token"
IN_MEMORY = Access(server="http://double", token=Pem(text=TOKEN.encode()))
LEASES = ApiResource("coordination.k8s.io", ("v1",), "leases", "Lease")
PODS = ApiResource("", ("v1",), "pods", "Pod")
NO_STATUS = {"configmaps", "secrets", "leases", "endpoints", "endpointslices"}
"""Resources whose status is not a subresource."""


@attrs.define
class Fault:
    begins: str
    refusal: Refusal
    times: int


@attrs.frozen
class Change:
    revision: int
    place: Place
    key: Key
    old: Object | None
    new: Object | None


@attrs.frozen
class Snapshot:
    revision: int
    objects: dict[Place, dict[Key, Object]]


@attrs.define(eq=False)
class ApiDouble:
    """State: objects, all that happened, the faults to come, who watches."""

    resources: list[ApiResource] = attrs.field(factory=list, converter=list)
    token: str = TOKEN
    """The tokens that are let in; any, if empty."""
    revision: int = 1
    compacted: int = 0
    """Watches from below this revision are too old."""
    streaming_lists: str = "yes"
    """Or how they are refused: ``invalid`` (422), ``event`` (as with an old etcd), ``ignored`` (by an old server)."""
    gone_as_event: bool = False
    """A watch from a forgotten version gets 200 and an ERROR event, in place of 410."""
    bookmark_seconds: float = 60.0
    largest_page: int = 10_000
    silent: bool = False
    now: Callable[[], str] = lambda: "2026-11-24T00:00:00Z"
    requests: list[str] = attrs.field(factory=list)
    """Method and target of every request."""
    objects: dict[Place, dict[Key, Object]] = attrs.field(factory=dict)
    history: list[Change] = attrs.field(factory=list)
    watches: list[Watch] = attrs.field(factory=list)
    _faults: list[Fault] = attrs.field(factory=list)
    _lost: list[str] = attrs.field(factory=list)
    _forbidden: set[str] = attrs.field(factory=set)
    _pages: dict[str, tuple[int, list[Object]]] = attrs.field(factory=dict)
    _tokens: itertools.count[int] = attrs.field(factory=lambda: itertools.count(1))
    _uids: itertools.count[int] = attrs.field(factory=lambda: itertools.count(1))
    _news: trio.Event = attrs.field(factory=trio.Event)

    # -- what a test does

    def put(self, resource: ApiResource, found: Mapping[str, Any]) -> Object:
        """Create or replace an object, its status included."""
        written: Object = copy.deepcopy(dict(found))
        key = key_of(resource, written)
        return self._write(resource, key, written)

    def remove(self, resource: ApiResource, name: str, namespace: str = "") -> None:
        key = ("" if resource.cluster_scoped else namespace or "default", name)
        old = self.objects[place_of(resource)].pop(key)
        self.revision += 1
        new = {**old, "metadata": {**old["metadata"], "resourceVersion": str(self.revision)}}
        self._happened(Change(self.revision, place_of(resource), key, new, None))

    def find(self, resource: ApiResource, name: str, namespace: str = "") -> Object | None:
        key = ("" if resource.cluster_scoped else namespace or "default", name)
        return self.objects.get(place_of(resource), {}).get(key)

    def fail(
        self,
        begins: str,
        status: int,
        message: str = "not now",
        *,
        reason: str = "",
        times: int = 1,
        retry_after: int = 0,
    ) -> None:
        """Refuse the next requests whose method and target begin so."""
        headers = {"retry-after": str(retry_after)} if retry_after else {}
        self._faults.append(Fault(begins, Refusal(status, reason, message, headers), times))

    def lose(self, begins: str) -> None:
        """Carry out the next request whose method and target begin so, and break the connection."""
        self._lost.append(begins)

    def forbid(self, plural: str) -> None:
        self._forbidden.add(plural)
        self.end_watches(plural)

    def allow(self, plural: str) -> None:
        self._forbidden.discard(plural)

    def serve(self, resource: ApiResource) -> None:
        """The server knows one more, as a CRD was made."""
        self.resources.append(resource)

    def withdraw(self, resource: ApiResource) -> None:
        """A CRD is deleted: its objects go, and its watches end."""
        for namespace, name in list(self.objects.get(place_of(resource), ())):
            self.remove(resource, name, namespace)
        self.resources.remove(resource)
        self.end_watches(resource.plural)

    def compact(self) -> None:
        self.revision += 1
        self.compacted = self.revision
        self._pages.clear()

    def expire_pages(self) -> None:
        """Lists that are half read can't be read on."""
        self._pages.clear()

    def end_watches(self, plural: str = "") -> None:
        self._each(plural, lambda watch: watch.pending.append(None))

    def cut_watches(self, plural: str = "") -> None:
        """Break their connections, in the middle of a line."""
        self._each(plural, lambda watch: watch.pending.extend([b'{"type":"ADD', ConnectionResetError("cut")]))

    def gone_watches(self, plural: str = "") -> None:
        self.compact()
        refusal = Refusal(410, "Expired", "too old resource version").body()
        self.write_to_watches(watch_line("ERROR", refusal), plural)
        self.end_watches(plural)

    def write_to_watches(self, text: bytes, plural: str = "") -> None:
        self._each(plural, lambda watch: watch.pending.append(text))

    def bookmark(self, plural: str = "") -> None:
        self._each(plural, lambda watch: watch.bookmark())

    def snapshot(self) -> Snapshot:
        return Snapshot(self.revision, copy.deepcopy(self.objects))

    def restore(self, snapshot: Snapshot) -> None:
        """Be the server of an older backup, after a restart."""
        self.revision, self.objects = snapshot.revision, copy.deepcopy(snapshot.objects)
        self.history = [change for change in self.history if change.revision <= self.revision]
        self._pages.clear()
        self.cut_watches()

    def wake(self) -> None:
        """Have connections look again at what was set."""
        news, self._news = self._news, trio.Event()
        news.set()

    async def until(self, holds: Callable[[], object]) -> None:
        """Wait until something holds, looking after every request and change."""
        while not holds():
            await self._news.wait()

    async def until_watched(self, *plurals: str) -> None:
        await self.until(lambda: {*plurals} <= {watch.resource.plural for watch in self.watches})

    def transport(self) -> httpx.AsyncBaseTransport:
        return DoubleTransport(self.answer)

    def _each(self, plural: str, act: Callable[[Watch], object]) -> None:
        for watch in self.watches:
            if plural in ("", watch.resource.plural):
                watch.collect()
                act(watch)
        self.wake()

    # -- requests

    async def answer(self, request: Request) -> Answer:
        """The answer to a request. Raises ConnectionResetError."""
        self.requests.append(f"{request.method} {request.target}")
        self.wake()
        while self.silent:
            await self._news.wait()
        try:
            answer = self._answer(request)
        except Refusal as refusal:
            answer = Answer(refusal.status, json.dumps(refusal.body()).encode(), headers=refusal.headers)
        for begins in self._lost:
            if f"{request.method} {request.target}".startswith(begins):
                self._lost.remove(begins)
                raise ConnectionResetError("lost")
        return answer

    def _answer(self, request: Request) -> Answer:
        for fault in self._faults:
            if fault.times and f"{request.method} {request.target}".startswith(fault.begins):
                fault.times -= 1
                raise fault.refusal
        if self.token and request.headers.get("authorization") != f"Bearer {self.token}":
            raise Refusal(401, "Unauthorized", "Unauthorized")
        group, rest = group_of(request.path)
        if request.path.rstrip("/") == "/apis":
            return _ok({"kind": "APIGroupList", "groups": self._groups()})
        if len(rest) < 2:
            return _ok(self._discovery(group, *rest))
        version, *rest = rest
        namespace = ""
        if rest[0] == "namespaces" and len(rest) > 2:
            namespace, rest = rest[1], rest[2:]
        known = (r for r in self.resources if (r.group, r.plural) == (group, rest[0]) and version in r.versions)
        resource = next(known, None)
        if resource is None:
            raise Refusal(404, "NotFound", "the server could not find the requested resource")
        if resource.plural in self._forbidden:
            raise Refusal(403, "Forbidden", f'{resource.plural} is forbidden: User "x" cannot list resource')
        if len(rest) == 1:
            return self._collection(request, resource, version, namespace)
        return _ok(self._object(request, resource, version, (namespace, rest[1]), "/".join(rest[2:])))

    def _groups(self) -> list[Object]:
        names = sorted({resource.group for resource in self.resources} - {""})
        return [{"name": name, **self._discovery(name)} for name in names]

    def _discovery(self, group: str, version: str = "") -> Object:
        known = [resource for resource in self.resources if resource.group == group]
        versions = sorted({version for resource in known for version in resource.versions})
        if not known or (version and version not in versions):
            raise Refusal(404, "NotFound", "the server could not find the requested resource")
        if not version:
            return {"versions": versions if not group else [{"version": version} for version in versions]}
        found = [
            {"name": r.plural, "kind": r.kind, "namespaced": not r.cluster_scoped}
            for r in known
            if version in r.versions
        ]
        return {"kind": "APIResourceList", "resources": found}

    def _collection(self, request: Request, resource: ApiResource, version: str, namespace: str) -> Answer:
        if request.method == "POST":
            body = json.loads(request.body)
            body.setdefault("metadata", {}).setdefault("namespace", namespace or "default")
            key = key_of(resource, body)
            if key in self.objects.get(place_of(resource), {}):
                raise Refusal(409, "AlreadyExists", f'{resource.plural} "{key[1]}" already exists')
            if resource.plural not in NO_STATUS:
                body.pop("status", None)
            if request.query.get("dryRun"):
                return _ok(shown(body, resource, version), 201)
            return _ok(shown(self._write(resource, key, body), resource, version), 201)
        select = Selection(
            resource,
            version,
            namespace,
            labels=request.query.get("labelSelector", ""),
            fields=request.query.get("fieldSelector", ""),
            is_metadata="as=PartialObjectMetadata" in request.headers.get("accept", ""),
        )
        if request.query.get("watch") in ("1", "true"):
            return Answer(200, self._watch(request.query, select))
        return _ok(self._list(request.query, select))

    def _list(self, query: Mapping[str, str], select: Selection) -> Object:
        if token := query.get("continue"):
            if token not in self._pages:
                raise Refusal(410, "Expired", "The provided continue parameter is too old")
            revision, items = self._pages[token]
        else:
            revision, items = self.revision, self._selected(select)
            if int(query.get("resourceVersion") or 0) > revision:
                raise Refusal(504, "Timeout", "Too large resource version")
        limit = min(int(query.get("limit") or self.largest_page), self.largest_page)
        metadata: Object = {"resourceVersion": str(revision)}
        if len(items) > limit:
            metadata["continue"] = token = f"page-{next(self._tokens)}"
            self._pages[token] = (revision, items[limit:])
            metadata["remainingItemCount"] = len(items) - limit
        kind = "PartialObjectMetadataList" if select.is_metadata else f"{select.resource.kind}List"
        return {"kind": kind, "metadata": metadata, "items": items[:limit]}

    def _selected(self, select: Selection) -> list[Object]:
        found = sorted(self.objects.get(place_of(select.resource), {}).items())
        return [select.shown(each) for _, each in found if select.holds(each)]

    def _watch(self, query: Mapping[str, str], select: Selection) -> Watch:
        since = int(query.get("resourceVersion") or 0)
        streams = query.get("sendInitialEvents") == "true"
        refusal = Refusal(410, "Expired", f"too old resource version: {since} ({self.compacted})")
        watch = Watch(self, select, since, float(query.get("timeoutSeconds") or 1e6), "allowWatchBookmarks" in query)
        if streams and self.streaming_lists == "invalid":
            raise Refusal(422, "Invalid", "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch")
        if streams and self.streaming_lists == "event":
            message = "a watch stream was requested by the client but the required storage feature is disabled"
            watch.pending.extend([watch_line("ERROR", Refusal(500, "InternalError", message).body()), None])
        elif not since:
            watch.since = self.revision
            watch.pending.extend(watch_line("ADDED", each) for each in self._selected(select))
            if streams and self.streaming_lists == "yes":
                watch.bookmark({"k8s.io/initial-events-end": "true"})
        elif since < self.compacted:
            if not self.gone_as_event:
                raise refusal
            watch.pending.extend([watch_line("ERROR", refusal.body()), None])
        self.watches.append(watch)
        self.wake()
        return watch

    def _object(self, request: Request, resource: ApiResource, version: str, key: Key, subresource: str) -> Object:
        key = ("" if resource.cluster_scoped else key[0], key[1])
        old = self.objects.get(place_of(resource), {}).get(key)
        if old is None:
            raise Refusal(404, "NotFound", f'{resource.plural} "{key[1]}" not found')
        match request.method:
            case "GET":
                return shown(old, resource, version)
            case "DELETE":
                options = json.loads(request.body or b"{}")
                wanted = options.get("preconditions", {}).get("resourceVersion")
                if wanted and wanted != old["metadata"]["resourceVersion"]:
                    raise Refusal(409, "Conflict", "the object has been modified; Precondition failed")
                if not options.get("dryRun"):
                    self.remove(resource, key[1], key[0])
                return {"kind": "Status", "status": "Success"}
            case "PUT":
                new = json.loads(request.body)
            case _:
                new = patched(request, old)
        expected = new.get("metadata", {}).get("resourceVersion", "")
        if expected and expected != old["metadata"]["resourceVersion"]:
            raise Refusal(
                409, "Conflict", "the object has been modified; please apply your changes to the latest version"
            )
        if subresource == "status":
            new = {**old, "status": new.get("status", {})}
        elif resource.plural not in NO_STATUS:
            new = {**new, **({"status": old["status"]} if "status" in old else {})}
            if "status" not in old:
                new.pop("status", None)
        if content_of(new) == content_of(old) or request.query.get("dryRun"):
            return shown(old, resource, version)
        return shown(self._write(resource, key, copy.deepcopy(new)), resource, version)

    def _write(self, resource: ApiResource, key: Key, new: Object) -> Object:
        old = self.objects.setdefault(place_of(resource), {}).get(key)
        self.revision += 1
        metadata = new["metadata"]
        before = old["metadata"] if old else {"uid": f"uid-{next(self._uids)}", "creationTimestamp": self.now()}
        metadata |= {name: before[name] for name in ("uid", "creationTimestamp") if name in before}
        metadata["resourceVersion"] = str(self.revision)
        same = old is not None and all(old.get(part) == new.get(part) for part in {*old, *new} - {"metadata", "status"})
        metadata["generation"] = before.get("generation", 0) + (not same)
        metadata["managedFields"] = [{"manager": "double", "operation": "Update", "fieldsV1": {"f:spec": {}}}]
        self.objects[place_of(resource)][key] = new
        self._happened(Change(self.revision, place_of(resource), key, old, new))
        return new

    def _happened(self, change: Change) -> None:
        self.history.append(copy.deepcopy(change))
        self.wake()


@attrs.define(eq=False)
class Watch:
    """State: where it is in the history, and what it will send next: None ends it, an error breaks it."""

    double: ApiDouble
    select: Selection
    since: int
    seconds: float
    has_bookmarks: bool
    pending: deque[bytes | Exception | None] = attrs.field(factory=deque)
    _until: float = attrs.field(factory=lambda: trio.current_time())
    _at: int = 0
    _bookmark_at: float = attrs.field(factory=lambda: trio.current_time())

    def __attrs_post_init__(self) -> None:
        self._until += self.seconds
        self._bookmark_at += self.double.bookmark_seconds

    @property
    def resource(self) -> ApiResource:
        return self.select.resource

    async def next_part(self) -> bytes | None:
        """More text; None at the end. Raises ConnectionResetError."""
        while True:
            if self.double.silent:
                await self.double._news.wait()
                continue
            self.collect()
            if self.pending:
                part = self.pending.popleft()
                if isinstance(part, Exception):
                    raise part
                return part
            if trio.current_time() >= self._until:
                return None
            if self.has_bookmarks and trio.current_time() >= self._bookmark_at:
                self.bookmark()
                continue
            with trio.move_on_at(min(self._until, self._bookmark_at if self.has_bookmarks else self._until)):
                await self.double._news.wait()

    def close(self) -> None:
        if self in self.double.watches:
            self.double.watches.remove(self)
        self.double.wake()

    def bookmark(self, annotations: Mapping[str, str] | None = None) -> None:
        self.collect()
        metadata: Object = {"resourceVersion": str(self.double.revision)}
        metadata |= {"annotations": dict(annotations)} if annotations else {}
        self.pending.append(watch_line("BOOKMARK", {"kind": self.resource.kind, "metadata": metadata}))
        self._bookmark_at = trio.current_time() + self.double.bookmark_seconds

    def collect(self) -> None:
        self._at = min(self._at, len(self.double.history))
        while self._at < len(self.double.history):
            change = self.double.history[self._at]
            self._at += 1
            if change.revision > self.since and change.place == place_of(self.resource):
                old, new = self.select.holds(change.old), self.select.holds(change.new)
                if new and change.new is not None:
                    self.pending.append(watch_line("MODIFIED" if old else "ADDED", self.select.shown(change.new)))
                elif old and change.old is not None:
                    metadata = {**change.old["metadata"], "resourceVersion": str(change.revision)}
                    self.pending.append(watch_line("DELETED", self.select.shown({**change.old, "metadata": metadata})))


def _ok(found: Object, status: int = 200) -> Answer:
    return Answer(status, json.dumps(found).encode())


@asynccontextmanager
async def serving(double: ApiDouble, port: int = 0, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[Access]:
    """The access to a double that listens on a port of this machine; without the block, it refuses connections."""
    async with trio.open_nursery() as nursery:
        address = await nursery.start(partial(serve_double, double.answer, port, tls=tls))
        scheme = "http" if tls is None else "https"
        yield Access(server=f"{scheme}://127.0.0.1:{address}", token=Pem(text=double.token.encode()))
        nursery.cancel_scope.cancel()
