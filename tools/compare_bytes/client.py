"""An xDS client that asks for all that a proxy would ask for, and keeps the bytes."""

from __future__ import annotations

import queue
from collections.abc import Iterable
from typing import Any

import grpc
from envoy.config.core.v3 import base_pb2
from envoy.extensions.transport_sockets.tls.v3 import secret_pb2
from envoy.service.discovery.v3 import discovery_pb2
from google.protobuf import json_format

from mesh_pilot.model.resource import CLUSTER, ENDPOINT, EXTENSION, LISTENER, ROUTE, SECRET, VIRTUAL_HOST
from tests.support import golden, pool
from tests.support.envoy_model import names_in_encoded

ADS = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"

SECONDS = 120.0
"""How long a control plane may take to start, and to answer one proxy: ends what hangs, measures nothing."""

Received = dict[tuple[str, str], bytes]
"""The resources that one proxy was sent, encoded, by type and name."""


class Client:
    """One Delta ADS stream. State: the resources that came; None for those that there are not."""

    def __init__(self, channel: grpc.Channel, node: base_pb2.Node) -> None:
        self._node = node
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._responses = channel.stream_stream(ADS)(iter(self._requests.get, None), timeout=SECONDS)
        self.has: dict[tuple[str, str], bytes | None] = {}

    def ask(self, type_url: str, names: Iterable[str] = (), *, wildcard: bool = False) -> None:
        """Subscribe, and wait for the answer: each name comes, or comes as removed. Raises EOFError."""
        asked = sorted(set(names))
        if not asked and not wildcard:
            return
        self._send(type_url=type_url, node=self._node, resource_names_subscribe=asked)
        for data in self._responses:
            response = discovery_pb2.DeltaDiscoveryResponse.FromString(data)
            self._send(type_url=response.type_url, response_nonce=response.nonce)
            self.has |= {(response.type_url, r.name): r.resource.value for r in response.resources}
            self.has |= {(response.type_url, name): None for name in response.removed_resources}
            if response.type_url == type_url and all((type_url, name) in self.has for name in asked):
                return
        raise EOFError(f"the stream ended before {type_url} was answered")

    def close(self) -> None:
        self._requests.put(None)
        self._responses.cancel()

    def names(self, field: str, *types: str) -> set[str]:
        """The names that resources of these types refer to; ``field`` is one of ``Names``."""
        bodies = [(type_url, body) for (type_url, _), body in self.has.items() if type_url in types and body]
        return set().union(*(getattr(names_in_encoded(*each), field) for each in bodies))

    def _send(self, **fields: Any) -> None:
        self._requests.put(discovery_pb2.DeltaDiscoveryRequest(**fields).SerializeToString())


def receive(channel: grpc.Channel, entry: dict[str, Any]) -> Received:
    """Everything that a proxy of ``proxies.yaml`` is sent. Raises grpc.RpcError and EOFError."""
    client = Client(channel, _node(golden.node_of(entry)))
    try:
        if entry.get("grpc"):
            client.ask(LISTENER, entry["grpc"])
            client.ask(ROUTE, client.names("routes", LISTENER))
            client.ask(CLUSTER, client.names("clusters", LISTENER, ROUTE))
            client.ask(ENDPOINT, client.names("endpoints", CLUSTER))
        else:
            client.ask(CLUSTER, wildcard=True)
            client.ask(ENDPOINT, client.names("endpoints", CLUSTER))
            client.ask(LISTENER, wildcard=True)
            client.ask(ROUTE, client.names("routes", LISTENER))
            if any(names_in_encoded(t, body).hosts_apart for (t, _), body in client.has.items() if t == ROUTE and body):
                client.ask(VIRTUAL_HOST, wildcard=True)
            client.ask(EXTENSION, client.names("extensions", LISTENER))
            credentials = {f"kubernetes://{name}" for name in pool.SECRETS}
            client.ask(SECRET, credentials | client.names("secrets", LISTENER, CLUSTER))
    finally:
        client.close()
    return {key: _without_issued(*key, body) for key, body in client.has.items() if body is not None}


def _node(node: golden.Node) -> base_pb2.Node:
    found = base_pb2.Node(id=node.id, cluster=node.cluster, user_agent_name="envoy")
    json_format.ParseDict(node.metadata, found.metadata)
    region, zone, sub_zone, *_ = [*node.locality.split("/"), "", "", ""]
    found.locality.region, found.locality.zone, found.locality.sub_zone = region, zone, sub_zone
    return found


def _without_issued(type_url: str, name: str, body: bytes) -> bytes:
    """A resource without the key and the chain that were issued for it just now."""
    if type_url != SECRET or name != "default":
        return body
    secret = secret_pb2.Secret.FromString(body)
    for part in (secret.tls_certificate.certificate_chain, secret.tls_certificate.private_key):
        part.inline_bytes = b"issued" if part.inline_bytes else b""
    return secret.SerializeToString(deterministic=True)
