"""Route tables at work: a real Envoy with one of our tables, and backends that say what reached them.

    async with routed(table, tmp_path) as ask:
        seen = await ask("http://web/a", headers={"x-user": "1"})
        assert seen.cluster == "outbound|80||web.shop.svc.cluster.local"

Clusters are static here, one backend each: what is tested is the routes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import h11
import httpx
import trio
from envoy.config.route.v3 import route_pb2
from google.protobuf import json_format

from mesh_pilot.cli.demo.envoy_process import running_envoy
from mesh_pilot.model.resource import Resource
from tests.support.binaries import require_binary

FILTERS = {"fault": "fault.v3.HTTPFault", "cors": "cors.v3.Cors", "router": "router.v3.Router"}


@attrs.frozen
class Answer:
    """What a client got, and what the backend saw of its request (empty if none did)."""

    status: int
    headers: httpx.Headers
    text: str
    cluster: str = ""
    """The cluster that answered."""
    path: str = ""
    """The path as the backend saw it."""
    seen: dict[str, str] = attrs.field(factory=dict)
    """The headers as the backend saw them, the host under ``host``."""


class Asker:
    """Sends requests through Envoy."""

    def __init__(self, client: httpx.AsyncClient, base: str, backends: dict[str, Backend]) -> None:
        self._client = client
        self._base = base
        self.backends = backends
        """By cluster; ``calls`` counts the requests that reached each."""

    async def __call__(self, url: str, method: str = "GET", **given: Any) -> Answer:
        """A request to ``http://host/path``; keywords are httpx's."""
        asked = httpx.URL(url)
        headers = {"host": asked.netloc.decode(), **given.pop("headers", {})}
        path = asked.raw_path.decode()
        reply = await self._client.request(method, self._base + path, headers=headers, **given)
        said = json.loads(reply.text) if "x-backend" in reply.headers and reply.text else {}
        return Answer(reply.status_code, reply.headers, reply.text, **said)


class Backend:
    """An HTTP/1.1 server that answers every request with what it saw of it, and counts them.

    The header ``x-answer`` asks for these statuses, one a request (``503,200``); ``x-hang`` for no answer at all.
    """

    def __init__(self, cluster: str) -> None:
        self.cluster = cluster
        self.calls: Counter[str] = Counter()
        """Requests by path."""
        self.called = trio.Event()
        """Set by the first request."""

    async def serve(self, stream: trio.SocketStream) -> None:
        connection = h11.Connection(h11.SERVER)
        async with stream:
            try:
                while await self._answer(connection, stream):
                    connection.start_next_cycle()
            except (trio.BrokenResourceError, h11.ProtocolError):
                pass

    async def _answer(self, connection: h11.Connection, stream: trio.SocketStream) -> bool:
        request = None
        while not isinstance(event := connection.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                connection.receive_data(await stream.receive_some())
            elif isinstance(event, h11.Request):
                request = event
            elif isinstance(event, h11.ConnectionClosed):
                return False
        assert request is not None
        path = request.target.decode()
        self.calls[path] += 1
        self.called.set()
        seen = {name.decode(): value.decode() for name, value in request.headers}
        if "x-hang" in seen:
            await trio.sleep_forever()
        statuses = seen.get("x-answer", "200").split(",")
        status = int(statuses[min(self.calls[path], len(statuses)) - 1])
        body = json.dumps({"cluster": self.cluster, "path": path, "seen": seen}).encode()
        head = [("x-backend", "1"), ("content-length", str(len(body)))]
        for out in (h11.Response(status_code=status, headers=head), h11.Data(data=body), h11.EndOfMessage()):
            await stream.send_all(connection.send(out) or b"")
        return True


@asynccontextmanager
async def routed(table: Resource | None, folder: Path) -> AsyncIterator[Asker]:
    """Run Envoy with this route table on one listener, and a backend for every cluster that the table names."""
    require_binary("envoy")
    assert table is not None
    message = route_pb2.RouteConfiguration.FromString(table.body)
    document: dict[str, Any] = json.loads(json_format.MessageToJson(message, preserving_proto_field_name=True))
    async with trio.open_nursery() as nursery:
        backends = {}
        clusters = []
        for name in sorted(set(_clusters(document))):
            backend = backends[name] = Backend(name)
            port = await nursery.start(_run, backend.serve)
            clusters.append(_cluster(name, port))
        async with (
            running_envoy(_bootstrap(document, clusters), folder) as envoy,
            httpx.AsyncClient(timeout=60, trust_env=False) as client,
        ):
            await envoy.wait_live()
            yield Asker(client, f"http://{(await envoy.listening())['routed']}", backends)
        nursery.cancel_scope.cancel()


async def _run(serve: Callable[[trio.SocketStream], Awaitable[None]], *, task_status: trio.TaskStatus[int]) -> None:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    task_status.started(listeners[0].socket.getsockname()[1])
    await trio.serve_listeners(partial(serve), listeners)


def _clusters(document: Any) -> Iterable[str]:
    """Every cluster that a route table names."""
    if isinstance(document, dict):
        own = document.get("cluster")
        if isinstance(own, str):
            yield own
        for weighted in (document.get("weighted_clusters") or {}).get("clusters", ()):
            yield weighted["name"]
        document = list(document.values())
    if isinstance(document, list):
        for part in document:
            yield from _clusters(part)


def _cluster(name: str, port: int) -> dict[str, Any]:
    address = {"socket_address": {"address": "127.0.0.1", "port_value": port}}
    assignment = {"cluster_name": name, "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}]}
    return {"name": name, "load_assignment": assignment}


def _bootstrap(table: dict[str, Any], clusters: list[dict[str, Any]]) -> dict[str, Any]:
    prefix = "type.googleapis.com/envoy.extensions.filters"
    manager = {
        "@type": f"{prefix}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "routed",
        "route_config": table,
        "http_filters": [
            {"name": f"envoy.filters.http.{name}", "typed_config": {"@type": f"{prefix}.http.{kind}"}}
            for name, kind in FILTERS.items()
        ],
    }
    listener = {
        "name": "routed",
        "address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}},
        "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}],
    }
    admin = {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}}}
    return {"admin": admin, "static_resources": {"listeners": [listener], "clusters": list(clusters)}}
