"""A real Consul for a test: an agent in dev mode, what a test does with it, and a cable to it that can be cut.

async with real_consul(tmp_path) as consul:
    await consul.register("web", port=8080, meta={"protocol": "http"})
    async with cable(consul.port) as line: ...

It is the one that ``CONSUL`` names, 1.8. A test that asks for the fixture ``each_consul`` runs with the newest one as
well, one that asks for ``newest_consul`` with that alone (tools/get_consul.py has both).
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import attrs
import httpx
import trio

from tests.support.binaries import require_binary
from tests.support.envoy import eventually

TICK = 0.02


@attrs.define
class Consul:
    """A running agent."""

    process: trio.Process
    port: int
    client: httpx.AsyncClient = attrs.field(repr=False)
    log: Path

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        reply = await self.client.request(method, path, **more)
        assert reply.status_code == 200, f"{method} {path}: {reply.status_code} {reply.text}"
        return reply

    async def register(
        self,
        name: str,
        *,
        id: str = "",
        address: str = "10.0.0.1",
        port: int = 8080,
        meta: Mapping[str, str] | None = None,
        tags: Sequence[str] = (),
        **more: Any,
    ) -> None:
        """Put an instance there. ``more`` is what Consul calls it: Check, Weights, TaggedAddresses, Kind..."""
        body = {"Name": name, "ID": id or name, "Address": address, "Port": port, "Meta": meta or {}, "Tags": tags}
        await self.ask("PUT", "/v1/agent/service/register", json={**body, **more})

    async def deregister(self, id: str) -> None:
        await self.ask("PUT", f"/v1/agent/service/deregister/{id}")

    async def check(self, id: str, status: str) -> None:
        """Set a TTL check: pass, warn or fail."""
        await self.ask("PUT", f"/v1/agent/check/{status}/service:{id}")

    async def maintenance(self, id: str, on: bool) -> None:
        await self.ask("PUT", f"/v1/agent/service/maintenance/{id}", params={"enable": str(on).lower()})

    async def put(self, key: str, value: str) -> None:
        await self.ask("PUT", f"/v1/kv/{key}", content=value.encode())

    async def delete(self, key: str, *, recurse: bool = False) -> None:
        await self.ask("DELETE", f"/v1/kv/{key}", params={"recurse": "true"} if recurse else {})

    async def kill(self) -> None:
        """End it without a word."""
        self.process.kill()
        await self.process.wait()


TTL = {"TTL": "10m", "Status": "passing"}
"""A check whose state a test sets."""


@asynccontextmanager
async def real_consul(
    folder: Path,
    ports: Sequence[int],
    *,
    name: str = "consul",
    config: Mapping[str, Any] | None = None,
    arguments: Sequence[str] = ("-dev",),
    client: httpx.AsyncClient | None = None,
    led: bool = True,
    variable: str = "",
) -> AsyncIterator[Consul]:
    """Run an agent on the loopback with these ports (HTTP, server RPC, serf LAN, serf WAN; gRPC over TLS where it is to
    have peers) for the length of the block.

    Skips the test where there is no Consul (fails in CI). ``led``: wait until it has a leader.
    ``variable``: the environment variable that names another version of it.
    """
    binary = require_binary("consul", variable)
    http, server, lan, wan, *for_peers = ports
    own = {"http": http, "dns": -1, "grpc": -1, "server": server, "serf_lan": lan, "serf_wan": wan}
    if _has_peers(binary):
        own["grpc_tls"] = for_peers[0] if for_peers else -1
    settings = {
        "bind_addr": "127.0.0.1",
        "client_addr": "127.0.0.1",
        "ports": own,
        "node_name": name,
        "disable_update_check": True,
        "log_level": "warn",
        "limits": {"http_max_conns_per_client": 1000},
        **(config or {}),
    }
    path, log = folder / f"{name}.json", folder / f"{name}.log"
    path.write_text(json.dumps(settings))
    with log.open("ab") as output:
        process = await trio.lowlevel.open_process(
            [str(binary), "agent", *arguments, "-config-file", str(path)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        async with client or httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{http}", timeout=60, trust_env=False
        ) as asking:
            consul = Consul(process, http, asking, log)
            with trio.fail_after(60):
                while led and not await _is_led(consul):
                    assert process.poll() is None, log.read_text()[-2000:]
                    await trio.sleep(TICK)
            yield consul
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()


@cache
def _has_peers(binary: Path) -> bool:
    """True if a Consul can be peered: an older one knows no port for it."""
    said = subprocess.run([binary, "version"], capture_output=True, text=True, check=True).stdout
    major, minor = said.split()[1].removeprefix("v").split(".")[:2]
    return (int(major), int(minor)) >= (1, 14)


async def peer(accepting: Consul, as_name: str, dialing: Consul, its_name: str) -> None:
    """Peer two clusters: the first calls the second ``as_name``, and the second calls the first ``its_name``."""
    token = (await accepting.ask("POST", "/v1/peering/token", json={"PeerName": as_name})).json()["PeeringToken"]
    body = {"PeerName": its_name, "PeeringToken": token}
    await dialing.ask("POST", "/v1/peering/establish", json=body)

    async def is_active(consul: Consul, name: str) -> bool:
        return bool((await consul.ask("GET", f"/v1/peering/{name}")).json()["State"] == "ACTIVE")

    for consul, name in ((accepting, as_name), (dialing, its_name)):
        await eventually(lambda consul=consul, name=name: is_active(consul, name), what=f"peering {name} is active")


async def export(consul: Consul, peer: str, *services: str) -> None:
    """Export these services to a peer, and no others."""
    exported = [{"Name": service, "Consumers": [{"Peer": peer}]} for service in services]
    await consul.ask("PUT", "/v1/config", json={"Kind": "exported-services", "Name": "default", "Services": exported})


async def _is_led(consul: Consul) -> bool:
    """True if it has a leader, and is in the catalog itself."""
    try:
        reply = await consul.client.get("/v1/catalog/services")
        return reply.status_code == 200 and "consul" in reply.json()
    except (httpx.TransportError, ValueError):
        return False


class Cable:
    """A TCP forwarder between a source and its agent. ``cut()`` resets all connections and refuses new ones."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self.connections = 0
        """How many were ever made."""
        self._is_cut = False
        self._scopes: set[trio.CancelScope] = set()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def cut(self) -> None:
        self._is_cut = True
        for scope in self._scopes:
            scope.cancel()

    def fix(self) -> None:
        self._is_cut = False

    async def carry(self, near: trio.SocketStream) -> None:
        if self._is_cut:
            await trio.aclose_forcefully(near)
            return
        self.connections += 1
        with trio.CancelScope() as scope, suppress(OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            self._scopes.add(scope)
            far = await trio.open_tcp_stream("127.0.0.1", self.target)
            async with near, far, trio.open_nursery() as nursery:
                nursery.start_soon(_pump, near, far, nursery.cancel_scope)
                nursery.start_soon(_pump, far, near, nursery.cancel_scope)
        self._scopes.discard(scope)
        await trio.aclose_forcefully(near)


async def _pump(source: trio.SocketStream, sink: trio.SocketStream, scope: trio.CancelScope) -> None:
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        async for data in source:
            await sink.send_all(data)
    scope.cancel()


@asynccontextmanager
async def cable(target: int) -> AsyncIterator[Cable]:
    """A cable to a port of the loopback, for the length of the block."""
    made = Cable(target)
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        made.port = listeners[0].socket.getsockname()[1]
        nursery.start_soon(trio.serve_listeners, made.carry, listeners)
        yield made
        nursery.cancel_scope.cancel()


ROOT = "b1gs33cr3t-0000-0000-0000-000000000000"
"""The token of a closed Consul that may do everything."""


@asynccontextmanager
async def closed_consul(folder: Path, ports: Sequence[int], **config: Any) -> AsyncIterator[Consul]:
    """A Consul that lets nobody do anything without a token; our client has that which may do everything."""
    acl = {"enabled": True, "default_policy": "deny", "tokens": {"master": ROOT, "agent": ROOT}}
    config = {**config, "acl": acl, "primary_datacenter": "dc1"}
    async with real_consul(folder, ports, config=config, led=False) as consul:
        consul.client.headers["X-Consul-Token"] = ROOT

        async def counts() -> bool:
            try:
                reply = await consul.client.get("/v1/acl/token/self")
                return reply.status_code == 200 and "consul" in (await consul.client.get("/v1/catalog/services")).json()
            except (httpx.TransportError, ValueError):
                return False

        await eventually(counts, what="the root token counts")
        yield consul


async def token_for(consul: Consul, policy: str, rules: str) -> str:
    """A new token that may do what a new policy of these rules allows."""
    await consul.ask("PUT", "/v1/acl/policy", json={"Name": policy, "Rules": rules})
    made = await consul.ask("PUT", "/v1/acl/token", json={"Policies": [{"Name": policy}]})
    secret: str = made.json()["SecretID"]
    return secret
