"""Clients of a control plane that was restarted without its sources: what they have is what they would be sent."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import grpc
import pytest
from envoy.service.discovery.v3 import discovery_pb2

from mesh_pilot.model.resource import CLUSTER, ENDPOINT, LISTENER
from tests.state.planes import plane
from tests.support.pilot import until, whole

pytestmark = pytest.mark.process

DELTA = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"
NODE = {"id": "sidecar~10.0.0.1~good.default~default.svc.cluster.local"}


class Delta:
    """A Delta client that says what it has."""

    def __init__(self, port: int) -> None:
        self._channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        self._more = threading.Semaphore(0)
        self._requests: list[bytes] = []
        self._answers = self._channel.stream_stream(DELTA)(self._send(), timeout=60)

    def _send(self) -> Iterator[bytes]:
        while True:
            self._more.acquire()
            if not self._requests:
                return
            yield self._requests.pop(0)

    def ask(self, type_url: str, has: dict[str, str]) -> None:
        """Everything of a type, of which it has these versions by name."""
        said = discovery_pb2.DeltaDiscoveryRequest(node=NODE, type_url=type_url, initial_resource_versions=has)
        self._requests.append(said.SerializeToString())
        self._more.release()

    def ask_for(self, type_url: str, name: str) -> None:
        said = discovery_pb2.DeltaDiscoveryRequest(type_url=type_url, resource_names_subscribe=[name])
        self._requests.append(said.SerializeToString())
        self._more.release()

    def answer(self) -> discovery_pb2.DeltaDiscoveryResponse:
        return discovery_pb2.DeltaDiscoveryResponse.FromString(next(self._answers))

    def close(self) -> None:
        self._more.release()
        self._channel.close()


@pytest.mark.parametrize("files", ["away", "there"])
def test_clients_are_sent_the_same_bytes_or_nothing(tmp_path: Path, files: str) -> None:
    types = (CLUSTER, LISTENER)
    had, versions = {}, {}
    with plane(tmp_path, port=80) as pilot:
        for type_url in types:
            had[type_url] = whole(pilot.grpc_port, type_url)
            with closing(Delta(pilot.grpc_port)) as client:
                client.ask(type_url, {})
                versions[type_url] = {found.name: found.version for found in client.answer().resources}
        pilot.process.terminate()
        pilot.process.wait(60)
    if files == "away":
        (tmp_path / "config").rename(tmp_path / "away")
    with plane(tmp_path, port=None) as pilot:
        if files == "there":
            until(lambda: "restored picture confirmed" in pilot.log(), 60, "its files are read")
        for type_url in types:
            now = whole(pilot.grpc_port, type_url)
            assert (now.version_info, list(now.resources)) == (
                had[type_url].version_info,
                list(had[type_url].resources),
            )
            with closing(Delta(pilot.grpc_port)) as client:
                client.ask(type_url, versions[type_url])
                client.ask_for(ENDPOINT, "outbound|80||s0.test")
                assert client.answer().type_url == ENDPOINT, "it has all that it says to have: nothing comes before"
            with closing(Delta(pilot.grpc_port)) as client:
                client.ask(type_url, {**versions[type_url], next(iter(versions[type_url])): "another"})
                assert client.answer().type_url == type_url, "but for what it has another version of"
