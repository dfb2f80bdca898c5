"""A Consul for the bench, a real one or the fake one, and services to put into it, with an instance on each node."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import httpx

from bench.server import ServerError, free_ports
from mesh_pilot.cli.demo.consul_process import find_consul

PORT = 8080
OPERATIONS = 60
"""Of a transaction; Consul takes 64."""
START_SECONDS = 60.0

Operation = dict[str, Any]


@attrs.define
class ConsulServer:
    """A Consul that runs. State: its process, which a restart replaces."""

    client: httpx.Client
    command: Sequence[str]
    is_fake: bool
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        return str(self.client.base_url)

    def put(self, path: str, body: Any) -> None:
        self.client.put(path, json=body).raise_for_status()

    def transact(self, operations: Sequence[Operation]) -> None:
        for start in range(0, len(operations), OPERATIONS):
            self.put("/v1/txn", operations[start : start + OPERATIONS])

    def fill(self, services: int, instances: int, *, checks: bool = False) -> None:
        """All services, a node for each rank of their instances; with a check each, if wanted."""
        for rank in range(instances):
            self.put("/v1/catalog/register", {"Node": f"node-{rank}", "Address": f"10.{rank}.0.1"})
            numbers = range(services)
            self.transact([instance(number, rank) for number in numbers])
            if checks:
                self.transact([check(number, rank, "passing") for number in numbers])

    def wait_ready(self) -> None:
        """Wait until it takes writes. Raises ServerError."""
        ends = time.monotonic() + START_SECONDS
        while not self._takes_writes():
            if time.monotonic() > ends or self.process.poll() is not None:
                raise ServerError("Consul does not start")
            time.sleep(0.05)

    def restart(self) -> None:
        """End it as a crash does, and start it with its data; of a real one."""
        self.stop()
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL)
        self.wait_ready()

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()

    def _takes_writes(self) -> bool:
        try:
            return self.client.put("/v1/catalog/register", json={"Node": "n", "Address": "10.0.0.1"}).is_success
        except httpx.TransportError:
            return False


@contextmanager
def consul_server(folder: Path, binary: Path | None, *, fake: bool = False, connections: int) -> Iterator[ConsulServer]:
    """An empty one for the length of the block.

    ``binary``: of a real one, if it is not that of $CONSUL or PATH. ``connections``: of a client at a time, which the
    fake one does not limit.
    """
    http, server, lan, wan = free_ports(4)
    config = {
        "bind_addr": "127.0.0.1",
        "ports": {"http": http, "dns": -1, "grpc": -1, "server": server, "serf_lan": lan, "serf_wan": wan},
        "limits": {"http_max_conns_per_client": connections},
        "log_level": "err",
        "server": True,
        "bootstrap_expect": 1,
        "data_dir": str(folder / "data"),
        "performance": {"raft_multiplier": 1},
    }
    path = folder / "consul.json"
    path.write_text(json.dumps(config))
    if fake:
        command = [sys.executable, "-m", "bench.fake_consul", str(http)]
    else:
        command = [str(binary or find_consul()), "agent", "-config-file", str(path)]
    with httpx.Client(base_url=f"http://127.0.0.1:{http}", timeout=60, trust_env=False) as client:
        consul = ConsulServer(client, command, fake, subprocess.Popen(command, stdout=subprocess.DEVNULL))
        try:
            consul.wait_ready()
            yield consul
        finally:
            consul.stop()


def instance(number: int, rank: int, address: str = "") -> Operation:
    """The operation that registers an instance of a service, at an address of its own unless another is said."""
    service = {
        "ID": f"s-{number}-{rank}",
        "Service": f"s-{number}",
        "Address": address or address_of(number, rank),
        "Port": PORT,
    }
    return {"Service": {"Verb": "set", "Node": f"node-{rank}", "Service": service}}


def check(number: int, rank: int, status: str) -> Operation:
    """The operation that sets the check of an instance."""
    id = f"s-{number}-{rank}"
    told = {"Node": f"node-{rank}", "CheckID": f"service:{id}", "Name": "alive", "Status": status, "ServiceID": id}
    return {"Check": {"Verb": "set", "Check": told}}


def address_of(number: int, rank: int) -> str:
    """An address that is not part of another's text."""
    return f"10.{100 + rank}.{100 + number // 150}.{100 + number % 150}"


def assignment(number: int) -> str:
    return f"outbound|{PORT}||s-{number}.service.consul"
