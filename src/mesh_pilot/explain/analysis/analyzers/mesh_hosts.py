"""Hosts that several objects claim: VirtualServices for sidecars, and ServiceEntries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import product

import attrs

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.base.reading import as_object
from mesh_pilot.explain.analysis import codes
from mesh_pilot.explain.analysis.findings import AnalysisMessage
from mesh_pilot.explain.analysis.mesh_context import AnalysisContext, found, full_name, listed
from mesh_pilot.model.config import Config, ConfigKey
from mesh_pilot.model.proxy import Interception, NodeType
from mesh_pilot.model.service import Protocol
from mesh_pilot.world.names import MESH_GATEWAY, PUBLIC, export_namespaces

_LISTED = 50
"""Objects that are named in a message at most."""


def virtual_services(survey: AnalysisContext) -> Iterator[AnalysisMessage]:
    """VirtualServices for sidecars that have the same host, as some namespace sees it."""
    default = survey.mesh.default_virtual_service_export_to
    by_host: dict[tuple[str, str], list[Config]] = defaultdict(list)
    for config in survey.of("VirtualService"):
        if MESH_GATEWAY in (config.spec.gateways or [MESH_GATEWAY]):
            for scope in export_namespaces(config.spec.export_to, default, config.namespace):
                for host in dict.fromkeys(survey.full_host(h, config.namespace) for h in config.spec.hosts):
                    by_host[scope, host].append(config)
    # A host that is exported to some namespaces competes with what is public there; public ones among themselves.
    public = [host for scope, host in by_host if scope == PUBLIC]
    endings = {host[1:]: host for host in public if host.startswith("*")}
    told: set[ConfigKey] = set()
    for (scope, host), configs in by_host.items():
        claiming = configs if scope == PUBLIC else [*configs, *_public(by_host, endings, host)]
        claiming = list({config.key: config for config in claiming}.values())
        if len(claiming) < 2:
            continue
        names = ",".join(sorted(full_name(config) for config in claiming[:_LISTED]))
        for config in claiming:
            if config.key not in told:
                told.add(config.key)
                yield found(codes.CONFLICTING_HOSTS, config, "spec.hosts", names, f"{scope}/{host}")


def _public(by_host: dict[tuple[str, str], list[Config]], endings: dict[str, str], host: str) -> Iterator[Config]:
    """The VirtualServices for all namespaces whose host is this one, or a wildcard that matches it."""
    yield from by_host.get((PUBLIC, host), ())
    for start in range(len(host) + 1):
        wildcard = endings.get(host[start:])
        if wildcard is not None and wildcard != host:
            yield from by_host[PUBLIC, wildcard]


def protocols(survey: AnalysisContext) -> Iterator[AnalysisMessage]:
    """ServiceEntries that disagree on the protocol of a port."""
    default = survey.mesh.default_service_export_to
    by_port: dict[tuple[str, str, int], list[tuple[str, Config]]] = defaultdict(list)
    for config in survey.of("ServiceEntry"):
        for scope in export_namespaces(config.spec.export_to, default, config.namespace):
            for host in dict.fromkeys(survey.full_host(h, config.namespace) for h in config.spec.hosts):
                for port in config.spec.ports:
                    by_port[scope, host, port.number].append((port.protocol.upper(), config))
    told: set[ConfigKey] = set()
    for (scope, host, number), claims in by_port.items():
        everyone = claims if scope == PUBLIC else [*claims, *by_port.get((PUBLIC, host, number), ())]
        different = sorted({protocol for protocol, _ in everyone})
        if len(different) < 2:
            continue
        names = ", ".join(sorted({full_name(config) for _, config in everyone[:_LISTED]}))
        for _, config in everyone:
            if config.key not in told:
                told.add(config.key)
                arguments = names, host, number, ", ".join(different)
                yield found(codes.CONFLICTING_PROTOCOLS, config, "spec.ports", *arguments)


def ports_left_out(survey: AnalysisContext) -> Iterator[AnalysisMessage]:
    """Ports of ServiceEntries that the service of their host does not get, because an older one is of another kind."""
    by_host: dict[tuple[str, str], list[Config]] = defaultdict(list)
    for config in survey.of("ServiceEntry"):
        for host in dict.fromkeys(survey.full_host(h, config.namespace) for h in config.spec.hosts):
            by_host[config.namespace, host].append(config)
    for (_, host), configs in by_host.items():
        first, *others = sorted(configs, key=lambda config: (config.created, config.key))
        alike = [config for config in configs if _kind(config) == _kind(first)]
        numbers = {port.number for config in alike for port in config.spec.ports}
        for config in others:
            left_out = [port.number for port in config.spec.ports if port.number not in numbers]
            if left_out:
                arguments = listed(left_out), full_name(first), host, *(each.name for each in _kind(first))
                yield found(codes.PORTS_LEFT_OUT, config, "spec.ports", *arguments)


def _kind(entry: Config) -> tuple[api.ServiceEntryResolution, api.ServiceEntryLocation]:
    return entry.spec.resolution, entry.spec.location


def addresses(survey: AnalysisContext) -> Iterator[AnalysisMessage]:
    """TCP ports of ServiceEntries without an address."""
    for config in _without_addresses(survey):
        for index, port in enumerate(config.spec.ports):
            if not port.protocol or port.protocol.upper() == "TCP":
                yield found(codes.ADDRESSES_REQUIRED, config, f"spec.ports[{index}]")


def _without_addresses(survey: AnalysisContext) -> Iterator[Config]:
    """ServiceEntries that have no address, and get none."""
    settings = survey.mesh.default_config
    metadata = dict(settings.proxy_metadata) if settings is not None else {}
    captures = metadata.get("ISTIO_META_DNS_CAPTURE") == "true"
    allocates = ("ISTIO_META_DNS_AUTO_ALLOCATE", "PILOT_ENABLE_IP_AUTOALLOCATE")
    if captures and any(metadata.get(name) == "true" for name in allocates):
        return
    seen = survey.of_kubernetes("ServiceEntry", "networking.istio.io")
    allocated = {config.key for config in seen if as_object(config.spec, "status").get("addresses")}
    yield from (c for c in survey.of("ServiceEntry") if not c.spec.addresses and c.key not in allocated)


@attrs.frozen
class _TcpPort:
    """A TCP port of a host, as its ServiceEntry declares it."""

    host: str
    config: Config
    index: int

    def is_lost_to(self, other: _TcpPort) -> bool:
        """True if connections for one of them that reach the other get elsewhere."""
        spec = self.config.spec
        if self.config is other.config:  # The hosts of an object share its endpoints, but not their own names.
            return self.host != other.host and spec.resolution in _BY_NAME and not spec.endpoints
        # Without resolution each connection goes where the client meant it to go, whatever the service's name.
        none = api.ServiceEntryResolution.NONE
        return self.host != other.host and not (spec.resolution is none and other.config.spec.resolution is none)


_BY_NAME = (api.ServiceEntryResolution.DNS, api.ServiceEntryResolution.DNS_ROUND_ROBIN)


_Place = tuple[str, str, int]
"""The scope of a port (``*`` or a namespace), its address or nothing, and its number."""


def shared_ports(survey: AnalysisContext) -> Iterator[AnalysisMessage]:
    """TCP ports that several hosts have without an address, or at the same one, as some namespace sees them."""
    claims = _tcp_ports(survey)
    told: set[tuple[ConfigKey, int]] = set()
    for (scope, address, number), claiming in claims.items():
        public = claims.get((PUBLIC, address, number), ()) if scope != PUBLIC else ()
        rivals = [*claiming[:_LISTED], *public[:_LISTED]]
        for port in claiming:
            rival = next((other for other in rivals if port.is_lost_to(other)), None)
            if rival is not None and (port.config.key, port.index) not in told:
                told.add((port.config.key, port.index))
                where = f"at {address}, too" if address else "both without addresses"
                path = f"spec.ports[{port.index}]"
                yield found(codes.SHARED_TCP_PORT, port.config, path, number, rival.host, where)


def _tcp_ports(survey: AnalysisContext) -> dict[_Place, list[_TcpPort]]:
    default = survey.mesh.default_service_export_to
    without = {config.key for config in _without_addresses(survey)}
    claims: dict[_Place, list[_TcpPort]] = defaultdict(list)
    for config in survey.of("ServiceEntry"):
        addresses = [""] if config.key in without else map(_single, config.spec.addresses)
        scopes = export_namespaces(config.spec.export_to, default, config.namespace)
        for (index, port), address, scope in product(enumerate(config.spec.ports), addresses, scopes):
            protocol = Protocol.parse(port.protocol)
            if protocol.is_tcp and not protocol.is_tls and "/" not in address:
                claims[scope, address, port.number] += [_TcpPort(h.lower(), config, index) for h in config.spec.hosts]
    return claims


def _single(address: str) -> str:
    return address.removesuffix("/32").removesuffix("/128").lower()


def leading_nowhere(survey: AnalysisContext) -> Iterator[AnalysisMessage]:
    """ServiceEntries of resolution NONE at connected sidecars that know no original destination."""
    plain = {
        proxy.namespace
        for proxy in survey.picture.proxies or ()
        if proxy.type is NodeType.SIDECAR and proxy.interception is Interception.NONE
    }
    default = survey.mesh.default_service_export_to
    for config in survey.of("ServiceEntry") if plain else ():
        visible = export_namespaces(config.spec.export_to, default, config.namespace)
        if config.spec.resolution is api.ServiceEntryResolution.NONE and (PUBLIC in visible or plain & visible):
            reason = "NONE leads nowhere at sidecars that redirect no connections, and such are connected"
            fix = "Use DNS, or DYNAMIC_DNS for a wildcard host."
            yield found(codes.FIELD_WITHOUT_EFFECT, config, "spec.resolution", reason, fix=fix)


def entry_ports(survey: AnalysisContext) -> Iterator[AnalysisMessage]:
    """Ports of WorkloadEntries under names that no service has which selects them: the services' own ports count."""
    registered = (service for service in survey.picture.services.values() if service and service.config is None)
    if survey.of_kubernetes("Service") or any(service.selector for service in registered):
        return  # These select entries, too, and only their registry reads the names of their workloads' ports.
    selecting: dict[str, list[Config]] = defaultdict(list)
    for service in survey.of("ServiceEntry"):
        if service.spec.workload_selector is not None:
            selecting[service.namespace].append(service)
    for config in survey.of("WorkloadEntry"):
        labels = {**config.labels, **config.spec.labels}.items()
        services = [s for s in selecting[config.namespace] if s.spec.workload_selector.labels.items() <= labels]
        names = dict.fromkeys(port.name for service in services for port in service.spec.ports)
        for name in config.spec.ports:
            if names and name not in names:
                reason = f"has no effect: the ports of services that select it are named {', '.join(names)}"
                yield found(codes.FIELD_WITHOUT_EFFECT, config, f"spec.ports[{name}]", reason)


def weights(survey: AnalysisContext) -> Iterator[AnalysisMessage]:
    """Weights that do not sum to 100."""
    for config in survey.of("VirtualService"):
        spec = config.spec
        for kind, rules in (("http", spec.http), ("tls", spec.tls), ("tcp", spec.tcp)):
            for index, rule in enumerate(rules):
                total = sum(route.weight for route in rule.route)
                if len(rule.route) > 1 and total not in (0, 100):
                    path = f"spec.{kind}[{index}].route[{len(rule.route) - 1}].weight"
                    yield found(codes.WEIGHTS, config, path, total, total)
