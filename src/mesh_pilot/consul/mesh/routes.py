"""The VirtualService of a Consul service: its router, splitters and resolvers, as Consul compiles them.

Rules: Consul, "Discovery chain". A router's routes lead to the splitter of a service, or to its resolver where they
name a subset; a splitter's splits to those of other services, in the same way. A resolver may redirect, and has a
default subset.

Consul's chain leads to services, whatever their ports; a route of Istio's without a port leads to that of the caller.
So a destination has the port of its service wherever that is another one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import attrs

from mesh_pilot.consul.mesh.entries import ChainTarget, ConfigEntry, Split
from mesh_pilot.consul.mesh.reading import EntryReader
from mesh_pilot.consul.mesh.values import ClientPort, EntryRef, IstioObject, Spec, object_name
from mesh_pilot.model.config import Problem

_MAX_STEPS = 32
"""Redirects, and splitters below splitters."""
_WEIGHTS = 10_000
"""The sum of weights: Consul's have two decimal places."""


class ChainError(ValueError):
    """Entries that lead nowhere."""


@attrs.frozen
class Share:
    """A destination with its share of the requests."""

    share: float
    target: ChainTarget
    headers: Spec = attrs.field(factory=dict, hash=False)


@attrs.define
class _Chain:
    """The entries that a conversion used, and what is wrong with them."""

    reader: EntryReader
    service: str
    port: ClientPort | None
    """The port by which the service is called; None: unknown, as the service has no instances."""
    used: dict[EntryRef, None] = attrs.field(factory=dict)
    problems: list[Problem] = attrs.field(factory=list)

    def entry(self, kind: str, name: str) -> ConfigEntry | None:
        found = self.reader.entry(kind, name)
        if found is not None:
            self.used[EntryRef(kind, name)] = None
        return found

    def destination(self, target: ChainTarget) -> Spec:
        destination: Spec = {"host": self.reader.host(target)}
        destination |= {"subset": target.subset} if target.subset else {}
        if target.service != self.service and (number := self._port_at(target)):
            destination |= {"port": {"number": number}}
        return {"destination": destination}

    def _port_at(self, target: ChainTarget) -> int:
        """The port of another service that takes the calls; 0: that of the call, or it is not known."""
        if self.reader.is_elsewhere(target):
            return 0
        there = self.reader.client_ports(target.service)
        if not there:
            return 0
        if self.port is None:
            return there[0].number
        if any(port.number == self.port.number for port in there):
            return 0
        return next((port.number for port in there if port.name == self.port.name), there[0].number)


def virtual_service(service: str, reader: EntryReader) -> tuple[IstioObject | None, tuple[Problem, ...]]:
    """The VirtualService of a service, None if nothing is to be said, and the problems of its entries together."""
    every = {port.number: _Chain(reader, service, port) for port in reader.client_ports(service)}
    every = every or {0: _Chain(reader, service, None)}
    routes = {number: _routes(chain) for number, chain in every.items()}
    # Most services have the same routes at each port. Only where ports differ does every route name its port.
    chain, first = next(iter(every.values())), next(iter(routes.values()))
    http, tcp = first
    if any(found != first for found in routes.values()):
        http = [_at_port(route, number) for number, (found, _) in routes.items() for route in found]
        tcp = [_at_port(route, number) for number, (_, found) in routes.items() for route in found]
    problems = tuple(chain.problems)
    if not http and not tcp:
        return None, problems
    spec: Spec = {"hosts": [reader.host(ChainTarget(service))]}
    spec |= {"http": http} if http else {}
    spec |= {"tcp": tcp} if tcp else {}
    namespace = reader.namespace(service)
    return IstioObject("VirtualService", namespace, object_name(service), spec, tuple(chain.used)), problems


def _at_port(route: Spec, number: int) -> Spec:
    return {**route, "match": [{**match, "port": number} for match in route.get("match", [{}])]}


def _routes(chain: _Chain) -> tuple[list[Spec], list[Spec]]:
    """The routes of requests and of connections."""
    service = chain.service
    http: list[Spec] = []
    router = chain.entry("service-router", service)
    for index, route in enumerate(router.routes if router is not None else ()):
        target = attrs.evolve(route.target, service=route.target.service or service)
        try:
            http.append(_http_route(route.http, _shares(chain, target), chain))
        except ChainError as error:
            reason = f"{error}; the route is left out, its requests go on to the next one"
            chain.problems.append(Problem(f"service-router/{service}.Routes[{index}]", reason))
    tcp: list[Spec] = []
    try:
        shares = _shares(chain, ChainTarget(service))
        default = _http_route({}, shares, chain)
        if http or len(default) > 1 or default["route"] != [chain.destination(ChainTarget(service))]:
            http.append(default)
        resolved = _resolved(chain, ChainTarget(service))
        if resolved != ChainTarget(service):
            tcp.append({"route": [chain.destination(resolved)]})
    except ChainError as error:
        chain.problems.append(Problem(f"service {service}", f"{error}; its requests go to all its instances"))
    return http, tcp


def _http_route(made: Spec, shares: Sequence[Share], chain: _Chain) -> Spec:
    weights = _whole_weights([each.share for each in shares])
    destinations = []
    for each, weight in zip(shares, weights, strict=True):
        destination = chain.destination(each.target)
        destination |= {"weight": weight} if len(shares) > 1 else {}
        destination |= {"headers": each.headers} if each.headers else {}
        destinations.append(destination)
    route = {**made, "route": destinations}
    timeout = next(filter(None, (_timeout(chain, each.target) for each in shares)), "")
    return route if "timeout" in route or not timeout else {**route, "timeout": timeout}


def _timeout(chain: _Chain, target: ChainTarget) -> str:
    resolver = chain.entry("service-resolver", target.service)
    return resolver.timeout if resolver is not None else ""


# -- the chain


def _shares(chain: _Chain, target: ChainTarget) -> list[Share]:
    """The destinations of a target, through splitters unless it names a subset. Raises ChainError."""
    shares = list(_split(chain, Share(1.0, target), ()))
    if not shares:
        raise ChainError(f"the splits of {target.service!r} lead nowhere")
    return shares


def _split(chain: _Chain, whole: Share, above: tuple[str, ...]) -> Iterable[Share]:
    target = whole.target
    splitter = None if target.subset else chain.entry("service-splitter", target.service)
    if splitter is None or not splitter.splits:
        yield attrs.evolve(whole, target=_resolved(chain, target))
        return
    if target.service in above or len(above) >= _MAX_STEPS:
        raise ChainError(f"splitters lead back to {target.service!r}")
    total = sum(split.weight for split in splitter.splits)
    for split in splitter.splits:
        part = _part(whole, split, total)
        if part.target.service == target.service:
            yield attrs.evolve(part, target=_resolved(chain, part.target))
        else:
            yield from _split(chain, part, (*above, target.service))


def _part(whole: Share, split: Split, total: float) -> Share:
    target = attrs.evolve(split.target, service=split.target.service or whole.target.service)
    return Share(whole.share * split.weight / total, target, merged_headers(whole.headers, split.headers))


def merged_headers(outer: Spec, inner: Spec) -> Spec:
    """Changes of headers by an outer and an inner part, such as splits; the inner one wins."""
    if not outer or not inner:
        return inner or outer
    merged: Spec = {}
    for side in ("request", "response"):
        found: Spec = {}
        for operation in ("add", "set"):
            values = {**outer.get(side, {}).get(operation, {}), **inner.get(side, {}).get(operation, {})}
            found |= {operation: values} if values else {}
        removed = [*outer.get(side, {}).get("remove", []), *inner.get(side, {}).get("remove", [])]
        found |= {"remove": list(dict.fromkeys(removed))} if removed else {}
        merged |= {side: found} if found else {}
    return merged


def _resolved(chain: _Chain, target: ChainTarget) -> ChainTarget:
    """The instances that a target stands for: after redirects, with the default subset. Raises ChainError."""
    seen: set[ChainTarget] = set()
    while target not in seen and len(seen) < _MAX_STEPS:
        seen.add(target)
        if chain.reader.is_elsewhere(target):
            return target
        resolver = chain.entry("service-resolver", target.service)
        if resolver is None:
            return target if not target.subset else _no_subset(target)
        if resolver.redirect is not None:
            target = _redirected(target, resolver.redirect)
            if target.peer and target.peer not in chain.reader.settings.peers:
                raise ChainError(f"a redirect to peer {target.peer!r} needs --consul-peer {target.peer}")
        elif not target.subset and resolver.default_subset:
            target = attrs.evolve(target, subset=resolver.default_subset)
        elif target.subset and target.subset not in dict(resolver.subsets):
            return _no_subset(target)
        else:
            return target
    raise ChainError(f"resolvers redirect {target.service!r} in a circle")


def _redirected(target: ChainTarget, redirect: ChainTarget) -> ChainTarget:
    is_same = redirect.service in ("", target.service)
    subset = redirect.subset or (target.subset if is_same else "")
    if redirect.peer:
        return ChainTarget(redirect.service or target.service, "", "", redirect.peer)
    return ChainTarget(redirect.service or target.service, subset, redirect.datacenter or target.datacenter)


def _no_subset(target: ChainTarget) -> ChainTarget:
    raise ChainError(f"{target.service!r} has no subset {target.subset!r}")


def _whole_weights(shares: Sequence[float]) -> list[int]:
    """Whole numbers in the proportion of shares that sum up to 1; none becomes 0, as small as it may be."""
    exact = [share * _WEIGHTS for share in shares]
    weights = [max(math.floor(each), 1) for each in exact]
    by_rest = sorted(range(len(exact)), key=lambda i: (weights[i] - exact[i], i))
    for i in by_rest[: max(_WEIGHTS - sum(weights), 0)]:
        weights[i] += 1
    divisor = math.gcd(*weights)
    return [weight // divisor for weight in weights]
