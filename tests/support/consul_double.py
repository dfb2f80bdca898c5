"""A double of Consul for what no Consul here has: its answers are written from the API's documentation.

What is taken from there: ``Ports`` in place of ``Port`` (service definitions of 1.22 and 2.0), ``Namespace`` and
``Partition`` of nodes and services, ``Locality`` (Enterprise), config entries that the community's Consul refuses
(``RateLimits``, ``PrioritizeByLocality``). No test with it shows that a real Consul answers so.

    async with consul_double() as consul:
        consul.register("shop", "shop-1", "10.0.0.1", Ports=[{"Name": "http", "Port": 8080, "Default": True}])
        consul.check("shop", "shop-1", "port:http", "critical")
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from copy import deepcopy
from typing import Any

from mesh_pilot.consul.mesh.entries import KINDS
from tests.support.consul_stub import ConsulStub, consul_stub


class ConsulDouble:
    """State: the index, the instances with their checks by service and id, and the config entries by kind and name."""

    def __init__(self, stub: ConsulStub) -> None:
        self._stub = stub
        self._index = 1
        self._instances: dict[str, dict[str, dict[str, Any]]] = {}
        self._entries: dict[str, dict[str, dict[str, Any]]] = {kind: {} for kind in KINDS}
        stub.answer("/v1/connect/intentions", [])
        stub.answer("/v1/connect/intentions/check", {"Allowed": True})
        stub.answer("/v1/connect/intentions/match", {})
        self._tell()

    @property
    def address(self) -> str:
        return self._stub.address

    @property
    def asked(self) -> list[Any]:
        return self._stub.asked

    def register(self, name: str, id: str, address: str, *, node: dict[str, Any] | None = None, **service: Any) -> None:
        """Put an instance there, without checks; ``service`` is what the API calls it."""
        self._instances.setdefault(name, {})[id] = {
            "Node": {"Node": "node-1", "Address": "127.0.0.1", "Datacenter": "dc1", "Meta": {}, **(node or {})},
            "Service": {
                "ID": id,
                "Service": name,
                "Address": address,
                "Port": 0,
                "Meta": {},
                "Tags": [],
                "Weights": {"Passing": 1, "Warning": 1},
                **service,
            },
            "Checks": [],
        }
        self._tell()

    def check(self, name: str, id: str, check: str, status: str, output: str = "") -> None:
        """Set a check of an instance, by its name."""
        entry = self._instances[name][id]
        others = [each for each in entry["Checks"] if each["Name"] != check]
        entry["Checks"] = [
            *others,
            {"CheckID": f"service:{id}:{check}", "Name": check, "Status": status, "Output": output},
        ]
        self._tell()

    def deregister(self, name: str, id: str) -> None:
        del self._instances[name][id]
        self._tell()

    def write(self, kind: str, name: str, **entry: Any) -> None:
        """Write a config entry."""
        self._entries[kind][name] = {"Kind": kind, "Name": name, **entry}
        self._tell()

    def delete(self, kind: str, name: str) -> None:
        del self._entries[kind][name]
        self._tell()

    def _tell(self) -> None:
        self._index += 1
        for name, instances in self._instances.items():
            self._answer(f"/v1/health/service/{name}", list(instances.values()))
        self._answer(
            "/v1/catalog/services", {"consul": [], **{name: [] for name, each in self._instances.items() if each}}
        )
        for kind, entries in self._entries.items():
            self._answer(f"/v1/config/{kind}", list(entries.values()))

    def _answer(self, path: str, body: Any) -> None:
        """Answer with something else from now on, where it is something else: other queries go on waiting."""
        before = self._stub.replies.get(path)
        if before is None or before.body != body:
            self._stub.answer(path, deepcopy(body), index=self._index)


@asynccontextmanager
async def consul_double() -> AsyncIterator[ConsulDouble]:
    """One on the loopback for the length of the block, with an empty catalog."""
    async with consul_stub() as stub:
        yield ConsulDouble(stub)
