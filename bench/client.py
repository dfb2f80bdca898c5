"""A client that talks xDS as Envoy does: in which order it asks, what it answers, what it presents when it comes back.

Clusters first; once they are there their endpoints, then listeners, then the routes that those name, then virtual
hosts, where they come by themselves. Everything is accepted, unless the client is told to refuse. No I/O here: ``send``
is given, ``received`` is called.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

import attrs
from envoy.config.core.v3 import base_pb2
from envoy.service.discovery.v3 import discovery_pb2

from bench.held import NOTHING, WHOLE, Held, duplicates, hosted_tables, split_tables
from bench.wire import CDS, EDS, LDS, RDS, VHDS, Message, read_message, table_of

DELTA_PATH = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"
PATHS = {
    "sotw": "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources",
    "delta": DELTA_PATH,
    "split": DELTA_PATH,
}
"""By variant; ``split`` is Delta with virtual hosts by themselves."""

UNNAMED = (*WHOLE, VHDS)
"""Types of which everything is asked for."""


BUILD = base_pb2.Node(
    user_agent_name="envoy",
    user_agent_build_version=base_pb2.BuildVersion(version={"major_number": 1, "minor_number": 40}),
    extensions=[
        base_pb2.Extension(
            name=f"envoy.filters.of_the_bench.number_{number}",
            category="envoy.filters.http",
            type_urls=[f"envoy.extensions.filters.of_the_bench.v3.Number{number}"],
        )
        for number in range(516)
    ],
    client_features=["envoy.lb.does_not_support_overprovisioning"],
)
"""The part of a node that is the same for all Envoys of a build: it names 516 extensions, in some 60 KB."""


class Role(StrEnum):
    NORMAL = "normal"
    STUCK = "stuck"
    """Reads nothing any more."""
    ASIDE = "aside"
    """Does as normal ones do, but is not looked at: it stands where another time a stuck client stands."""
    REFUSING = "refusing"
    """NACKs every response."""


@attrs.define
class Counts:
    """What clients received since the last reset."""

    bytes: int = 0
    responses: int = 0
    resources: int = 0
    needless: int = 0
    """Responses after which the client had nothing that it did not have before."""
    by_type: dict[str, int] = attrs.Factory(dict)
    duplicates: list[str] = attrs.Factory(list)


@attrs.define
class Subscription:
    """One type: what is wanted and held, and what the server last said."""

    names: frozenset[str] = frozenset()
    held: Held = NOTHING
    version: str = ""
    """Last accepted."""
    nonce: str = ""
    asked: bool = False
    """True if this stream has had a request for the type."""
    answered: bool = False


class Client:
    """One proxy. Mutable state: its subscriptions, which last longer than a stream, and its role."""

    def __init__(self, index: int, variant: str, namespace: str, counts: Counts) -> None:
        self.index = index
        self.variant = variant
        self.namespace = namespace
        self.role = Role.NORMAL
        self.complete_at = 0.0
        """When everything was there; 0: not yet on this stream."""
        self.last_at = 0.0
        """When the last response came on this stream."""
        self.types = {type_url: Subscription() for type_url in (CDS, EDS, LDS, RDS, VHDS)}
        self._counts = counts
        self._send: Callable[[bytes], None] = lambda message: None
        self._is_first = True

    def __repr__(self) -> str:
        held = {name.rpartition(".")[2]: len(s.held.items) for name, s in self.types.items()}
        return f"<Client {self.index} {self.variant} {self.role} {held}>"

    # -- streams

    def connected(self, send: Callable[[bytes], None], *, keep: bool) -> None:
        """A new stream: ask, and with ``keep`` present what is held from the last."""
        self._send, self._is_first = send, True
        self.complete_at = self.last_at = 0.0
        if not keep:
            self.types = {type_url: Subscription() for type_url in self.types}
        for type_url, had in self.types.items():
            had.nonce, had.answered = "", False
            was_asked, had.asked = had.asked, False
            if type_url == CDS or (was_asked and (type_url in UNNAMED or had.names)):
                self._ask(type_url)

    def received(self, data: bytes, now: float) -> str:
        """Take a response in and answer it; returns its type."""
        message = read_message(data, self.variant != "sotw")
        counts, content = self._counts, message.content
        counts.bytes += len(data)
        counts.responses += 1
        counts.resources += len(content.items)
        counts.by_type[message.type_url] = counts.by_type.get(message.type_url, 0) + 1
        self.last_at = now
        had = self.types[message.type_url]
        had.nonce = message.nonce
        if self.role is Role.REFUSING:
            self._answer(message, error="refused by the bench")
            return message.type_url
        counts.duplicates += duplicates(content)
        if message.type_url == VHDS:
            self._check_tables(message)
        before = had.held
        had.held = before.after(content, whole=self.variant == "sotw" and message.type_url in WHOLE)
        had.version, had.answered = message.version, True
        if had.held is before:
            counts.needless += 1
        self._answer(message)
        if message.type_url in WHOLE:
            self._follow(message.type_url, EDS if message.type_url == CDS else RDS)
        if message.type_url == RDS and not self.types[VHDS].asked and split_tables(had.held):
            self._ask(VHDS)
        if self.types[CDS].answered and not self.types[LDS].asked and self._is_complete(EDS):
            self._ask(LDS)
        if not self.complete_at and self.is_complete:
            self.complete_at = now
        return message.type_url

    @property
    def is_complete(self) -> bool:
        """True if the client has all that what it has names."""
        listeners, tables, hosts = (self.types[type_url].held for type_url in (LDS, RDS, VHDS))
        has_named = bool(listeners.items) and self._is_complete(EDS) and self._is_complete(RDS)
        return has_named and split_tables(tables) <= hosted_tables(hosts)

    def _check_tables(self, message: Message) -> None:
        """Envoy drops virtual hosts of tables that it has not got yet."""
        tables = self.types[RDS].held.items
        for item in message.content.items:
            if table_of(item.name) not in tables:
                self._counts.duplicates.append(f"{item.name} (before its table)")

    def _is_complete(self, type_url: str) -> bool:
        had = self.types[type_url]
        return had.names <= had.held.items.keys()

    # -- requests

    def _follow(self, type_url: str, follower: str) -> None:
        """Want the endpoints of the clusters held, the routes of the listeners held."""
        wanted, had = self.types[type_url].held.wanted(type_url), self.types[follower]
        if wanted == had.names:
            return
        new, gone = wanted - had.names, had.names - wanted
        had.names = wanted
        if gone:
            had.held = Held({name: item for name, item in had.held.items.items() if name not in gone})
        self._ask(follower, new=new, gone=gone)

    def _ask(self, type_url: str, *, new: frozenset[str] | None = None, gone: frozenset[str] = frozenset()) -> None:
        """A request that answers nothing; the first of a type presents what is held of it."""
        had = self.types[type_url]
        first, had.asked = not had.asked, True
        if self.variant == "sotw":
            self._request_sotw(type_url, had.nonce)
            return
        request = discovery_pb2.DeltaDiscoveryRequest(type_url=type_url)
        if type_url not in UNNAMED:
            request.resource_names_subscribe.extend(sorted(had.names if first or new is None else new))
            request.resource_names_unsubscribe.extend(sorted(gone if not first else ()))
        if first:
            request.initial_resource_versions.update({i.name: i.version for i in had.held.items.values()})
        self._write(request)

    def _answer(self, message: Message, *, error: str = "") -> None:
        if self.variant == "sotw":
            self._request_sotw(message.type_url, message.nonce, error)
            return
        request = discovery_pb2.DeltaDiscoveryRequest(type_url=message.type_url, response_nonce=message.nonce)
        if error:
            request.error_detail.message = error
        self._write(request)

    def _request_sotw(self, type_url: str, nonce: str, error: str = "") -> None:
        had = self.types[type_url]
        request = discovery_pb2.DiscoveryRequest(
            type_url=type_url, version_info=had.version, response_nonce=nonce, resource_names=_ordered(had.names)
        )
        if error:
            request.error_detail.message = error
        self._write(request)

    def _write(self, request: discovery_pb2.DiscoveryRequest | discovery_pb2.DeltaDiscoveryRequest) -> None:
        if self._is_first:
            self._is_first = False
            ip = f"172.{16 + self.index // 62500}.{self.index // 250 % 250}.{self.index % 250 + 1}"
            name = f"client{self.index}.{self.namespace}"
            request.node.CopyFrom(BUILD)
            request.node.id = f"sidecar~{ip}~{name}~{self.namespace}.svc.cluster.local"
            request.node.cluster = "client"
            if self.variant == "split":
                request.node.metadata["VIRTUAL_HOSTS"] = "split"
            request.node.metadata.update(
                {
                    "NAMESPACE": self.namespace,
                    "LABELS": {"app": "client"},
                    "INSTANCE_IPS": ip,
                    "ISTIO_VERSION": "1.14.6",
                }
            )
        self._send(request.SerializeToString())


_orders: dict[frozenset[str], list[str]] = {}


def _ordered(names: frozenset[str]) -> list[str]:
    """Sorted once for all clients that want the same."""
    found = _orders.get(names)
    if found is None:
        if len(_orders) > 64:
            _orders.clear()
        found = _orders[names] = sorted(names)
    return found
