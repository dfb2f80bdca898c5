"""Consul's chains at gateways: routes of a gateway to a service go on as the chain of that service says.

A chain is the VirtualService that is made of the router, splitter and resolver of a service of Consul. For sidecars it
has the service's host. In Consul it holds for whoever calls the service, so at a gateway a route to the service, if it
names no subset, becomes the routes of the chain, each for what both match. What the route says itself (timeout,
retries, ...) counts before what the chain says.

A chain whose host a user's VirtualService has for sidecars is replaced, for gateways too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import attrs

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.engine import derived
from mesh_pilot.mesh.virtual_services.match_overlap import RegexOverlapError, overlap
from mesh_pilot.mesh.virtual_services.rules import HttpRule, destinations_of, http_rules
from mesh_pilot.model.config import Config, ConfigKey
from mesh_pilot.world import View
from mesh_pilot.world.names import MESH_GATEWAY
from mesh_pilot.world.shards import shard_of

CHAIN_KINDS = frozenset(("service-router", "service-splitter", "service-resolver"))
"""The kinds of Consul's entries that chains are made of."""

_MOST_WEIGHT = 2**31
"""Envoy takes a sum of weights up to 4,294,967,295."""


@attrs.frozen
class ChainedRule:
    """A rule as gateways have it."""

    rule: HttpRule
    root: int
    """The index, in ``http_rules``, of the rule that it is or comes of."""


@attrs.frozen
class ChainLimit:
    """A part of a chain that does not hold for a route of a gateway."""

    root: int
    chain: ConfigKey
    reason: str


@attrs.frozen
class GatewayRules:
    """The rules of a VirtualService at gateways, the chains in them, and what of these does not hold."""

    rules: tuple[ChainedRule, ...]
    chains: tuple[ConfigKey, ...] = ()
    limits: tuple[ChainLimit, ...] = ()


def rules_at(view: View, key: ConfigKey, gateway: str) -> tuple[HttpRule, ...]:
    """The HTTP rules of a VirtualService for clients of a gateway, or ``mesh``."""
    if gateway == MESH_GATEWAY:
        return http_rules(view, key)
    return tuple(each.rule for each in gateway_rules(view, key).rules)


@derived
def gateway_rules(view: View, key: ConfigKey) -> GatewayRules:
    """The HTTP rules of a VirtualService with Consul's chains in them."""
    found: list[ChainedRule] = []
    chains: dict[ConfigKey, None] = {}
    limits: list[ChainLimit] = []
    for index, rule in enumerate(http_rules(view, key)):
        reader = _ChainReader(view, index, rule)
        found += (ChainedRule(each, index) for each in _chained(reader, rule))
        chains.update(reader.chains)
        limits += reader.limits
    return GatewayRules(tuple(found), tuple(chains), tuple(limits))


@derived
def gateway_destinations(view: View, key: ConfigKey) -> tuple[str, ...]:
    """The full names of the hosts that a VirtualService leads to at gateways, including mirrors."""
    rules = [each.rule for each in gateway_rules(view, key).rules]
    hosts = (
        view.destination_host(d.host, rule.namespace) for rule in rules for d in destinations_of(rule.spec) if d.host
    )
    return tuple(dict.fromkeys(hosts))


@derived
def chain_of(view: View, host: str) -> ConfigKey | None:
    """The chain of a host; None for a host that has no chain, or that a user's VirtualService has."""
    for meta in view.mesh_virtual_services(shard_of(host, view.shard_bits())):
        if any(host.lower() == own.lower() for own in meta.hosts):
            config = view.config(meta.key)
            return meta.key if config is not None and is_chain(config) else None
    return None


def is_chain(config: Config) -> bool:
    """True for a VirtualService that is made of Consul's entries."""
    return any(key.kind in CHAIN_KINDS for key in config.made_from)


def gateway_connections(
    view: View, destinations: Sequence[api.RouteDestination], namespace: str
) -> Sequence[api.RouteDestination]:
    """The destinations of connections, of a VirtualService of a namespace, as gateways have them."""
    reader = _ChainReader(view, 0, HttpRule(api.HttpRoute(), namespace))
    return [replace(each, destination=_connected(reader, each.destination)) for each in destinations]


def _connected(reader: _ChainReader, destination: api.Destination | None) -> api.Destination | None:
    if destination is None or destination.subset:
        return destination
    key = chain_of(reader.view, reader.view.destination_host(destination.host, reader.rule.namespace))
    config = reader.view.config(key) if key is not None else None
    port = reader.port(destination)
    for rule in config.spec.tcp if config is not None else ():
        if not rule.match or any(match.port in (0, port) for match in rule.match):
            return _at(rule.route[0].destination, port)
    return destination


@attrs.define
class _ChainReader:
    """The chains that one rule needs. State: those found, and what of them does not hold."""

    view: View
    root: int
    rule: HttpRule
    chains: dict[ConfigKey, None] = attrs.field(factory=dict)
    limits: list[ChainLimit] = attrs.field(factory=list)

    def chain(self, destination: api.Destination | None) -> tuple[ConfigKey, list[api.HttpRoute]] | None:
        """The chain of a destination, with its rules for the port that is called."""
        if destination is None or destination.subset:
            return None
        host = self.view.destination_host(destination.host, self.rule.namespace)
        key = chain_of(self.view, host)
        config = self.view.config(key) if key is not None else None
        if key is None or config is None or not config.spec.http:
            return None
        self.chains[key] = None
        port = self.port(destination)
        return key, [each for inner in config.spec.http if (each := _at_port(inner, port)) is not None]

    def port(self, destination: api.Destination) -> int:
        """The port that a destination names, or the only one of its service; 0: that of the gateway."""
        if destination.port is not None and destination.port.number:
            return destination.port.number
        services = self.view.services_named(self.view.destination_host(destination.host, self.rule.namespace))
        ports = services[0].ports if services else ()
        return ports[0].number if len(ports) == 1 else 0

    def limit(self, chain: ConfigKey, reason: str) -> None:
        self.limits.append(ChainLimit(self.root, chain, reason))


def _at_port(rule: api.HttpRoute, port: int) -> api.HttpRoute | None:
    """A rule of a chain for calls of a port; None if it is for another one only."""
    if not any(match.port for match in rule.match):
        return rule
    match = [replace(each, port=0) for each in rule.match if each.port in (0, port)]
    if not match:
        return None
    return replace(rule, match=[] if any(each == api.HttpMatchRequest() for each in match) else match)


def _chained(reader: _ChainReader, rule: HttpRule) -> Iterator[HttpRule]:
    spec = _with_mirrors(reader, rule.spec)
    if len(spec.route) == 1 and (found := reader.chain(spec.route[0].destination)):
        for inner in _through(reader, spec, *found):
            yield attrs.evolve(rule, spec=inner)
        return
    parts = [_shared(reader, entry) for entry in spec.route]
    if any(part != [entry] for part, entry in zip(parts, spec.route, strict=True)):
        spec = replace(spec, route=_leveled(spec.route, parts))
    yield rule if spec is rule.spec else attrs.evolve(rule, spec=spec)


def _through(
    reader: _ChainReader, root: api.HttpRoute, chain: ConfigKey, rules: Sequence[api.HttpRoute]
) -> Iterator[api.HttpRoute]:
    """The rules that a rule with one destination becomes."""
    (entry,) = root.route
    assert entry.destination is not None
    rewrites = root.rewrite is not None and bool(root.rewrite.uri or root.rewrite.uri_regex_rewrite)
    port = reader.port(entry.destination)
    # A gateway must not send requests past the chain in silence: what cannot be said as a match is left out and told;
    # the rule itself goes last unless some part of the chain takes all that it takes.
    is_whole = False
    for inner in rules:
        if rewrites and any(match.uri is not None for match in inner.match):
            reader.limit(
                chain, "a route of its router matches paths, and this rule rewrites them first; it is left out"
            )
            continue
        try:
            match = overlap(root.match, inner.match)
        except RegexOverlapError:
            reader.limit(chain, "a route of its router and this rule match by a regular expression; it is left out")
            continue
        if match is None:
            continue
        is_whole |= not inner.match
        route = [_destination(part, entry, port) for part in inner.route]
        yield replace(
            root,
            match=match,
            route=route,
            timeout=root.timeout if root.timeout is not None else inner.timeout,
            retries=root.retries if root.retries is not None else inner.retries,
            rewrite=root.rewrite if root.rewrite is not None else inner.rewrite,
            headers=_both(inner.headers, root.headers),
        )
    if not is_whole:
        yield root


def _destination(
    part: api.HttpRouteDestination, entry: api.HttpRouteDestination, port: int
) -> api.HttpRouteDestination:
    """A destination of a chain in place of that of the rule."""
    return replace(part, destination=_at(part.destination, port), headers=_both(part.headers, entry.headers))


def _at(destination: api.Destination | None, port: int) -> api.Destination | None:
    """A destination of a chain; it has the port of the call unless it names another."""
    if destination is None or destination.port is not None or not port:
        return destination
    return replace(destination, port=api.PortSelector(number=port))


def _default(rules: Sequence[api.HttpRoute]) -> api.HttpRoute | None:
    return next((rule for rule in rules if not rule.match), None)


def _shared(reader: _ChainReader, entry: api.HttpRouteDestination) -> list[api.HttpRouteDestination]:
    """The destinations that one of several becomes; the sum of their weights is any number."""
    found = reader.chain(entry.destination)
    if found is None or entry.destination is None:
        return [entry]
    chain, rules = found
    if any(rule.match for rule in rules):
        reader.limit(chain, "the router does not hold for a rule with several destinations; splits and subsets do")
    default = _default(rules)
    if default is None:
        return [entry]
    port = reader.port(entry.destination)
    return [_destination(part, entry, port) for part in default.route]


def _leveled(
    entries: Sequence[api.HttpRouteDestination], parts: Sequence[Sequence[api.HttpRouteDestination]]
) -> list[api.HttpRouteDestination]:
    """The parts of all entries, with weights that give each entry its share."""
    sums = [sum(part.weight for part in each) if len(each) > 1 else 1 for each in parts]
    scale = math.lcm(*sums)
    found = [
        replace(part, weight=entry.weight * (part.weight if len(each) > 1 else 1) * scale // total)
        for entry, each, total in zip(entries, parts, sums, strict=True)
        for part in each
    ]
    divisor = math.gcd(*(part.weight for part in found)) or 1
    found = [replace(part, weight=part.weight // divisor) for part in found]
    return found if sum(part.weight for part in found) < _MOST_WEIGHT else list(entries)


def _with_mirrors(reader: _ChainReader, spec: api.HttpRoute) -> api.HttpRoute:
    """The rule with mirrors to the instances that chains choose, where these are one destination."""
    if spec.mirror is None and not spec.mirrors:
        return spec
    mirrors = [replace(each, destination=_mirrored(reader, each.destination)) for each in spec.mirrors]
    return replace(spec, mirror=_mirrored(reader, spec.mirror), mirrors=mirrors)


def _mirrored(reader: _ChainReader, destination: api.Destination | None) -> api.Destination | None:
    found = reader.chain(destination)
    if found is None or destination is None:
        return destination
    default = _default(found[1])
    if default is None or len(default.route) != 1:
        reader.limit(found[0], "mirrored requests go to all instances of the service: its routes are several")
        return destination
    entry = api.HttpRouteDestination(destination=destination)
    return _destination(default.route[0], entry, reader.port(destination)).destination


def _both(under: api.Headers | None, over: api.Headers | None) -> api.Headers | None:
    """The changes of headers of a chain, and those of a rule, which count where both change one."""
    if under is None or over is None:
        return over if over is not None else under
    return api.Headers(
        request=_operations(under.request, over.request), response=_operations(under.response, over.response)
    )


def _operations(
    under: api.HeadersHeaderOperations | None, over: api.HeadersHeaderOperations | None
) -> api.HeadersHeaderOperations | None:
    if under is None or over is None:
        return over if over is not None else under
    return api.HeadersHeaderOperations(
        set={**under.set, **over.set},
        add={**under.add, **over.add},
        remove=list(dict.fromkeys((*under.remove, *over.remove))),
    )
