"""Rules for VirtualService: hosts, gateways, `tls` and `tcp` routes; those for `http` are in `http_route`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import betterproto2

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.istio.meaning.claims import CLAIMS, claim_path
from mesh_pilot.istio.rules.common import check_export_to
from mesh_pilot.istio.rules.context import Context, check, error, warning
from mesh_pilot.istio.rules.http_route import check_destination, check_http_route, check_weights
from mesh_pilot.istio.rules.names import (
    check_labels,
    dns_label_reason,
    fqdn_reason,
    port_reason,
    subnet_reason,
    wildcard_host_reason,
)
from mesh_pilot.istio.rules.overlaps import Cover, overlapping_hosts
from mesh_pilot.model.config import Problem
from mesh_pilot.model.net import is_ip

MESH = "mesh"
"""The reserved gateway name that means the sidecars."""

_CLUSTER_SNI = re.compile(r"outbound_\.[0-9]{1,5}_\.[^_]*_\.[-a-zA-Z0-9.]+")
"""Istio's names for clusters in the SNI of connections between networks."""


def validate(spec: api.VirtualService, context: Context) -> Iterator[Problem]:
    """Everything that is wrong with a VirtualService. One without hosts is a delegate."""
    delegate = not spec.hosts
    if delegate:
        yield from _check_delegate(spec)
    yield from check_gateway_names("spec.gateways", spec.gateways)
    # What is allowed depends on where it applies: a delegate has no hosts, claims are there at gateways only, and an
    # SNI lets a gateway have hosts that no sidecar could route.
    at_gateway = any(name != MESH for name in spec.gateways)
    by_sni = at_gateway and any(match.sni_hosts for route in spec.tls for match in route.match)
    yield from _check_hosts(spec, by_sni=by_sni)
    if not (spec.http or spec.tls or spec.tcp):
        yield error("spec", "at least one of http, tls and tcp is required")
    for index, http in enumerate(spec.http):
        path = f"spec.http[{index}]"
        yield from check_http_route(path, http, delegate=delegate)
        yield from _check_claims(path, http, at_gateway=at_gateway or delegate)
        for number, match in enumerate(http.match):
            yield from check_gateway_names(f"{path}.match[{number}].gateways", match.gateways)
    cover = Cover(spec.hosts)
    for index, tls in enumerate(spec.tls):
        yield from _check_tls_route(f"spec.tls[{index}]", tls, cover, by_sni=by_sni)
    for index, tcp in enumerate(spec.tcp):
        yield from _check_tcp_route(f"spec.tcp[{index}]", tcp)
    yield from check_export_to(spec.export_to, context)
    yield from check_unreachable(spec)


def _check_delegate(spec: api.VirtualService) -> Iterator[Problem]:
    for name, there in (("gateways", spec.gateways), ("tls", spec.tls), ("tcp", spec.tcp)):
        if there:
            yield error(f"spec.{name}", "a VirtualService without hosts is a delegate, which has http routes only")


def _check_claims(path: str, route: api.HttpRoute, *, at_gateway: bool) -> Iterator[Problem]:
    """Headers that refer to claims of a token: gateways match them, sidecars do not."""
    for index, match in enumerate(route.match):
        for field, names in (("headers", match.headers), ("withoutHeaders", match.without_headers)):
            for name in names:
                if not name.lower().startswith(CLAIMS):
                    continue
                here = f"{path}.match[{index}].{field}[{name}]"
                if not claim_path(name):
                    yield error(here, f"names no claim; write {CLAIMS}[name], or {CLAIMS}[outer][inner]")
                elif not at_gateway:
                    yield error(here, "claims of tokens can be matched at gateways only, and gateways names none")


def _host_reason(host: str, *, by_sni: bool) -> str:
    """``by_sni``: for a gateway that routes by SNI, which may be a name that Istio generates for a cluster."""
    return "" if by_sni and _CLUSTER_SNI.fullmatch(host) else wildcard_host_reason(host)


def _check_hosts(spec: api.VirtualService, *, by_sni: bool) -> Iterator[Problem]:
    in_mesh = not spec.gateways or MESH in spec.gateways
    good = True
    for index, host in enumerate(spec.hosts):
        path = f"spec.hosts[{index}]"
        reason = "" if is_ip(host) else _host_reason(host, by_sni=by_sni)
        if not reason and host == "*" and in_mesh:
            reason = '"*" can\'t be routed in the mesh; list gateways other than "mesh", or name hosts'
        good = good and not reason
        yield from check(path, reason)
    if not good:
        return
    for index, earlier in overlapping_hosts(spec.hosts):
        reason = f'"{spec.hosts[index]}" and "{spec.hosts[earlier]}" overlap; a host may be named once'
        yield error(f"spec.hosts[{index}]", reason)
    if spec.http:
        yield from _check_case(spec.hosts)


def _check_case(hosts: Sequence[str]) -> Iterator[Problem]:
    """Hosts that only case tells apart: Envoy refuses to route requests for both."""
    seen: dict[str, int] = {}
    for index, host in enumerate(hosts):
        earlier = hosts[seen.setdefault(host.lower(), index)]
        if earlier != host:
            yield error(f"spec.hosts[{index}]", f'"{host}" and "{earlier}" are one host: case tells no hosts apart')


def check_gateway_names(path: str, names: Sequence[str]) -> Iterator[Problem]:
    """Names of gateways: `mesh`, `name`, `namespace/name`, or the old `name.namespace...`."""
    for index, name in enumerate(names):
        here = f"{path}[{index}]"
        namespace, slash, short = name.partition("/")
        if not slash:
            reason = fqdn_reason(name)
            yield from check(here, reason)
            if not reason and "." in name:
                parts = name.split(".")
                yield warning(here, f'the form "{name}" is old; write {parts[1]}/{parts[0]}')
        elif not namespace or not short:
            yield error(here, f'"{name}" is not of the form namespace/name')
        else:
            yield from check(here, dns_label_reason(namespace))
            yield from check(here, dns_label_reason(short))


def _check_tls_route(path: str, route: api.TlsRoute, cover: Cover, *, by_sni: bool) -> Iterator[Problem]:
    if not route.match:
        yield error(f"{path}.match", "is missing: a tls route needs at least one match with sniHosts")
    for index, match in enumerate(route.match):
        here = f"{path}.match[{index}]"
        if not match.sni_hosts:
            yield error(f"{here}.sniHosts", "is missing: a tls match needs at least one SNI host")
        for number, sni in enumerate(match.sni_hosts):
            yield from _check_sni(f"{here}.sniHosts[{number}]", sni, cover, by_sni=by_sni)
        yield from _check_l4_match(here, match)
    yield from _check_l4_destinations(path, route.route)


def _check_sni(path: str, sni: str, cover: Cover, *, by_sni: bool) -> Iterator[Problem]:
    if is_ip(sni):
        yield warning(path, f"{sni} is an IP address, which clients don't send as SNI")
    elif reason := _host_reason(sni, by_sni=by_sni):
        yield error(path, reason)
    elif not cover.covers(sni):
        yield error(path, f'"{sni}" is not covered by the hosts of the VirtualService')


def _check_tcp_route(path: str, route: api.TcpRoute) -> Iterator[Problem]:
    for index, match in enumerate(route.match):
        here = f"{path}.match[{index}]"
        if match.source_subnet:
            yield from check(f"{here}.sourceSubnet", subnet_reason(match.source_subnet))
        yield from _check_l4_match(here, match)
    yield from _check_l4_destinations(path, route.route)


def _check_l4_match(path: str, match: api.L4MatchAttributes | api.TlsMatchAttributes) -> Iterator[Problem]:
    for index, subnet in enumerate(match.destination_subnets):
        yield from check(f"{path}.destinationSubnets[{index}]", subnet_reason(subnet))
    if match.port:
        yield from check(f"{path}.port", port_reason(match.port))
    yield from check_labels(f"{path}.sourceLabels", match.source_labels)
    yield from check_gateway_names(f"{path}.gateways", match.gateways)
    if match.source_namespace:
        yield from check(f"{path}.sourceNamespace", dns_label_reason(match.source_namespace))


def _check_l4_destinations(path: str, routes: Sequence[api.RouteDestination]) -> Iterator[Problem]:
    if not routes:
        yield error(f"{path}.route", "is missing: at least one destination is required")
    for index, route in enumerate(routes):
        yield from check_destination(f"{path}.route[{index}].destination", route.destination)
    yield from check_weights(f"{path}.route", [route.weight for route in routes])


def check_unreachable(spec: api.VirtualService) -> Iterator[Problem]:
    """Routes after a catch-all, and matches that an earlier route has."""
    yield from _check_routes("spec.http", spec.http)
    yield from _check_routes("spec.tls", spec.tls)
    yield from _check_routes("spec.tcp", spec.tcp)


def _check_routes(path: str, routes: Sequence[api.HttpRoute | api.TlsRoute | api.TcpRoute]) -> Iterator[Problem]:
    catch_all: int | None = None
    seen: dict[object, int] = {}
    for index, route in enumerate(routes):
        here = f"{path}[{index}]"
        if catch_all is not None:
            yield warning(here, f"is never used: {path.removeprefix('spec.')}[{catch_all}] matches everything")
            continue
        if not route.match:
            catch_all = index
            continue
        for number, match in enumerate(route.match):
            key = _key(match)
            if seen.setdefault(key, index) != index:
                where = f"{path.removeprefix('spec.')}[{seen[key]}]"
                yield warning(f"{here}.match[{number}]", f"is never used: {where} has the same match")


def _key(match: betterproto2.Message) -> object:
    """The conditions of a match, without its name, as a hashable value."""
    names = ("name", "stat_prefix", "_unknown_fields")
    return tuple(_frozen(value) for name, value in vars(match).items() if name not in names)


def _frozen(value: object) -> object:
    if isinstance(value, betterproto2.Message):
        return _key(value)
    if isinstance(value, dict):
        return frozenset((name, _frozen(item)) for name, item in value.items())
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
