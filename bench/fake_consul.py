"""A Consul of the bench's own: the part of its HTTP API that a source asks for, in memory, in a separate process.

    python -m bench.fake_consul 8500

Written from the documentation of Consul's HTTP API ("Catalog", "Health", "Transactions", "Blocking Queries") and from
what decision 005 found out of when an index moves. There is no Raft, no gossip and no limit of connections; nothing is
random, so that each run gives the same answers. What differs from a real one: states of checks without any check move
only when a check comes into them, and a change of a check's output is none.

``/v1/bench/counts`` says how many queries it had by kind, and the bytes that it answered them with.
"""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qs, urlsplit

import attrs
import h11
import trio

Where = tuple[str, str]
"""A node, and the id of an instance or check on it."""
Object = dict[str, Any]

CATALOG, NODES = "catalog", "nodes"
_LONGEST_WAIT = 600.0


class NoSuchThing(Exception):
    """A path that this Consul does not have."""


@attrs.define
class _Service:
    """The instances of a service, and the index at which one of them, or of their checks, changed."""

    index: int = 0
    instances: dict[Where, Object] = attrs.field(factory=dict)


@attrs.define
class FakeConsul:
    """State: the catalog, the index of its last change, and what it was asked."""

    index: int = 1
    nodes: dict[str, Object] = attrs.field(factory=dict)
    services: dict[str, _Service] = attrs.field(factory=dict)
    checks: dict[Where, Object] = attrs.field(factory=dict)
    queries: Counter[str] = attrs.field(factory=Counter)
    sent_bytes: Counter[str] = attrs.field(factory=Counter)
    _names: dict[Where, str] = attrs.field(factory=dict)
    """The service of each instance."""
    _checks_of: dict[Where, dict[Where, None]] = attrs.field(factory=lambda: defaultdict(dict))
    _in_state: dict[str, dict[Where, None]] = attrs.field(factory=lambda: defaultdict(dict))
    _moved_at: dict[str, int] = attrs.field(factory=dict)
    """The index of each list."""
    _moves: dict[str, trio.Event] = attrs.field(factory=dict)
    """Set when what a query waits for moves, by the list or the service."""

    # -- changes

    def register(self, body: Mapping[str, Any]) -> None:
        """A node, with a service or checks of it; what is there already moves no index."""
        node = str(body["Node"])
        self.index += 1
        self._put_node(node, body)
        if "Service" in body:
            self._put_service(node, body["Service"])
        for check in [*([body["Check"]] if "Check" in body else []), *body.get("Checks", [])]:
            self._put_check(node, check)

    def deregister(self, body: Mapping[str, Any]) -> None:
        """An instance with its checks."""
        self.index += 1
        self._drop_instance((str(body["Node"]), str(body["ServiceID"])))

    def transact(self, operations: Sequence[Mapping[str, Any]]) -> tuple[int, Object]:
        """What a transaction of these operations answers; one that asks for what is not there does nothing."""
        gets = [(at, op["Service"]) for at, op in enumerate(operations) if op.get("Service", {}).get("Verb") == "get"]
        gone = [(at, op) for at, op in gets if (op["Node"], op["Service"]["ID"]) not in self._names]
        if gone:
            return 409, {"Results": None, "Errors": [{"OpIndex": at, "What": "service not found"} for at, _ in gone]}
        self.index += len(gets) < len(operations)
        for operation in operations:
            (kind, each) = next(iter(operation.items()))
            if each["Verb"] == "set":
                {"Service": self._put_service, "Check": self._put_check}[kind](each.get("Node", ""), each[kind])
        found = [self._instance((op["Node"], op["Service"]["ID"])) for _, op in gets]
        return 200, {"Results": [{"Service": each} for each in found], "Errors": None}

    def _put_node(self, name: str, body: Mapping[str, Any]) -> None:
        told = {**_NODE, "Node": name, "Address": body.get("Address", ""), "Meta": body.get("NodeMeta") or {}}
        before = self.nodes.get(name)
        if before is None or _unstamped(before) != told:
            self.nodes[name] = self._stamped(told, before)
            self._move(NODES)
            for where in [where for where in self._names if where[0] == name]:
                self._move_service(self._names[where])

    def _put_service(self, node: str, body: Mapping[str, Any]) -> None:
        where, name = (node, str(body.get("ID") or body["Service"])), str(body["Service"])
        told = {**_INSTANCE, **body, "ID": where[1]}
        service = self.services.setdefault(name, _Service())
        before = service.instances.get(where)
        if before is None or _unstamped(before) != told:
            self._names[where] = name
            service.instances[where] = self._stamped(told, before)
            self._move(CATALOG)
            self._move_service(name)

    def _put_check(self, node: str, body: Mapping[str, Any]) -> None:
        node = node or str(body["Node"])
        where, instance = (node, str(body["CheckID"])), (node, str(body.get("ServiceID", "")))
        told = {**_CHECK, **body, "Node": node, "ServiceName": self._names.get(instance, "")}
        before = self.checks.get(where)
        if before is not None and _unstamped(before) == told:
            return
        self.checks[where] = self._stamped(told, before)
        self._checks_of[instance][where] = None
        self._set_state(where, before and before["Status"], told["Status"])
        if told["ServiceName"]:
            self._move_service(told["ServiceName"])

    def _drop_instance(self, where: Where) -> None:
        name = self._names.pop(where, None)
        if name is None:
            return
        for check in self._checks_of.pop(where, ()):
            self._set_state(check, self.checks.pop(check)["Status"], None)
        del self.services[name].instances[where]
        self._move(CATALOG)
        self._move_service(name)
        if not self.services[name].instances:
            del self.services[name]

    def _set_state(self, check: Where, before: str | None, after: str | None) -> None:
        if before == after:
            return
        if before:
            self._in_state[before].pop(check, None)
            self._move(f"state {before}")
        if after:
            self._in_state[after][check] = None
            self._move(f"state {after}")

    def _stamped(self, told: Object, before: Mapping[str, Any] | None) -> Object:
        return {**told, "CreateIndex": before["CreateIndex"] if before else self.index, "ModifyIndex": self.index}

    def _move_service(self, name: str) -> None:
        self.services[name].index = self.index
        self._move(f"service {name}")

    def _move(self, what: str) -> None:
        self._moved_at[what] = self.index
        if what in self._moves:
            self._moves.pop(what).set()

    # -- answers

    async def answer(self, method: str, target: str, body: bytes) -> tuple[int, Any, int]:
        """Status, what JSON it is, and the index; a query that waits is answered once there is news."""
        url = urlsplit(target)
        parameters = {name: values[0] for name, values in parse_qs(url.query).items()}
        path = f"{method} {url.path}"
        if method == "PUT":
            told = json.loads(body)
            if path == "PUT /v1/txn":
                return (*self.transact(told), 0)
            {"PUT /v1/catalog/register": self.register, "PUT /v1/catalog/deregister": self.deregister}[path](told)
            return 200, True, 0
        what, give = self._question(path, parameters)
        if what and "index" in parameters:
            await self._moved(what, int(parameters["index"]), _seconds(parameters.get("wait", "300s")))
        return 200, give(), max(1, self._moved_at.get(what, 1))

    def _question(self, path: str, parameters: Mapping[str, str]) -> tuple[str, Callable[[], Any]]:
        """What a query waits for, and what then gives its answer. Raises NoSuchThing."""
        if path == "GET /v1/catalog/services":
            return CATALOG, lambda: {name: _tags(each.instances.values()) for name, each in self._listed()}
        if path == "GET /v1/catalog/nodes":  # the source's only filter is one that no node meets
            return NODES, lambda: [] if "filter" in parameters else list(self.nodes.values())
        if path == "GET /v1/internal/ui/services":
            return "", lambda: list(self._summary())
        if path == "GET /v1/bench/counts":
            return "", lambda: {"queries": self.queries, "bytes": self.sent_bytes}
        if (name := path.removeprefix("GET /v1/health/service/")) != path:
            return f"service {name}", lambda: list(self._health(name))
        if (state := path.removeprefix("GET /v1/health/state/")) != path:
            return f"state {state}", lambda: [self.checks[where] for where in self._in_state.get(state, ())]
        raise NoSuchThing(path)

    async def _moved(self, what: str, index: int, seconds: float) -> None:
        with trio.move_on_after(min(seconds, _LONGEST_WAIT)):
            while self._moved_at.get(what, 1) == index:
                await self._moves.setdefault(what, trio.Event()).wait()

    def _listed(self) -> Sequence[tuple[str, _Service]]:
        return [("consul", _Service()), *sorted(self.services.items())]

    def _instance(self, where: Where) -> Object:
        return self.services[self._names[where]].instances[where]

    def _health(self, name: str) -> Iterator[Object]:
        instances = self.services[name].instances if name in self.services else {}
        for where, instance in sorted(instances.items()):
            checks = [self.checks[check] for check in self._checks_of.get(where, ())]
            yield {"Node": self.nodes[where[0]], "Service": instance, "Checks": checks}

    def _summary(self) -> Iterator[Object]:
        for name, service in self._listed():
            states = Counter(self.checks[c]["Status"] for where in service.instances for c in self._checks_of[where])
            yield {
                "Kind": "",
                "Name": name,
                "Tags": _tags(service.instances.values()),
                "Nodes": sorted({node for node, _ in service.instances}),
                "InstanceCount": len(service.instances),
                "ProxyFor": None,
                "ExternalSources": None,
                **{f"Checks{state.title()}": states[state] for state in ("passing", "warning", "critical")},
                "GatewayConfig": {},
                "ConnectedWithProxy": False,
                "ConnectedWithGateway": False,
            }

    # -- the server

    async def serve(self, stream: trio.SocketStream) -> None:
        """A connection, until its client closes it."""
        connection = h11.Connection(h11.SERVER)
        request, body = None, b""
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError, h11.RemoteProtocolError):
            async with stream:
                while True:
                    event = connection.next_event()
                    if event is h11.NEED_DATA:
                        connection.receive_data(await stream.receive_some())
                    elif isinstance(event, h11.Request):
                        request, body = event, b""
                    elif isinstance(event, h11.Data):
                        body += event.data
                    elif isinstance(event, h11.EndOfMessage):
                        assert request is not None
                        await stream.send_all(await self._reply(connection, request, body))
                        connection.start_next_cycle()
                    elif isinstance(event, h11.ConnectionClosed):
                        return

    async def _reply(self, connection: h11.Connection, request: h11.Request, body: bytes) -> bytes:
        method, target = request.method.decode(), request.target.decode()
        kind = kind_of(method, target)
        self.queries[kind] += 1
        try:
            status, told, index = await self.answer(method, target, body)
        except NoSuchThing as error:
            status, told, index = 404, f"no such thing here: {error}", 0
        content = json.dumps(told, separators=(",", ":")).encode()
        self.sent_bytes[kind] += len(content)
        headers = [("content-type", "application/json"), ("content-length", str(len(content)))]
        headers += [("x-consul-index", str(index))] if index else []
        events = (h11.Response(status_code=status, headers=headers), h11.Data(data=content), h11.EndOfMessage())
        return b"".join(connection.send(event) or b"" for event in events)


_NODE: Object = {"ID": "", "Datacenter": "dc1", "TaggedAddresses": None}
_INSTANCE: Object = {
    "Tags": [],
    "Meta": {},
    "Kind": "",
    "Address": "",
    "Port": 0,
    "EnableTagOverride": False,
    "Weights": {"Passing": 1, "Warning": 1},
    "Proxy": {"MeshGateway": {}, "Expose": {}},
    "Connect": {},
}
_CHECK: Object = {"Notes": "", "Output": "", "Status": "critical", "Type": "", "ServiceTags": [], "Definition": {}}


def kind_of(method: str, target: str) -> str:
    """The kind of a query, without the name that it is about: ``health/service``."""
    path = urlsplit(target).path.removeprefix("/v1/")
    if path.startswith(("health/service/", "health/state/")):
        path = path.rpartition("/")[0]
    return path if method == "GET" else f"{method} {path}"


def _unstamped(told: Mapping[str, Any]) -> Object:
    return {name: value for name, value in told.items() if name not in ("CreateIndex", "ModifyIndex")}


def _tags(instances: Iterable[Object]) -> list[str]:
    return sorted({tag for each in instances for tag in each["Tags"]})


def _seconds(text: str) -> float:
    return float(text.removesuffix("ms")) / 1000 if text.endswith("ms") else float(text.removesuffix("s"))


async def run(port: int) -> None:
    """Answer on the loopback until cancelled."""
    await trio.serve_tcp(FakeConsul().serve, port, host="127.0.0.1", backlog=1000)


if __name__ == "__main__":
    trio.run(run, int(sys.argv[1]))
