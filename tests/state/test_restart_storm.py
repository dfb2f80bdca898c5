"""A control plane that is killed again and again, at any moment, while everything it serves is being edited."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import grpc
import pytest
from envoy.service.discovery.v3 import discovery_pb2

from mesh_pilot.model.resource import CLUSTER
from tests.state.planes import SERVICES, plane
from tests.support.pilot import ADS, port_of, request, served, until

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(300)]

KILLS = 10
EDIT_SECONDS = 0.2


@attrs.define
class Client:
    """A State of the World client that stays, whatever its control plane does.

    State: what it was sent, with the time; what it missed.
    """

    address: str = ""
    sent: list[tuple[float, int]] = attrs.field(factory=list)
    vanished: list[str] = attrs.field(factory=list)
    _is_over: threading.Event = attrs.field(factory=threading.Event)

    def run(self) -> None:
        while not self._is_over.is_set():
            if not self.address:
                self._is_over.wait(0.02)
                continue
            with grpc.insecure_channel(self.address) as channel:
                try:
                    self._follow(channel)
                except grpc.RpcError:
                    self._is_over.wait(0.02)

    def _follow(self, channel: grpc.Channel) -> None:
        answered = threading.Event()
        acks: list[discovery_pb2.DiscoveryResponse] = []

        def requests() -> Iterator[bytes]:
            yield request(CLUSTER)
            while not self._is_over.is_set() and channel is not None:
                if answered.wait(0.5):
                    answered.clear()
                    last = acks[-1]
                    yield discovery_pb2.DiscoveryRequest(
                        type_url=CLUSTER, version_info=last.version_info, response_nonce=last.nonce
                    ).SerializeToString()

        for raw in channel.stream_stream(ADS)(requests(), timeout=600):
            response = discovery_pb2.DiscoveryResponse.FromString(raw)
            self._note(response)
            acks.append(response)
            answered.set()
            if self._is_over.is_set():
                return

    def _note(self, response: discovery_pb2.DiscoveryResponse) -> None:
        text = b"".join(resource.value for resource in response.resources)
        missing = [f"s{n}.test" for n in range(SERVICES) if f"s{n}.test".encode() not in text]
        self.vanished += missing
        self.sent.append((time.monotonic(), port_of(response)))

    def stop(self) -> None:
        self._is_over.set()


@contextmanager
def following() -> Iterator[Client]:
    client = Client()
    thread = threading.Thread(target=client.run, daemon=True)
    thread.start()
    try:
        yield client
    finally:
        client.stop()


def test_a_control_plane_that_is_killed_at_any_moment_serves_what_it_had_served(tmp_path: Path) -> None:
    """While it is away its folder is, too: what it serves then is what it has kept."""
    config, away = tmp_path / "config", tmp_path / "away"
    pick = random.Random(13)
    port, last = 1000, 0
    lags: list[float] = []
    runs: list[tuple[float, float]] = []
    with following() as client:
        for kill in range(KILLS):
            with plane(tmp_path, port=port if kill == 0 else None) as pilot:
                started_at = time.monotonic()
                client.address = f"127.0.0.1:{pilot.grpc_port}"
                if away.exists():
                    found = served(pilot.grpc_port)
                    assert found in {sent for _, sent in client.sent}, "a state that has been confirmed"
                    assert found >= last, "and none before that of the last time"
                    lags.append(lag(client.sent, found, runs))
                    last = found
                    away.rename(config)
                end = time.monotonic() + pick.uniform(0.1, 3)
                while time.monotonic() < end:
                    port += 1
                    pilot.write(port)
                    time.sleep(pick.uniform(0, EDIT_SECONDS))
                pilot.process.kill()
                pilot.process.wait()
                runs.append((started_at, time.monotonic()))
                client.address = ""
                config.rename(away)
        away.rename(config)
        with plane(tmp_path, port=None) as pilot:
            until(lambda: served(pilot.grpc_port) == port, 60, "the files are served at the end")
    print("\nseconds that a client had been sent more than was kept:", sorted(round(found, 2) for found in lags))
    assert client.vanished == []


def lag(sent: list[tuple[float, int]], found: int, runs: list[tuple[float, float]]) -> float:
    """For how many seconds, while a control plane ran, a client had had something newer than what was kept."""
    newer = [at for at, port in sent if port > found and at < runs[-1][1]]
    since = min(newer, default=runs[-1][1])
    return sum(max(0.0, end - max(start, since)) for start, end in runs)
