"""``mesh-pilot discovery`` in a separate process, on a folder of ServiceEntries that tests edit, and a client of it.

with running(tmp_path / "config") as pilot:
    pilot.write(81)                          # every service now has port 81
    assert served(pilot.grpc_port) == 81     # what a new client is sent
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
from envoy.config.cluster.v3.cluster_pb2 import Cluster
from envoy.service.discovery.v3 import discovery_pb2

from mesh_pilot.model.resource import CLUSTER
from tests.support.command import COMMAND

ADS = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
SERVICES = 400
ANYWHERE = "127.0.0.1:0"


def entries(port: int, services: int = SERVICES) -> str:
    """ServiceEntries ``s0.test``, ``s1.test``, ..., all with this port."""
    return "\n---\n".join(
        f"apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: s{n}}}\nspec:\n"
        f"  hosts: [s{n}.test]\n  resolution: STATIC\n  ports: [{{number: {port}, name: http, protocol: HTTP}}]\n"
        for n in range(services)
    )


def request(type_url: str, name: str = "good") -> bytes:
    """The first request of an Envoy, encoded."""
    node = {"id": f"sidecar~10.0.0.1~{name}.default~default.svc.cluster.local"}
    return discovery_pb2.DiscoveryRequest(type_url=type_url, node=node).SerializeToString()


def port_of(response: discovery_pb2.DiscoveryResponse) -> int:
    """The port of the services in a response for clusters; the newest where clusters to be removed are still there."""
    names = [Cluster.FromString(resource.value).name for resource in response.resources]
    return max(int(name.split("|")[1]) for name in names if name.startswith("outbound|"))


def whole(port: int, type_url: str) -> discovery_pb2.DiscoveryResponse:
    """The first State of the World response to a new client."""
    done = threading.Event()

    def requests() -> Iterator[bytes]:
        yield request(type_url)
        done.wait()

    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        try:
            answer = next(channel.stream_stream(ADS)(requests(), timeout=60))
        finally:
            done.set()
    return discovery_pb2.DiscoveryResponse.FromString(answer)


def served(port: int) -> int:
    """The port of the services that a new client at gRPC port ``port`` is sent."""
    return port_of(whole(port, CLUSTER))


def until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Wait for what other processes bring about."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.05)


class Pilot:
    """A running process and its addresses. Its log is ``log`` next to the folder."""

    def __init__(
        self, folder: Path, *options: str, services: int = SERVICES, port: int | None = 80, **more: Any
    ) -> None:
        """``port``: of the services at first; None: the folder is left as it is. ``more`` is what Popen takes."""
        self.folder = folder
        self.services = services
        if port is not None:
            self.write(port)
        addresses = [f"--{name}-addr={ANYWHERE}" for name in ("grpc", "http", "monitoring")]
        self.log_path = folder.parent / "log"
        self._log = self.log_path.open("w")
        self.process = subprocess.Popen(
            [*COMMAND, "discovery", f"--config-dir={folder}", "--shutdown-duration=3s", *addresses, *options],
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            **more,
        )
        self._said: list[str] = []

    def wait_ready(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._said.append(line)
            if line.startswith("ready after"):
                return
        raise AssertionError(f"the process ended before it was ready:\n{self.log_path.read_text()[-3000:]}")

    def _port(self, what: str) -> int:
        (line,) = [line for line in self._said if line.strip().startswith(what)]
        return int(line.split()[-1].rpartition("//")[2].partition("/")[0].rpartition(":")[2])

    @property
    def grpc_port(self) -> int:
        return self._port("xDS  ")

    @property
    def tls_port(self) -> int:
        """Only with ``--tls-*``."""
        return self._port("xDS, mutual TLS")

    @property
    def web_port(self) -> int:
        return self._port("web,")

    @property
    def webhook_port(self) -> int:
        """Only with ``--https-addr``."""
        return self._port("webhooks")

    @property
    def monitoring_port(self) -> int:
        return self._port("metrics")

    def write(self, port: int) -> None:
        """Give all services another port, with an atomic replacement of their file."""
        new = self.folder / ".new"
        new.write_text(entries(port, self.services))
        new.rename(self.folder / "all.yaml")

    def open_files(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def resident_kb(self) -> int:
        """Resident memory of the process, in KB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0])

    def cpu_seconds(self) -> float:
        """CPU time that the process has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def starved_seconds(self) -> float:
        """For how long the process was ready to run and other processes ran instead; 0 where the system can't say."""
        with suppress(OSError):
            return int(Path(f"/proc/{self.process.pid}/schedstat").read_text().split()[1]) / 1e9
        return 0.0

    def log(self) -> str:
        return self.log_path.read_text()

    def stop(self) -> None:
        self.process.kill()
        self.process.communicate()
        self._log.close()


@contextmanager
def running(folder: Path, *options: str, services: int = SERVICES, **more: Any) -> Iterator[Pilot]:
    """A ready process for the length of the block, on a new folder; no traceback may be in its log at the end.

    ``more`` is what Popen takes.
    """
    folder.mkdir()
    pilot = Pilot(folder, *options, services=services, **more)
    try:
        pilot.wait_ready()
        yield pilot
        text = pilot.log()
        assert "Traceback" not in text, text[-5000:]
    finally:
        pilot.stop()
