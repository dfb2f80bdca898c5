"""Rules for VirtualService: what routes may say is in `http_route`, `tls` and `tcp` routes are here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mesh_pilot.api.istio.networking.v1alpha3 import (
    L4MatchAttributes,
    RouteDestination,
    TcpRoute,
    TlsMatchAttributes,
    TlsRoute,
    VirtualService,
)
from mesh_pilot.config.validation.common import check_export_to
from mesh_pilot.config.validation.context import Context, check, error, warning
from mesh_pilot.config.validation.destinations import check_destination, check_weights
from mesh_pilot.config.validation.http_route import check_http_route
from mesh_pilot.config.validation.names import (
    check_labels,
    dns_label_reason,
    fqdn_reason,
    is_ip,
    port_reason,
    subnet_reason,
    wildcard_host_reason,
)
from mesh_pilot.config.validation.overlaps import Cover, overlapping_hosts
from mesh_pilot.config.validation.unreachable import check_unreachable
from mesh_pilot.model.config import Problem


def validate(spec: VirtualService, context: Context) -> Iterator[Problem]:
    """Everything that is wrong with a VirtualService. One without hosts is a delegate."""
    delegate = not spec.hosts
    if delegate:
        yield from _check_delegate(spec)
    yield from check_gateway_names("spec.gateways", spec.gateways)
    yield from _check_hosts(spec)
    if not (spec.http or spec.tls or spec.tcp):
        yield error("spec", "at least one of http, tls and tcp is required")
    for index, http in enumerate(spec.http):
        path = f"spec.http[{index}]"
        yield from check_http_route(path, http, delegate=delegate)
        for number, match in enumerate(http.match):
            yield from check_gateway_names(f"{path}.match[{number}].gateways", match.gateways)
    cover = Cover(spec.hosts)
    for index, tls in enumerate(spec.tls):
        yield from _check_tls_route(f"spec.tls[{index}]", tls, cover)
    for index, tcp in enumerate(spec.tcp):
        yield from _check_tcp_route(f"spec.tcp[{index}]", tcp)
    yield from check_export_to(spec.export_to, context)
    yield from check_unreachable(spec)


def _check_delegate(spec: VirtualService) -> Iterator[Problem]:
    for name, there in (("gateways", spec.gateways), ("tls", spec.tls), ("tcp", spec.tcp)):
        if there:
            yield error(f"spec.{name}", "a VirtualService without hosts is a delegate, which has http routes only")


def _check_hosts(spec: VirtualService) -> Iterator[Problem]:
    in_mesh = not spec.gateways or "mesh" in spec.gateways
    good = True
    for index, host in enumerate(spec.hosts):
        path = f"spec.hosts[{index}]"
        reason = "" if is_ip(host) else wildcard_host_reason(host)
        if not reason and host == "*" and in_mesh:
            reason = '"*" can\'t be routed in the mesh; list gateways other than "mesh", or name hosts'
        good = good and not reason
        yield from check(path, reason)
    if not good:
        return
    for index, earlier in overlapping_hosts(spec.hosts):
        reason = f'"{spec.hosts[index]}" and "{spec.hosts[earlier]}" overlap; a host may be named once'
        yield error(f"spec.hosts[{index}]", reason)


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


def _check_tls_route(path: str, route: TlsRoute, cover: Cover) -> Iterator[Problem]:
    if not route.match:
        yield error(f"{path}.match", "is missing: a tls route needs at least one match with sniHosts")
    for index, match in enumerate(route.match):
        here = f"{path}.match[{index}]"
        if not match.sni_hosts:
            yield error(f"{here}.sniHosts", "is missing: a tls match needs at least one SNI host")
        for number, sni in enumerate(match.sni_hosts):
            yield from _check_sni(f"{here}.sniHosts[{number}]", sni, cover)
        yield from _check_l4_match(here, match)
    yield from _check_l4_destinations(path, route.route)


def _check_sni(path: str, sni: str, cover: Cover) -> Iterator[Problem]:
    if is_ip(sni):
        yield warning(path, f"{sni} is an IP address, which clients don't send as SNI")
    elif reason := wildcard_host_reason(sni):
        yield error(path, reason)
        return
    if not cover.covers(sni):
        yield error(path, f'"{sni}" is not covered by the hosts of the VirtualService')


def _check_tcp_route(path: str, route: TcpRoute) -> Iterator[Problem]:
    for index, match in enumerate(route.match):
        here = f"{path}.match[{index}]"
        if match.source_subnet:
            yield from check(f"{here}.sourceSubnet", subnet_reason(match.source_subnet))
        yield from _check_l4_match(here, match)
    yield from _check_l4_destinations(path, route.route)


def _check_l4_match(path: str, match: L4MatchAttributes | TlsMatchAttributes) -> Iterator[Problem]:
    for index, subnet in enumerate(match.destination_subnets):
        yield from check(f"{path}.destinationSubnets[{index}]", subnet_reason(subnet))
    if match.port:
        yield from check(f"{path}.port", port_reason(match.port))
    yield from check_labels(f"{path}.sourceLabels", match.source_labels)
    yield from check_gateway_names(f"{path}.gateways", match.gateways)
    if match.source_namespace:
        yield from check(f"{path}.sourceNamespace", dns_label_reason(match.source_namespace))


def _check_l4_destinations(path: str, routes: Sequence[RouteDestination]) -> Iterator[Problem]:
    if not routes:
        yield error(f"{path}.route", "is missing: at least one destination is required")
    for index, route in enumerate(routes):
        yield from check_destination(f"{path}.route[{index}].destination", route.destination)
    yield from check_weights(f"{path}.route", [route.weight for route in routes])
