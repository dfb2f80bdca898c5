"""A real Consul as a child process, for the demo: one agent in dev mode on the loopback, gone when it is left."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import attrs
import httpx
import trio

from mesh_pilot.cli.demo.envoy_process import last_lines

_POLL_SECONDS = 0.05


class ConsulProcessError(Exception):
    """Consul was not found, or ended unexpectedly; the text is for users."""


@attrs.frozen
class ConsulProcess:
    """A running agent."""

    address: str
    """URL of its HTTP API."""
    client: httpx.AsyncClient = attrs.field(repr=False)

    async def register(self, name: str, id: str, port: int, meta: Mapping[str, str]) -> None:
        """Put an instance on the loopback into the catalog."""
        body = {"Name": name, "ID": id, "Address": "127.0.0.1", "Port": port, "Meta": dict(meta)}
        (await self.client.put("/v1/agent/service/register", json=body)).raise_for_status()


def find_consul() -> Path:
    """The Consul to run: ``$CONSUL``, else the one on PATH. Raises ConsulProcessError saying how to get one."""
    found = shutil.which(os.environ.get("CONSUL", "")) or shutil.which("consul")
    if found is None:
        raise ConsulProcessError(
            "no Consul found: put one on PATH or set CONSUL to its path; on Debian, tools/get_consul.py fetches one"
        )
    return Path(found)


@asynccontextmanager
async def running_consul(folder: Path) -> AsyncIterator[ConsulProcess]:
    """Run an agent for the length of the block, with a leader. Raises ConsulProcessError."""
    binary = find_consul()
    http, server, lan, wan = free_ports(4)
    ports = {"http": http, "dns": -1, "grpc": -1, "server": server, "serf_lan": lan, "serf_wan": wan}
    config, log = folder / "consul.json", folder / "consul.log"
    config.write_text(json.dumps({"bind_addr": "127.0.0.1", "ports": ports, "disable_update_check": True}))
    with log.open("wb") as output:
        process = await trio.lowlevel.open_process(
            [str(binary), "agent", "-dev", "-config-file", str(config)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        address = f"http://127.0.0.1:{http}"
        async with httpx.AsyncClient(base_url=address, timeout=10, trust_env=False) as client:
            while not await _is_led(client):
                if process.poll() is not None:
                    raise ConsulProcessError(f"consul ended with {process.returncode}: {last_lines(log)}")
                await trio.sleep(_POLL_SECONDS)
            yield ConsulProcess(address, client)
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()


async def _is_led(client: httpx.AsyncClient) -> bool:
    try:
        reply = await client.get("/v1/catalog/services")
    except httpx.TransportError:
        return False
    return reply.status_code == 200 and "consul" in reply.json()


def free_ports(count: int) -> list[int]:
    """Different TCP ports of the loopback interface on which nothing listens now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in sockets]
