"""Attacks by requests of xDS that are well-formed: ``python request_attacks.py PORT SECONDS ATTACK``.

Prints one line of JSON at its end: how the streams ended, by the reason they were given.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import grpc
from envoy.service.discovery.v3 import discovery_pb2 as pb

from mesh_pilot.model.resource import CLUSTER, ENDPOINT, LISTENER, ROUTE, SECRET

ADS = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
DELTA = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"
NAMES_A_REQUEST = 1430
NAMES = 100_000
STREAMS = 100
"""What one connection may have; grpcio lets more wait."""
ALLOWED_SECONDS = 3.0

told: Counter[str] = Counter()
sent = 0


def channel(port: int) -> grpc.Channel:
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
    return grpc.insecure_channel(f"127.0.0.1:{port}", options)


def node(name: str = "evil", namespace: str = "default") -> dict[str, str]:
    return {"id": f"sidecar~10.0.0.9~{name}.{namespace}~{namespace}.svc.cluster.local"}


class Talk:
    """One stream, whose responses are ACKed, refused or left alone."""

    def __init__(self, on: grpc.Channel, end: float, *, delta: bool = False, answer: str = "ack") -> None:
        self.end = end
        self._delta = delta
        self._answer = answer
        self._outgoing: list[bytes] = []
        self._more = threading.Condition()
        self.over = threading.Event()
        self._call = on.stream_stream(DELTA if delta else ADS)(self._requests())
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def send(self, message: pb.DiscoveryRequest | pb.DeltaDiscoveryRequest) -> None:
        global sent
        sent += 1
        with self._more:
            self._outgoing.append(message.SerializeToString())
            self._more.notify()

    def backlog(self) -> int:
        return len(self._outgoing)

    def _requests(self) -> Iterator[bytes]:
        while not self.over.is_set():
            with self._more:
                self._more.wait_for(lambda: self._outgoing or self.over.is_set(), 1)
                message = self._outgoing.pop(0) if self._outgoing else None
            if message is not None:
                yield message

    def _read(self) -> None:
        try:
            for data in self._call:
                if self._delta:
                    answer = pb.DeltaDiscoveryResponse.FromString(data)
                    again = pb.DeltaDiscoveryRequest(type_url=answer.type_url, response_nonce=answer.nonce)
                else:
                    whole = pb.DiscoveryResponse.FromString(data)
                    again = pb.DiscoveryRequest(type_url=whole.type_url, response_nonce=whole.nonce)
                if self._answer == "nack":
                    again.error_detail.message = "no " * 100
                if self._answer != "never":
                    self.send(again)
        except grpc.RpcError as error:
            told[f"{error.code().name}: {error.details()}"] += 1
        finally:
            self.over.set()

    def wait(self) -> None:
        """Until the stream is over, or it is time to go."""
        self.over.wait(max(0.0, self.end - time.monotonic()))
        self.over.set()
        self._call.cancel()
        self._thread.join(10)


def names(type_url: str, text: str) -> Callable[[int, float], None]:
    """So many names that nothing has, a few at a time, on one stream."""

    def attack(port: int, end: float) -> None:
        with channel(port) as on:
            talk = Talk(on, end, delta=True)
            for start in range(0, NAMES, NAMES_A_REQUEST):
                wanted = [text.format(number + 1) for number in range(start, start + NAMES_A_REQUEST)]
                first = {"node": node()} if not start else {}
                talk.send(pb.DeltaDiscoveryRequest(type_url=type_url, resource_names_subscribe=wanted, **first))
            talk.wait()

    return attack


def wrong_nonces(port: int, end: float) -> None:
    with channel(port) as on:
        talk = Talk(on, end)
        talk.send(pb.DiscoveryRequest(type_url=CLUSTER, node=node()))
        time.sleep(0.3)
        while time.monotonic() < end and not talk.over.is_set():
            if talk.backlog() < 1000:
                talk.send(pb.DiscoveryRequest(type_url=CLUSTER, response_nonce="wrong"))
            else:
                time.sleep(0.001)
        talk.wait()


def _first(port: int, end: float, requests: list[pb.DiscoveryRequest], *, answer: str = "ack") -> None:
    """A stream and a connection for each first request."""
    channels = [channel(port) for _ in requests]
    talks = [Talk(on, end, answer=answer) for on in channels]
    for talk, request in zip(talks, requests, strict=True):
        talk.send(request)
    for talk in talks:
        talk.wait()
    for on in channels:
        on.close()


def many_values(port: int, end: float) -> None:
    request = pb.DiscoveryRequest(type_url=CLUSTER, node=node())
    value = request.node.metadata.fields["x"].list_value.values.add(bool_value=True)
    request.node.metadata.fields["x"].list_value.values.extend([value] * 3_000_000)
    _first(port, end, [request])


def few_values(port: int, end: float) -> None:
    """As many as fit into a node that is not too large."""
    request = pb.DiscoveryRequest(type_url=CLUSTER, node=node())
    value = request.node.metadata.fields["x"].list_value.values.add(bool_value=True)
    request.node.metadata.fields["x"].list_value.values.extend([value] * 200_000)
    _first(port, end, [request])


def fat_nodes(port: int, end: float) -> None:
    request = pb.DiscoveryRequest(type_url=CLUSTER, node=node())
    request.node.metadata["x"] = "x" * 50_000_000
    _first(port, end, [request] * 5)


def _crowd(port: int, end: float, size: int, answer: str = "ack", *, allowed: int = 0) -> Iterator[Talk]:
    """Streams, as many on each connection as one may have.

    They stay to the end, or for a while once all but ``allowed`` of them are refused.
    """
    with ExitStack() as channels:
        talks: list[Talk] = []
        for number in range(size):
            if number % STREAMS == 0:
                on = channels.enter_context(channel(port))
            talks.append(Talk(on, end, answer=answer))
            yield talks[-1]
        while time.monotonic() < end and sum(not talk.over.is_set() for talk in talks) > allowed:
            time.sleep(0.05)
        if allowed:
            time.sleep(ALLOWED_SECONDS)
        for talk in talks:
            talk.over.set()
        for talk in talks:
            talk.wait()


def namespaces(port: int, end: float) -> None:
    """More than a peer may have."""
    for number, talk in enumerate(_crowd(port, end, 700, allowed=500)):
        talk.send(pb.DiscoveryRequest(type_url=CLUSTER, node=node(namespace=f"ns{number}")))
        talk.send(pb.DiscoveryRequest(type_url=LISTENER))


def nack_for_ever(port: int, end: float) -> None:
    for number, talk in enumerate(_crowd(port, end, 20, "nack")):
        talk.send(pb.DiscoveryRequest(type_url=CLUSTER, node=node(f"evil{number}")))


def never_ack(port: int, end: float) -> None:
    for number, talk in enumerate(_crowd(port, end, 300, "never")):
        talk.send(pb.DiscoveryRequest(type_url=CLUSTER, node=node(f"evil{number}")))


def come_and_go(port: int, end: float) -> None:
    """Clients that ask for clusters and leave, a connection each, as many as there is time for."""
    number = 0
    while time.monotonic() < end:
        number += 1
        with channel(port) as on:
            talk = Talk(on, time.monotonic() + 0.02)
            talk.send(pb.DiscoveryRequest(type_url=CLUSTER, node=node(f"guest{number}", f"ns{number % 20}")))
            talk.wait()


ATTACKS: dict[str, Callable[[int, float], None]] = {
    "cluster_names": names(CLUSTER, "outbound|80||made-up-{}.test"),
    "come_and_go": come_and_go,
    "endpoint_names": names(ENDPOINT, "outbound|80||made-up-{}.test"),
    "fat_nodes": fat_nodes,
    "few_values": few_values,
    "many_values": many_values,
    "nack_for_ever": nack_for_ever,
    "namespaces": namespaces,
    "never_ack": never_ack,
    "port_names": names(ROUTE, "{}"),
    "route_names": names(ROUTE, "made-up-{}.test:80"),
    "secret_names": names(SECRET, "kubernetes://made-up-{}"),
    "wrong_nonces": wrong_nonces,
}


def main() -> None:
    port, seconds, attack = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
    with suppress(grpc.RpcError):
        ATTACKS[attack](port, time.monotonic() + seconds)
    print(json.dumps({"sent": sent, "told": dict(told)}))


if __name__ == "__main__":
    main()
