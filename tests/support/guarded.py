"""A workload that policies guard: an Envoy before an application with an HTTP and a TCP port, and a client's Envoy.

    async with guarded(tmp_path, free_ports(4), policy("AuthorizationPolicy", "front", "rules: [...]")) as at:
        assert await at.ask("/") == 200

The client's calls come by mTLS as ``shop/web``; ``plain=True`` goes past its Envoy, in plaintext and as nobody.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import attrs
import httpx
import trio

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.model.proxy import Interception
from tests.support.echo import Backend
from tests.support.envoy import RealEnvoy, eventually
from tests.support.fleet import Fleet, fleet
from tests.support.manifests import NAMESPACE, manifest

HOST = "front.example.com"
DATA = "data.example.com"
ADDRESS = "127.0.0.4"
WEB = EnvoyNode("web", NAMESPACE, "127.0.0.2", interception=Interception.NONE, metadata={"SERVICE_ACCOUNT": "web"})
_NUMBERS = count(1)
FRONT = EnvoyNode(
    "front",
    NAMESPACE,
    ADDRESS,
    labels={"app": "front"},
    interception=Interception.NONE,
    metadata={"SERVICE_ACCOUNT": "front"},
)


def policy(
    kind: str, name: str, spec: str, *, namespace: str = NAMESPACE, dry_run: bool = False, **values: object
) -> str:
    """A policy for the guarded workload; all of its namespace where ``namespace`` is another."""
    selector = "selector: {matchLabels: {app: front}}\n" if namespace == NAMESPACE else ""
    text = manifest(kind, name, selector + spec, namespace=namespace, **values)
    return text.replace("metadata: {", "metadata: {annotations: {istio.io/dry-run: 'true'}, ") if dry_run else text


def allow(name: str, rules: str, **more: Any) -> str:
    return policy("AuthorizationPolicy", name, f"action: ALLOW\nrules: {rules}", **more)


def deny(name: str, rules: str, **more: Any) -> str:
    return policy("AuthorizationPolicy", name, f"action: DENY\nrules: {rules}", **more)


@attrs.frozen
class Guarded:
    """What runs, and how to call it."""

    mesh: Fleet
    envoy: RealEnvoy
    app: Backend
    http: int
    tcp: int
    own_http: int
    own_tcp: int
    services: str

    async def apply(self, *policies: str) -> None:
        """Put these policies in the place of all others; they are in force when this returns."""
        number = next(_NUMBERS)
        # On TCP, where nobody asks for a path, it is the port that keeps this from meaning everything.
        mark = deny("mark", f'[{{to: [{{operation: {{ports: ["{self.own_http}"], paths: [/mark/{number}]}}}}]}}]')
        await self.mesh.apply(self.services + mark + "".join(policies))

        async def in_force() -> bool:
            dump = [part for part in await self.envoy.config_dump() if "Listeners" in str(part["@type"])]
            return f"/mark/{number}" in str(dump) and "warming_state" not in str(dump)

        await eventually(in_force, what="the policies are in force")
        for _ in range(3):  # its worker is told after that: it goes round once for each of these
            with suppress(httpx.TransportError):  # where only mTLS is accepted
                await self.ask(f"/mark/{number}", plain=True)

    async def ask(
        self,
        path: str = "/",
        *,
        plain: bool = False,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        host: str = HOST,
    ) -> int:
        """The status of a request."""
        return (await self.reply(path, plain=plain, method=method, headers=headers, host=host)).status_code

    async def reply(
        self,
        path: str = "/",
        *,
        plain: bool = False,
        host: str = HOST,
        headers: Mapping[str, str] | None = None,
        **more: Any,
    ) -> httpx.Response:
        where = f"{ADDRESS}:{self.own_http}" if plain else f"127.0.0.1:{self.http}"
        given = {"connection": "close", **(headers or {})}
        return await self.mesh.get(f"http://{where}{path}", host=host, headers=given, **more)

    async def connect(self, *, plain: bool = False) -> str:
        """Who answers on the TCP port; empty where nobody does.

        Envoy looks at a connection once its client has said something: a server that speaks first is heard before.
        """
        stream = await trio.open_tcp_stream(*((ADDRESS, self.own_tcp) if plain else ("127.0.0.1", self.tcp)))
        async with stream:
            said = b""
            try:
                await stream.send_all(b"hello\n")
                while not said.endswith(b"hello\n"):
                    more = await stream.receive_some()
                    if not more:
                        return ""
                    said += more
            except trio.BrokenResourceError:
                return ""
            return said.decode().partition("\n")[0]


@asynccontextmanager
async def guarded(
    folder: Path,
    ports: list[int],
    *policies: str,
    mesh: str = "",
    more: str = "",
    delta: bool = True,
    flags: Sequence[str] = (),
) -> AsyncIterator[Guarded]:
    """Run it on four free ports, and wait until requests are answered one way or another.

    ``flags`` are those of the guarded workload's Envoy.
    """
    http, tcp, own_http, own_tcp = ports
    async with fleet(folder, mesh=mesh) as running:
        app, data = await running.backend("app"), await running.tcp_backend("data")
        services = _services(http, tcp, own_http, own_tcp, app, data) + more
        await running.apply(services + "".join(policies))
        envoy = await running.envoy(FRONT, delta=delta, flags=flags)
        await running.envoy(WEB, delta=delta)
        at = Guarded(running, envoy, app, http, tcp, own_http, own_tcp, services)

        async def answered() -> bool:
            try:
                return await at.ask("/warm", headers={"x-warm": "yes"}) != 503
            except httpx.TransportError:
                return False

        await eventually(answered, what="requests are answered")
        yield at
        await running.assert_all_taken()


def _services(http: int, tcp: int, own_http: int, own_tcp: int, app: Backend, data: Backend) -> str:
    def entry(host: str, port: int, protocol: str, own: int) -> str:
        return manifest(
            "ServiceEntry",
            host.partition(".")[0],
            {
                "hosts": [host],
                "location": "MESH_INTERNAL",
                "resolution": "STATIC",
                "ports": [{"number": port, "name": "main", "protocol": protocol, "targetPort": own}],
                "endpoints": [{"address": ADDRESS, "labels": {"app": "front"}, "serviceAccount": "front"}],
            },
        )

    sidecar = f"""
    workloadSelector: {{labels: {{app: front}}}}
    ingress:
    - port: {{number: {own_http}, name: http, protocol: HTTP}}
      defaultEndpoint: {app.host}:{app.port}
    - port: {{number: {own_tcp}, name: tcp, protocol: TCP}}
      defaultEndpoint: {data.host}:{data.port}
    egress: [{{hosts: ["*/*.authz.test"]}}]
    """
    # Connections that stand when a policy changes go on under the old one until they are drained: take new ones.
    mtls = """
    host: "*.example.com"
    trafficPolicy: {tls: {mode: ISTIO_MUTUAL}, connectionPool: {http: {maxRequestsPerConnection: 1}}}
    """
    return (
        entry(HOST, http, "HTTP", own_http)
        + entry(DATA, tcp, "TCP", own_tcp)
        + manifest("Sidecar", "front", sidecar)
        + manifest("DestinationRule", "mtls", mtls)
    )
