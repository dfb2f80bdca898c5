"""A real Envoy as a child process: found, started on a bootstrap, watched, asked through its admin port, stopped.

The demo and the tests drive Envoy through this. Needs no privileges: hot restart (and with it shared memory and the
base id) is off, and the admin port is any free one of the loopback.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import trio

from mesh_pilot.agent.bootstrap.envoy_bootstrap import Json, to_yaml
from mesh_pilot.agent.envoy.binary import EnvoyError, find_envoy

_POLL_SECONDS = 0.02


class EnvoyProcess:
    """A running Envoy. ``repr()`` shows its pid, its admin address and whether it still runs."""

    def __init__(self, process: trio.Process, admin: str, log: Path, client: httpx.AsyncClient) -> None:
        self.process = process
        self.admin = admin
        """``host:port`` of its admin interface."""
        self.log = log
        """File that its own log goes to."""
        self.client = client

    def __repr__(self) -> str:
        code = self.process.returncode
        return f"<EnvoyProcess {self.process.pid} admin={self.admin} {'running' if code is None else f'ended {code}'}>"

    async def get(self, path: str) -> httpx.Response:
        """Query the admin interface, such as ``/ready``. Raises EnvoyError if Envoy ended."""
        try:
            return await self.client.get(f"http://{self.admin}{path}")
        except httpx.TransportError as error:
            if self.process.poll() is not None:
                raise EnvoyError(f"envoy ended with {self.process.returncode}: {last_lines(self.log)}") from error
            raise

    async def wait_live(self) -> None:
        """Return once Envoy has its first clusters and listeners and takes traffic."""
        while (await self.get("/ready")).status_code != 200:  # noqa: ASYNC110  it has no event for us
            await trio.sleep(_POLL_SECONDS)

    async def stats(self, regex: str = "") -> dict[str, int]:
        """Counters and gauges by name, those that the regular expression finds."""
        reply = await self.client.get(f"http://{self.admin}/stats", params={"filter": regex, "format": "json"})
        reply.raise_for_status()
        values = reply.json()["stats"]
        return {row["name"]: row["value"] for row in values if "name" in row and isinstance(row.get("value"), int)}

    async def rejected(self) -> dict[str, int]:
        """Updates that Envoy refused, by the statistic that counts them; empty when it took everything."""
        return {name: count for name, count in (await self.stats("update_rejected$")).items() if count}

    async def config_dump(self, *, endpoints: bool = False) -> list[dict[str, Json]]:
        """The ``configs`` of ``/config_dump``; with endpoints only on demand."""
        reply = await self.get("/config_dump?include_eds" if endpoints else "/config_dump")
        reply.raise_for_status()
        configs: list[dict[str, Json]] = json.loads(reply.content)["configs"]
        return configs

    async def listening(self) -> dict[str, str]:
        """Name of each listener and the ``host:port`` it is bound to."""
        reply = await self.get("/listeners?format=json")
        reply.raise_for_status()
        found: dict[str, str] = {}
        for listener in reply.json().get("listener_statuses", ()):
            socket = listener["local_address"].get("socket_address", {})
            found[listener["name"]] = f"{socket.get('address', '')}:{socket.get('port_value', 0)}"
        return found


@asynccontextmanager
async def running_envoy(
    bootstrap: Mapping[str, Json],
    folder: Path,
    *,
    name: str = "envoy",
    log_level: str = "warning",
    flags: Sequence[str] = (),
) -> AsyncIterator[EnvoyProcess]:
    """Run Envoy on a bootstrap for the length of the block, its admin interface answering (``wait_live`` is yours).

    Files ``NAME.yaml`` and ``NAME.log`` go to ``folder``; ``flags`` are more of Envoy's own. The process is gone when
    the block is left, however it is left, cancellation included. Raises EnvoyError when there is no Envoy, or it ends
    before its admin answers.
    """
    binary = find_envoy()
    config, log, admin_file = (folder / f"{name}{end}" for end in (".yaml", ".log", ".admin"))
    config.write_text(to_yaml(bootstrap), encoding="utf-8")
    admin_file.unlink(missing_ok=True)
    command = [str(binary), "-c", str(config), "--admin-address-path", str(admin_file), "--log-path", str(log)]
    command += ["--log-level", log_level, "--disable-hot-restart", "--concurrency", "1", *flags]
    with log.open("wb") as output:
        # Its own process group: a Ctrl-C on the terminal reaches us alone, and we stop it in order.
        process = await trio.lowlevel.open_process(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    try:
        async with httpx.AsyncClient(timeout=10, trust_env=False) as client:
            while not (admin := admin_file.read_text() if admin_file.exists() else ""):
                if process.poll() is not None:
                    raise EnvoyError(f"envoy ended with {process.returncode}: {last_lines(log)}")
                await trio.sleep(_POLL_SECONDS)
            yield EnvoyProcess(process, admin.strip(), log, client)
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()


def last_lines(log: Path, count: int = 3) -> str:
    """The end of a log on one line, as the reason why its process ended."""
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return " / ".join(lines[-count:]) or "it logged nothing"
