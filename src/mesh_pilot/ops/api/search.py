"""Search over all that has a name: services, objects, proxies; by name, host, address and label."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence

import attrs
from starlette.requests import Request

from mesh_pilot.api.istio.networking.v1alpha3 import Gateway, WorkloadEntry
from mesh_pilot.model.config import Config
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.service import Endpoint, Service
from mesh_pilot.ops.api.route import ApiTopic, Found, Parameter
from mesh_pilot.ops.api.visitors import Scope, sees
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.ops.values.objects import hosts_of

SHOWN = 20
"""Entries of each kind."""

QUERY = Parameter("q", "Words, in any case and order: parts of names, hosts, addresses or labels.", is_required=True)


@attrs.frozen
class FoundNames:
    """The best of the names that have all words in them, or in what belongs to them."""

    items: Sequence[Sequence[str]]
    """The parts of each name."""
    total: int
    matches: Sequence[str]
    """The text of each that was found: empty for the name, else `address 10.0.0.7`, `host cart.test` or `label
    app=cart`."""


@attrs.frozen
class SearchResult:
    """Names that have words in them, or in what belongs to them."""

    services: FoundNames
    """Namespace and host."""
    objects: FoundNames
    """Kind, namespace and name."""
    proxies: FoundNames


@attrs.frozen
class _Candidate:
    name: tuple[str, ...]
    texts: Iterable[str]
    """The texts that belong to it; looked at only if the name has not all words."""


routes = ApiTopic()


@routes.declare(
    "/search",
    f"Services, objects and proxies by name, host, address or label: of each the best {SHOWN}, and the number.",
    parameters=(QUERY,),
    answers=SearchResult,
    scope=Scope.ANY,
)
async def search(state: PlaneState, request: Request) -> Found:
    words = request.query_params.get("q", "").lower().split()
    is_seen = sees(request)
    services = [(k, each) for k, each in state.world.services.items() if each is not None and is_seen(k.namespace)]
    endpoints = dict(state.world.endpoints.items())
    objects = [config for _, config in state.world.config.items() if config and is_seen(config.namespace)]
    connected = [each.proxy for each in state.xds.status.proxies() if each.proxy is not None]
    proxies = {proxy.name: proxy for proxy in connected if is_seen(proxy.namespace)}
    return lambda: SearchResult(
        _found(
            words,
            (_Candidate((key.namespace, key.host), _of_service(s, endpoints.get(key, ()))) for key, s in services),
        ),
        _found(words, (_Candidate(config.key, _of_object(config)) for config in objects)),
        _found(words, (_Candidate((name,), _of_proxy(proxy)) for name, proxy in proxies.items())),
    )


def _of_service(service: Service, endpoints: Sequence[Endpoint]) -> Iterator[str]:
    yield from (f"address {address}" for address in service.addresses)
    yield from (f"address {each.address}" for each in endpoints)
    yield from (f"label {name}={value}" for each in endpoints for name, value in each.labels.items())


def _of_object(config: Config) -> Iterator[str]:
    spec = config.spec
    yield from (f"host {host}" for host in hosts_of(spec))
    if isinstance(spec, Gateway):
        yield from (f"host {host}" for server in spec.servers for host in server.hosts)
    if isinstance(spec, WorkloadEntry):
        yield f"address {spec.address}"
    yield from (f"label {name}={value}" for name, value in config.labels.items())


def _of_proxy(proxy: Proxy) -> Iterator[str]:
    yield from (f"address {address}" for address in (proxy.peer, *proxy.ip_addresses) if address)
    yield from (f"label {name}={value}" for name, value in proxy.labels.items())


def _found(words: Sequence[str], candidates: Iterable[_Candidate]) -> FoundNames:
    """The best: found by their names, those whose last part begins with the first word, then the short ones."""
    total = 0

    def ranked() -> Iterator[tuple[bool, bool, int, tuple[str, ...], str]]:
        nonlocal total
        for each in candidates:
            name = "/".join(each.name).lower()
            match = _match(words, name, each.texts)
            if match is not None:
                total += 1
                yield bool(match), not each.name[-1].lower().startswith(words[0]), len(name), each.name, match

    best = heapq.nsmallest(SHOWN, ranked()) if words else []
    return FoundNames([name for _, _, _, name, _ in best], total, [match for *_, match in best])


def _match(words: Sequence[str], name: str, texts: Iterable[str]) -> str | None:
    """The text next to the name that has a word which the name has not; empty if the name has all, None if any word is
    nowhere."""
    missing = [word for word in words if word not in name]
    found = ""
    for text in texts if missing else ():
        left = [word for word in missing if word not in text.lower()]
        if len(left) < len(missing):
            found, missing = found or text, left
        if not missing:
            break
    return None if missing else found
