"""A real Prometheus for a test: scrapes what the test names, and is asked for the values of expressions.

async with prometheus(tmp_path, port, {"mesh-pilot": [address]}) as server:
    await server.has("pilot_services > 1")
    (sample,) = await server.query("sum(pilot_xds)")
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import httpx
import trio
import yaml

from tests.support.binaries import require_binary
from tests.support.envoy import eventually

SCRAPE_SECONDS = 0.3


@attrs.frozen
class Prometheus:
    """The running server."""

    client: httpx.AsyncClient

    async def query(self, expression: str) -> list[dict[str, Any]]:
        """The samples of an expression now; its value must be a vector."""
        reply = (await self.client.get("/api/v1/query", params={"query": expression})).json()
        assert reply["status"] == "success", f"{expression}: {reply.get('error')}"
        found: list[dict[str, Any]] = reply["data"]["result"]
        return found

    async def has(self, expression: str) -> None:
        """Wait until an expression has a value."""

        async def found() -> bool:
            return bool(await self.query(expression))

        await eventually(found, what=expression)

    async def names(self) -> set[str]:
        """The names of all metrics."""
        return set((await self.client.get("/api/v1/label/__name__/values")).json()["data"])


@asynccontextmanager
async def prometheus(
    folder: Path, port: int, jobs: Mapping[str, Iterable[str]], **more: Any
) -> AsyncIterator[Prometheus]:
    """A server for the length of the block; ``jobs`` have ``host:port``, or with a path. Skips where there is none.

    ``more`` is added to each of their configurations.
    """
    binary = require_binary("prometheus")
    configs = [{**_job(name, target), **more} for name, targets in jobs.items() for target in targets]
    interval = f"{SCRAPE_SECONDS * 1000:.0f}ms"
    timing = {"scrape_interval": interval, "scrape_timeout": interval}
    (folder / "prometheus.yml").write_text(yaml.safe_dump({"global": timing, "scrape_configs": configs}))
    command = [
        str(binary),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    ]
    with (folder / "prometheus.log").open("w") as log:
        process = await trio.lowlevel.open_process(command, stdout=log, stderr=log)
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=30) as client:

            async def ready() -> bool:
                assert process.poll() is None, (folder / "prometheus.log").read_text()
                try:
                    return (await client.get("/-/ready")).status_code == 200
                except httpx.TransportError:
                    return False

            await eventually(ready, what="Prometheus is ready")
            yield Prometheus(client)
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()


def _job(name: str, target: str) -> dict[str, Any]:
    address, slash, path = target.partition("/")
    job: dict[str, Any] = {"job_name": f"{name} {target}", "static_configs": [{"targets": [address]}]}
    job["relabel_configs"] = [{"target_label": "job", "replacement": name}]
    return job | {"metrics_path": slash + path} if path else job
