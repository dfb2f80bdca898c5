"""A control plane in a separate process, that a test kills and starts again."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import httpx
import trio

from tests.support.command import COMMAND
from tests.support.envoy import eventually, http_client

ANY_SECURE = ("--secure-grpc-addr", "127.0.0.1:0")


class PlaneProcess:
    """A control plane as people run it, at fixed addresses, so that it can be killed and started again."""

    def __init__(self, log: Path, ports: list[int], *arguments: str) -> None:
        addresses = [f"127.0.0.1:{port}" for port in ports]
        self.grpc = addresses[0]
        self.web = f"http://{addresses[1]}"
        flags = [*zip(("--grpc-addr", "--http-addr", "--monitoring-addr"), addresses, strict=True), ANY_SECURE]
        # What the arguments say comes last, so it counts.
        self._command = [*COMMAND, "discovery", *(f"{flag}={address}" for flag, address in flags), *arguments]
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        """Until it is ready."""
        self._process = self._open()
        async with http_client() as client:

            async def ready() -> bool:
                try:
                    return (await client.get(f"{self.web}/ready")).status_code == 200
                except httpx.HTTPError:
                    return False

            await eventually(ready, what=f"{self._command} is ready: {self._log.read_text()[-2000:]}")

    async def fail_to_start(self) -> int:
        """Until it ended on its own; gives its exit code."""
        process = self._open()
        return await trio.to_thread.run_sync(process.wait)

    def _open(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(self._command, stdout=log, stderr=log)

    @property
    def pid(self) -> int:
        """Of the process that was started last."""
        assert self._process is not None
        return self._process.pid

    async def kill(self) -> None:
        """At once, with no time for anything."""
        await self._end(signal.SIGKILL)

    async def terminate(self) -> None:
        """As an operator's restart does: it drains."""
        await self._end(signal.SIGTERM)

    async def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(how)
            await trio.to_thread.run_sync(process.wait)
