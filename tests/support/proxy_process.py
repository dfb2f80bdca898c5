"""``mesh-pilot proxy sidecar`` in a separate process, with what it needs from a control plane's operator."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import httpx
import trio

from tests.support.command import COMMAND
from tests.support.envoy import eventually, http_client


@attrs.define
class ProxyProcess:
    """One agent with its Envoy. ``ports``: admin, status, readiness, Prometheus."""

    folder: Path
    ports: list[int]
    arguments: tuple[str, ...]
    process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        return self.folder / "proxy.log"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self) -> None:
        self.folder.mkdir(exist_ok=True)
        names = ("admin", "status", "readiness", "prometheus")
        ports = [f"--{name}-port={port}" for name, port in zip(names, self.ports, strict=True)]
        folders = [f"--state-dir={self.folder / 'state'}", f"--run-dir={self.folder / 'run'}"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*COMMAND, "proxy", "sidecar", "--interception=NONE", *ports, *folders, *self.arguments],
                stdout=log,
                stderr=log,
            )

    async def wait_ready(self) -> None:
        await eventually(self.is_ready, what=f"the proxy is ready: {self.log.read_text()[-3000:]}")

    async def is_ready(self) -> bool:
        """As a load balancer sees it: through Envoy's own listener."""
        async with http_client() as client:
            try:
                url = f"http://127.0.0.1:{self.ports[2]}/healthz/ready"
                return (await client.get(url)).status_code == 200
            except httpx.HTTPError:
                return False

    async def state(self) -> dict[str, Any]:
        """What its parts say of themselves."""
        async with http_client() as client:
            found = (await client.get(f"http://127.0.0.1:{self.ports[1]}/debug/statistics")).json()
        assert isinstance(found, dict)
        return found

    async def clusters(self) -> set[str]:
        """The names of Envoy's clusters."""
        async with http_client() as client:
            text = (await client.get(f"http://127.0.0.1:{self.ports[0]}/clusters")).text
        return {line.partition("::")[0] for line in text.splitlines()}

    async def end(self, how: signal.Signals = signal.SIGKILL) -> int:
        """Send a signal and wait for the end; the exit code."""
        process, self.process = self.process, None
        if process is None:
            return 0
        process.send_signal(how)
        return await trio.to_thread.run_sync(process.wait)

    def resident_kb(self) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0])

    @staticmethod
    def runs(pid: int) -> bool:
        """True if there is a process of this number."""
        return Path(f"/proc/{pid}").exists()

    def envoy_pids(self) -> list[int]:
        """The processes below it."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
        return [int(pid) for pid in children.split()]


@asynccontextmanager
async def proxy_process(folder: Path, ports: list[int], *arguments: str) -> AsyncIterator[ProxyProcess]:
    """A started agent for the length of the block."""
    proxy = ProxyProcess(folder, ports, arguments)
    proxy.start()
    try:
        yield proxy
    finally:
        with trio.CancelScope(shield=True):
            await proxy.end()


def admission(folder: Path, *, namespace: str = "shop", account: str = "web") -> tuple[str, ...]:
    """A CA in ``folder / "ca"``, its root, and the flags of a proxy that has a join token of it, to be used once."""
    ca = f"--ca-dir={folder / 'ca'}"
    _run("ca", "init", ca)
    (folder / "root.pem").write_bytes(_run("ca", "root", ca))
    token = _run("token", "create", ca, account, f"--namespace={namespace}", "--single-use")
    (folder / "token").write_bytes(token)
    (folder / "token").chmod(0o600)
    return (
        f"--tls-ca={folder / 'root.pem'}",
        f"--token-file={folder / 'token'}",
        f"--namespace={namespace}",
        f"--service-account={account}",
    )


def _run(*arguments: str) -> bytes:
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout
