"""Envoy in words: a client of a ``Stream`` that asks for what its clusters and listeners name, warms, and complains.

It takes whatever it is sent at once, and raises AssertionError when it is sent something that would cost a real Envoy
requests: a listener or route that names a cluster which is there but was not sent or has no endpoints yet, or the
removal of a cluster that something still names.

Virtual hosts that come by themselves it takes as Envoy 1.40 was seen to: it asks once, for those of all its tables;
what comes for a table that it has not got yet is lost; of tables that it has let go of it still presents the versions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from functools import lru_cache

import attrs

from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.resource import (
    CLUSTER,
    ENDPOINT,
    EXTENSION,
    LISTENER,
    RESOURCE_TYPES,
    ROUTE,
    SECRET,
    VIRTUAL_HOST,
    Resource,
    table_of,
)
from mesh_pilot.xds.ads.messages import DeltaRequest, Node, Request, Response, SotwRequest, Variant
from mesh_pilot.xds.ads.resources import Catalog
from mesh_pilot.xds.ads.stream import Stream
from tests.support.golden import adsdump

REFERRERS = (LISTENER, ROUTE, VIRTUAL_HOST)


@attrs.frozen
class Names:
    """What a resource names."""

    endpoints: frozenset[str] = frozenset()
    clusters: frozenset[str] = frozenset()
    routes: frozenset[str] = frozenset()
    secrets: frozenset[str] = frozenset()
    extensions: frozenset[str] = frozenset()
    hosts_apart: bool = False
    """For a table: its virtual hosts come by themselves."""


def names_in(resource: Resource) -> Names:
    return names_in_encoded(resource.type_url, resource.body)


@lru_cache(maxsize=100_000)
def names_in_encoded(type_url: str, body: bytes) -> Names:
    adsdump.load_all_protos()
    expander = adsdump.Expander()
    document = expander.msg(adsdump.find_class(type_url).FromString(body))
    endpoints = set()
    if type_url == CLUSTER and document.get("type") == "EDS":
        endpoints.add(document.get("eds_cluster_config", {}).get("service_name") or document["name"])
    clusters = frozenset(_clusters(document)) if type_url in REFERRERS else frozenset()
    return Names(
        frozenset(endpoints),
        clusters,
        frozenset(expander.routes),
        frozenset(expander.secrets),
        frozenset(expander.ext),
        type_url == ROUTE and "vhds" in document,
    )


def _clusters(node: object) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("cluster"), str):
            yield node["cluster"]
        weighted = node.get("weighted_clusters")
        if isinstance(weighted, dict):
            yield from (part["name"] for part in weighted.get("clusters", ()))
        node = list(node.values())
    if isinstance(node, list):
        for part in node:
            yield from _clusters(part)


class EnvoyModel:
    """One client and the stream that serves it, run by hand.

    Mutable state: what it has by type and name, what it asked for, which clusters wait for endpoints.
    """

    def __init__(self, catalog: Catalog, proxy: Proxy, variant: Variant, listeners: tuple[str, ...] = ()) -> None:
        """``listeners``: those that a proxyless gRPC client asks for; Envoy asks for all."""
        self.proxy = proxy
        self.variant = variant
        self.has: dict[str, dict[str, Resource]] = {t: {} for t in RESOURCE_TYPES}
        self.warming: set[str] = set()
        self._catalog = catalog
        self._listeners = listeners
        self._versions: dict[str, str] = {}
        self._version_of: dict[tuple[str, str], str] = {}
        self._hosts: set[str] = set()
        """Virtual hosts that it presents when it comes back."""
        self.connect()

    def __repr__(self) -> str:
        return f"<EnvoyModel {self.variant} {self.proxy.id} of {self.stream!r}>"

    @property
    def held(self) -> Mapping[str, Mapping[str, str]]:
        """Versions by type and name of all that it has and still wants."""
        return {t: {n: r.version for n, r in sorted(found.items())} for t, found in self.has.items() if found}

    def connect(self) -> None:
        """A new stream, after the old one broke: it asks for all that it had."""
        self.stream = self.new_stream()
        self._asked: dict[str, Set[str]] = {}
        self._nonces: dict[str, str] = {}
        self._node: Node | None = Node(self.proxy.id)
        if self._listeners:
            self._ask(LISTENER, set(self._listeners))
        else:
            self._ask(CLUSTER, set())
            self._ask(LISTENER, set())
        self._ask_for_named()
        if self._hosts and VIRTUAL_HOST not in self._asked:
            self._ask(VIRTUAL_HOST, set())

    def new_stream(self) -> Stream:
        return Stream(self._catalog, self.variant, admit=lambda _: self.proxy)

    def objects_to(self, response: Response) -> str:
        """Why it refuses a response; empty: it takes it."""
        return ""

    def close(self) -> None:
        self.stream.close()

    def run(self, limit: int = 1000) -> None:
        """Take what there is, up to so many responses."""
        for _ in range(limit):
            response = self.stream.next_response()
            if response is None:
                return
            self._take(response)

    def settle(self) -> None:
        """Take all that there is. A stream that never stops, or waits for what an Envoy never does, fails."""
        for _ in range(3):
            self.run()
            if not self.stream.waiting_for().referrers:
                break
            self.stream.end_reconnect_grace()
        assert self.stream.next_response() is None, f"never quiet: {self!r}"
        waiting = self.stream.waiting_for()
        assert not (waiting.acks or waiting.endpoints or waiting.referrers), (self, waiting)
        assert not self.warming, f"{self!r} still warms {sorted(self.warming)}"
        empty = self._tables() - {table_of(name) for name in self.has[VIRTUAL_HOST]}
        assert not empty, f"{self!r} waits for virtual hosts of {sorted(empty)}"

    # -- requests

    def _ask(self, type_url: str, names: Set[str], *, nonce: str = "", error: str | None = None) -> None:
        first = type_url not in self._asked
        before = self._asked.get(type_url, set())
        self._asked[type_url] = set(names)
        node, self._node = self._node, None
        request: Request
        if self.variant is Variant.SOTW:
            nonce = nonce or self._nonces.get(type_url, "")
            version = self._versions.get(type_url, "")
            request = SotwRequest(type_url, tuple(sorted(names)), nonce, version, error, node=node)
        else:
            presented = self._hosts if type_url == VIRTUAL_HOST else self.has[type_url]
            versions = {n: self._version_of[type_url, n] for n in presented} if first else {}
            new, lost = tuple(sorted(names - before)), tuple(sorted(before - names))
            request = DeltaRequest(type_url, new, lost, versions, nonce, error, node=node)
        self.stream.on_request(request)

    def _ask_for_named(self) -> None:
        """Ask for what the resources at hand name, wherever that changed; drop what nothing names any more."""
        while gone := [(t, n) for t, names in self._named().items() for n in self.has[t].keys() - names]:
            for type_url, name in gone:
                del self.has[type_url][name]
        for name in [n for n in self.has[VIRTUAL_HOST] if table_of(n) not in self.has[ROUTE]]:
            del self.has[VIRTUAL_HOST][name]
        for type_url, names in self._named().items():
            if names != self._asked.get(type_url, set()):
                self._ask(type_url, names)
        if self._tables() and VIRTUAL_HOST not in self._asked:
            self._ask(VIRTUAL_HOST, set())

    def _tables(self) -> set[str]:
        return {name for name, resource in self.has[ROUTE].items() if names_in(resource).hosts_apart}

    def _named(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {ENDPOINT: set(), ROUTE: set(), SECRET: set(), EXTENSION: set()}
        if self._listeners:
            found[CLUSTER] = {c for t in (LISTENER, ROUTE) for r in self.has[t].values() for c in names_in(r).clusters}
        for type_url in (CLUSTER, LISTENER):
            for resource in self.has[type_url].values():
                named = names_in(resource)
                found[ENDPOINT] |= named.endpoints
                found[ROUTE] |= named.routes
                found[SECRET] |= named.secrets
                found[EXTENSION] |= named.extensions
        return found

    # -- responses

    def _take(self, response: Response) -> None:
        type_url = response.type_url
        if reason := self.objects_to(response):
            self._nonces[type_url] = response.nonce
            self._ask(type_url, self._asked[type_url], nonce=response.nonce, error=reason)
            return
        has = self.has[type_url]
        before = dict(has)
        if self.variant is Variant.SOTW and type_url in (CLUSTER, LISTENER):
            has.clear()
        wildcard = type_url in (CLUSTER, LISTENER) and not self._listeners
        tables = self._tables()
        if type_url == VIRTUAL_HOST:
            self._hosts = self._hosts.union(r.name for r in response.resources).difference(response.removed)
        for resource, version in zip(response.resources, response.versions(), strict=True):
            assert resource.body, f"{resource} without content"
            self._version_of[type_url, resource.name] = version
            is_hosted = type_url == VIRTUAL_HOST and table_of(resource.name) in tables
            if wildcard or is_hosted or resource.name in self._asked[type_url]:
                has[resource.name] = resource
        for name in response.removed:
            has.pop(name, None)
        if type_url == CLUSTER:
            self._warm(before)
            self._check_removed(before.keys() - has.keys())
        if type_url == ENDPOINT:
            self.warming -= {r.name for r in response.resources}
        if type_url in REFERRERS and not self._listeners:
            self._check_named(response)
        self._nonces[type_url], self._versions[type_url] = response.nonce, response.version
        self._ask(type_url, self._asked[type_url], nonce=response.nonce)
        self._ask_for_named()

    def _warm(self, before: Mapping[str, Resource]) -> None:
        """New and changed clusters wait for their endpoints."""
        now = self.has[CLUSTER]
        self.warming = {n for n in self.warming if n in {e for r in now.values() for e in names_in(r).endpoints}}
        for name, resource in now.items():
            if before.get(name) != resource:
                self.warming |= names_in(resource).endpoints

    def _now(self, type_url: str) -> Mapping[str, Resource]:
        assert self.stream._order.resources is not None
        source = self.stream._order.resources.set(type_url)
        assert source is not None
        return source.snapshot().entries

    def _check_named(self, response: Response) -> None:
        there = self._now(CLUSTER)
        for resource in response.resources:
            if resource.name not in response.touched:
                continue
            missing = {c for c in names_in(resource).clusters if c in there and c not in self.has[CLUSTER]}
            assert not missing, f"{self!r} was sent {resource.name}, which names {sorted(missing)}, not sent yet"

    def _check_removed(self, removed: Set[str]) -> None:
        assert self.stream._order.resources is not None
        for type_url in REFERRERS:
            source = self.stream._order.resources.set(type_url)
            if source is None:
                assert type_url == VIRTUAL_HOST
                continue
            for name, resource in self.has[type_url].items():
                now = source.get(name) or source.snapshot().entries.get(name)
                if now is not None and now.version == resource.version:
                    continue
                gone = names_in(resource).clusters & removed
                assert not gone, f"{self!r} lost {sorted(gone)}, which its {name} still names"
