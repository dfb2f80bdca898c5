"""A real Envoy for a test: started on a control plane, looked into, stopped.

    async with real_envoy(pilot, tmp_path, EnvoyNode("web-1", labels={"app": "web"}), delta=True) as envoy:
        await envoy.wait_live()
        assert await envoy.rejected() == {}
        listeners = await envoy.dynamic("Listener")

``envoy`` is a ``mesh_pilot.cli.demo.envoy_process.EnvoyProcess`` (``stats``, ``config_dump``, ``listening``,
``rejected``) with what only tests want.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import trio

from mesh_pilot.agent.bootstrap.envoy_bootstrap import ClientTls, EnvoyNode, envoy_bootstrap
from mesh_pilot.agent.bootstrap.static_resources import sds_cluster, with_local_cluster
from mesh_pilot.cli.demo.envoy_process import EnvoyProcess, running_envoy
from tests.support.binaries import require_binary


class RealEnvoy(EnvoyProcess):
    """An EnvoyProcess with a test's questions."""

    async def dynamic(self, kind: str) -> dict[str, dict[str, Any]]:
        """What Envoy holds from us, active or warming, by name, as JSON.

        ``kind`` is the message's name: Cluster, ClusterLoadAssignment, Listener, RouteConfiguration, Secret.
        """
        found: dict[str, dict[str, Any]] = {}
        for part in await self.config_dump(endpoints=kind == "ClusterLoadAssignment"):
            if "Bootstrap" in str(part["@type"]):
                continue
            for message in _messages(part, f".{kind}"):
                found[str(message.get("name") or message.get("cluster_name"))] = message
        return found

    async def counted(self, regex: str) -> int:
        """The sum of the counters whose names the regular expression finds."""
        return sum((await self.stats(regex)).values())

    async def takes_traffic(self) -> bool:
        """True if its workers have started: a little after it says that it is live."""
        return (await self.stats("workers_started")).get("listener_manager.workers_started") == 1

    async def connected(self) -> bool:
        """True if its ADS stream to the control plane stands."""
        return (await self.stats("control_plane.connected_state")).get("control_plane.connected_state") == 1


def _messages(node: object, kind: str) -> Iterator[dict[str, Any]]:
    """Every message of a type within a config dump."""
    if isinstance(node, Mapping):
        if str(node.get("@type", "")).endswith(kind):
            yield dict(node)
        for value in node.values():
            yield from _messages(value, kind)
    elif isinstance(node, list):
        for value in node:
            yield from _messages(value, kind)


@asynccontextmanager
async def real_envoy(
    pilot: str | Sequence[str],
    folder: Path,
    node: EnvoyNode,
    *,
    delta: bool = False,
    name: str = "envoy",
    log_level: str = "warning",
    flags: Sequence[str] = (),
    reconnects_soon: bool = False,
    sds: Path | None = None,
    tls: ClientTls | None = None,
) -> AsyncIterator[RealEnvoy]:
    """Run the real Envoy against the control plane at ``pilot`` (``host:port``), or at one of several.

    It runs for the length of the block.

    With ``reconnects_soon`` it tries to reach a control plane that is away every half second, not ever more rarely.

    ``sds`` is the Unix socket of the agent that has its certificate; ``tls`` has the files for the control plane's
    secure port.

    Skips the test where there is no Envoy (fails in CI). ``folder`` takes NAME.yaml and NAME.log.
    """
    require_binary("envoy")
    pilots = (pilot,) if isinstance(pilot, str) else pilot
    bootstrap: Any = with_local_cluster(envoy_bootstrap(node, *pilots, delta=delta, tls=tls))
    if reconnects_soon:
        (ads,) = bootstrap["dynamic_resources"]["ads_config"]["grpc_services"]
        backoff = {"base_interval": "0.1s", "max_interval": "0.5s"}
        ads["envoy_grpc"]["retry_policy"] = {"retry_back_off": backoff}
    if sds is not None:
        bootstrap["static_resources"]["clusters"].append(sds_cluster(sds))
    async with running_envoy(bootstrap, folder, name=name, log_level=log_level, flags=flags) as process:
        yield RealEnvoy(process.process, process.admin, process.log, process.client)


async def eventually(condition: Callable[[], bool | Awaitable[bool]], *, seconds: float = 60, what: str = "") -> None:
    """Wait for a condition, asked again and again; fails with ``what`` when it does not come within ``seconds``.

    For what other processes do. Where a trio.Event or a channel can tell, wait for that instead. A peer that does not
    listen yet, or closes the connection, has not met the condition.
    """
    last: httpx.TransportError | None = None
    with trio.move_on_after(seconds):
        while True:
            try:
                answer = condition()
                if answer if isinstance(answer, bool) else await answer:
                    return
                last = None
            except httpx.TransportError as error:
                last = error
            await trio.sleep(0.02)
    raise AssertionError(f"not within {seconds} s: {what or condition}{f' ({last!r})' if last else ''}")


@asynccontextmanager
async def http_client(base_url: str = "") -> AsyncIterator[httpx.AsyncClient]:
    """A client that ignores the proxies of the environment."""
    async with httpx.AsyncClient(base_url=base_url, timeout=60, trust_env=False) as client:
        yield client
