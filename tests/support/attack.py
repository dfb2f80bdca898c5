"""A good client next to an attack: how late pushes reach it, and what the attack does to the plane's memory.

    with victim(tmp_path / "config") as here:
        report = here.under_attack([script, str(here.pilot.grpc_port), "5", ...])
        report.assert_held()
        ...  # more attacks
        here.assert_memory_is_back()

The attacker is a separate process: a Python script that ends on its own and prints one line of JSON, an object, on its
standard output. Attacks share a plane: to start one takes as long as an attack, and what one leaves behind adds up.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import grpc
from envoy.service.discovery.v3 import discovery_pb2

from mesh_pilot.model.resource import CLUSTER
from tests.support.pilot import ADS, Pilot, port_of, running, until

EDIT_SECONDS = 0.3
"""Between one edit and the next, at least."""
LOST_SECONDS = 60.0
"""A push that has not arrived by then is lost."""
SOON_SECONDS = 1.0
"""The p99 of pushes under attack on a machine that has nothing else to do."""
SLACK = 8.0
"""How many times slower than without an attack pushes may be on a machine that is busy with other things as well."""
BASELINE_EDITS = 4
LOG_BYTES = 250_000
"""What an attack may have the plane write to its log."""
MEMORY_SECONDS = 60.0
"""What the plane's memory has to come back after an attack."""
ROOM_KB = 64 * 1024
"""What Python's allocator and the kernel's accounting may add to small figures."""


class GoodClient:
    """An ADS client of grpcio that subscribes to clusters and ACKs what it is sent."""

    def __init__(self, pilot: Pilot) -> None:
        self._pilot = pilot
        self._port = 80
        self._seen = 0
        self._changed = threading.Condition()
        self._outgoing: list[bytes | None] = [self._request()]
        self.error = ""
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
        self._channel = grpc.insecure_channel(f"127.0.0.1:{pilot.grpc_port}", options)
        self._call = self._channel.stream_stream(ADS)(self._requests())
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @staticmethod
    def _request(response: discovery_pb2.DiscoveryResponse | None = None) -> bytes:
        ack = {} if response is None else {"version_info": response.version_info, "response_nonce": response.nonce}
        node = {"id": "sidecar~10.0.0.1~good.default~default.svc.cluster.local"}
        return discovery_pb2.DiscoveryRequest(type_url=CLUSTER, node=node, **ack).SerializeToString()

    def _requests(self) -> Iterator[bytes]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._outgoing)
                message = self._outgoing.pop(0)
            if message is None:
                return
            yield message

    def _read(self) -> None:
        try:
            for data in self._call:
                response = discovery_pb2.DiscoveryResponse.FromString(data)
                with self._changed:
                    self._seen = port_of(response)
                    self._outgoing.append(self._request(response))
                    self._changed.notify_all()
        except Exception as error:
            with self._changed:
                self.error = str(error)
                self._changed.notify_all()

    def wait_for(self, port: int, seconds: float = LOST_SECONDS) -> bool:
        """True if the client is sent clusters with this port in time."""
        with self._changed:
            self._changed.wait_for(lambda: self._seen == port or self.error, seconds)
            assert not self.error, f"the good client lost its stream: {self.error}"
            return self._seen == port

    def push(self) -> float:
        """Edit the configuration; seconds until the client has it.

        Not counted is the time in which the plane would have run but for other processes: the attacker, which would be
        on another machine, and whatever else this machine does.
        """
        self._port += 1
        began, starved = time.monotonic(), self._pilot.starved_seconds()
        self._pilot.write(self._port)
        self.wait_for(self._port)
        return max(0.0, time.monotonic() - began - (self._pilot.starved_seconds() - starved))

    def push_for(self, seconds: float) -> list[float]:
        """Edit again and again; how long each push took."""
        pushes = []
        end = time.monotonic() + seconds
        while (began := time.monotonic()) < end:
            pushes.append(self.push())
            time.sleep(max(0.0, EDIT_SECONDS - (time.monotonic() - began)))
        return pushes

    def close(self) -> None:
        with self._changed:
            self._outgoing.append(None)
            self._changed.notify_all()
        self._call.cancel()
        self._channel.close()
        self._reader.join(10)


@contextmanager
def good_client(pilot: Pilot) -> Iterator[GoodClient]:
    """A client that has what the plane serves."""
    client = GoodClient(pilot)
    try:
        assert client.wait_for(80)
        yield client
    finally:
        client.close()


def quantile(values: Sequence[float], share: float) -> float:
    """The value that this share of the others does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@attrs.frozen(kw_only=True)
class Report:
    """What an attack did. Times of pushes in seconds, memory in KB."""

    baseline: list[float]
    """Pushes before the attack."""
    pushes: list[float]
    """Pushes while it continued."""
    base_kb: int
    """Before the first attack on this plane."""
    begin_kb: int
    """Before this attack; the last one's may not be given back yet: that is asserted at the end."""
    peak_kb: int
    after_kb: int
    """At the end of the attack."""
    log: str
    """What the plane wrote to its log meanwhile."""
    cpu_share: float
    """CPU seconds of the plane for each second of the attack."""
    attacker: dict[str, Any]
    """What the attacker says that it did and saw."""

    @property
    def p50(self) -> float:
        return quantile(self.pushes, 0.5)

    @property
    def p99(self) -> float:
        return quantile(self.pushes, 0.99)

    @property
    def longest(self) -> float:
        return max(self.pushes)

    def __str__(self) -> str:
        return (
            f"{len(self.pushes)} pushes: p50 {self.p50:.2f} s, p99 {self.p99:.2f} s "
            f"(before: {quantile(self.baseline, 0.5):.2f} s, at most {max(self.baseline):.2f} s); memory "
            f"{self.base_kb // 1024} MB, {self.begin_kb // 1024} MB before this, at most {self.peak_kb // 1024} MB, "
            f"{self.after_kb // 1024} MB after; "
            f"CPU {self.cpu_share:.0%}; log {len(self.log)} bytes; attacker: {self.attacker}"
        )

    def assert_held(self, *, slack: float = SLACK) -> None:
        """Pushes continued, memory stayed within bounds, the log is short."""
        print(self)
        assert self.p99 < max(SOON_SECONDS, slack * max(self.baseline)), str(self)
        assert self.peak_kb < self.begin_kb + self.base_kb + ROOM_KB, str(self)
        assert len(self.log) < LOG_BYTES, str(self)


class _PeakMemory:
    """The most memory that the plane had within the block, seen by a thread."""

    def __init__(self, pilot: Pilot) -> None:
        self._pilot = pilot
        self.kb = pilot.resident_kb()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> _PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.1):
            self.kb = max(self.kb, self._pilot.resident_kb())


class Victim:
    """A plane that is attacked, and the good client next to."""

    def __init__(self, pilot: Pilot, client: GoodClient) -> None:
        self.pilot = pilot
        self.client = client
        client.push()
        self.base_kb = pilot.resident_kb()

    def under_attack(self, command: Sequence[str | Path], *, limit: float = 60.0) -> Report:
        """Run ``python *command`` to its end while the configuration is edited; kill it after ``limit`` seconds."""
        pilot, client = self.pilot, self.client
        assert pilot.process.poll() is None, "the plane ended in an earlier attack"
        baseline = [client.push() for _ in range(BASELINE_EDITS)]
        begin_kb = pilot.resident_kb()
        log_at, cpu, began = pilot.log_path.stat().st_size, pilot.cpu_seconds(), time.monotonic()
        pushes: list[float] = []
        attacker = subprocess.Popen(
            [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            with _PeakMemory(pilot) as peak:
                while attacker.poll() is None and time.monotonic() < began + limit:
                    pushes += client.push_for(EDIT_SECONDS)
                cpu_share = (pilot.cpu_seconds() - cpu) / (time.monotonic() - began)
                pushes.append(client.push())
                after_kb = pilot.resident_kb()
            attacker.kill()
            out, err = attacker.communicate()
        finally:
            attacker.kill()
            attacker.communicate()
        assert attacker.returncode == 0, f"the attacker failed: {err[-3000:]}"
        assert pilot.process.poll() is None, f"the plane ended: {pilot.log()[-3000:]}"
        return Report(
            baseline=baseline,
            pushes=pushes,
            base_kb=self.base_kb,
            begin_kb=begin_kb,
            peak_kb=peak.kb,
            after_kb=after_kb,
            log=pilot.log_path.read_bytes()[log_at:].decode(),
            cpu_share=cpu_share,
            attacker=json.loads(out),
        )

    def assert_memory_is_back(self) -> None:
        """Within a minute."""
        until(
            lambda: self.pilot.resident_kb() < 2 * self.base_kb + ROOM_KB,  # one plane has stood all attacks of a file
            MEMORY_SECONDS,
            f"memory is back at {self.base_kb} KB",
        )


@contextmanager
def victim(folder: Path, *options: str, **more: Any) -> Iterator[Victim]:
    """A plane of 50 services, started with ``options``, and a client that has what it serves; ``more`` is for Popen."""
    with running(folder, *options, services=50, **more) as pilot, good_client(pilot) as client:
        yield Victim(pilot, client)
