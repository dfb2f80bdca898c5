"""Requests at a constant rate through a real Envoy, which gets its configuration from the control planes under test."""

from __future__ import annotations

import http.client
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from bench.crew import SwarmError
from bench.server import free_ports
from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode, envoy_bootstrap, to_yaml
from mesh_pilot.agent.envoy.binary import find_envoy
from mesh_pilot.model.proxy import Interception

HOST = "steady.traffic"
FILE = "bench-steady.yaml"
START_SECONDS = 60.0


class SteadyTraffic:
    """A thread that sends requests. Mutable state: what came of them so far, by backend or failure."""

    def __init__(self, port: int, rate: float) -> None:
        self.answers: Counter[str] = Counter()
        self._port, self._rate = port, rate
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._send, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    @property
    def failures(self) -> dict[str, int]:
        return {answer: count for answer, count in self.answers.items() if not answer.startswith("backend")}

    def wait_for(self, backend: int, seconds: float = START_SECONDS) -> None:
        """Until that backend answers. Raises SwarmError if it does not."""
        before, ends = self.answers[f"backend {backend}"], time.monotonic() + seconds
        while self.answers[f"backend {backend}"] == before:
            if time.monotonic() > ends:
                raise SwarmError(f"backend {backend} is not reached through Envoy: {dict(self.answers)}")
            time.sleep(0.05)

    def _send(self) -> None:
        while not self._over.wait(1 / self._rate):
            self.answers[ask(self._port)] += 1


def ask(port: int) -> str:
    """One request on its own connection; its answer, or what went wrong."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("GET", "/", headers={"Host": HOST})
        answer = connection.getresponse()
        return answer.read().decode() if answer.status == 200 else f"status {answer.status}"
    except (OSError, http.client.HTTPException) as error:
        return repr(error)
    finally:
        connection.close()


def config(port: int, backend: int) -> str:
    """The service that the requests are for, and the Sidecar that narrows its client to it."""
    return f"""
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {{name: steady, namespace: traffic}}
spec:
  hosts: [{HOST}]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{{number: {port}, name: http, protocol: HTTP, targetPort: {backend}}}]
  endpoints: [{{address: 127.0.0.1}}]
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {{name: steady, namespace: traffic}}
spec: {{egress: [{{hosts: ["./*"]}}]}}
"""


@contextmanager
def backends(ports: Sequence[int]) -> Iterator[None]:
    """Servers that answer with their number."""
    servers = [ThreadingHTTPServer(("127.0.0.1", port), _handler(number)) for number, port in enumerate(ports)]
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()


def _handler(number: int) -> type[BaseHTTPRequestHandler]:
    class Backend(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = f"backend {number}".encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """No lines on standard error."""

    return Backend


@contextmanager
def steady_traffic(folder: Path, pilots: Sequence[str], port: int, rate: float) -> Iterator[SteadyTraffic]:
    """Traffic through an Envoy that listens at this port; it has begun, and is answered."""
    (admin,) = free_ports(1)
    node = EnvoyNode("steady", "traffic", interception=Interception.NONE)
    bootstrap = folder / "steady.yaml"
    bootstrap.write_text(
        to_yaml(envoy_bootstrap(node, *pilots, delta=True, admin=f"127.0.0.1:{admin}")), encoding="utf-8"
    )
    command = [str(find_envoy()), "-c", str(bootstrap), "--disable-hot-restart", "--concurrency", "1", "-l", "error"]
    with (folder / "steady.log").open("wb") as log:
        envoy = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    traffic = SteadyTraffic(port, rate)
    try:
        ends = time.monotonic() + START_SECONDS
        while not ask(port).startswith("backend"):
            if envoy.poll() is not None or time.monotonic() > ends:
                raise SwarmError(f"no answer through Envoy: {(folder / 'steady.log').read_text()[-500:]}")
            time.sleep(0.1)
        traffic.start()
        yield traffic
    finally:
        with suppress(RuntimeError):
            traffic.stop()
        envoy.kill()
        envoy.wait()
