"""The instances of a Consul service in the terms of the mesh: a Service, its Endpoints, and their problems.

Metadata keys that mean something here (see ``docs/consul.md``) may stand in the service's metadata or in tags
``key=value``; all others are labels of the endpoint.

Consul has instances, Envoy has services: what concerns the whole service is what most instances say, because one that
was registered wrongly must not change it for all. Whoever differs is named in a problem. Where as many say one thing as
another, the smaller value wins, so that the order of Consul's answer decides nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import attrs

from mesh_pilot.consul.client.settings import ConsulSettings, CriticalRule, WarningRule
from mesh_pilot.consul.source.instance import ConsulInstance, State, port_number, said_cluster, said_network
from mesh_pilot.consul.source.network_gateways import GATEWAY_PORT, network_gateways
from mesh_pilot.model.config import Problem, Severity
from mesh_pilot.model.events import Endpoints
from mesh_pilot.model.net import is_ip, plain_address
from mesh_pilot.model.service import (
    MESH_TLS_MODE,
    Endpoint,
    Health,
    Locality,
    Port,
    Protocol,
    Registration,
    Resolution,
    Service,
    ServiceKey,
)
from mesh_pilot.model.spiffe import SCHEME, workload_path

RESERVED = frozenset(
    (
        "protocol",
        "service_port",
        "port_name",
        "namespace",
        "region",
        "zone",
        "subzone",
        "network",
        "cluster_id",
        GATEWAY_PORT,
        "service_account",
        "tls_mode",
        "external",
        "workload",
    )
)
"""Keys that are not labels."""

_RESERVED_PREFIXES = ("protocol_", "port_", "service_port_")
_NAME = re.compile(r"[A-Za-z0-9_]([-A-Za-z0-9_.]*[A-Za-z0-9_])?")
MAX_HOST = 255
"""Characters of a host name."""
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@attrs.frozen
class MappedService:
    """A service of Consul in the terms of the mesh."""

    service: Service | None = None
    """None: nothing to serve; or, with problems, nothing that can be."""
    endpoints: Endpoints | None = None
    problems: tuple[Problem, ...] = ()
    merged: tuple[Endpoints, Service] | None = None
    """The same under the host of the mesh's own datacenter, where the two are to be one."""

    def items(self) -> tuple[Endpoints | Service, ...]:
        """Endpoints first: whoever learns of a service finds them there."""
        found = (self.endpoints, self.service, *(self.merged or ()))
        return tuple(item for item in found if item is not None)


@attrs.frozen
class _PortOf:
    """A port of the service: what it is called, and where each instance has it."""

    name: str
    number: int
    protocol: Protocol
    said_by: str
    """See ``Port.said_by``."""
    key: str
    """The name in metadata (``port_<key>``); empty for the port of the registration."""

    def at(self, instance: ConsulInstance, main: int) -> int:
        """The port at which an instance listens; 0: it lacks this port."""
        return port_number(instance.facts.get(f"port_{self.key}", "")) if self.key else main


def is_name(name: str) -> bool:
    """True if a service's name can be part of a host name."""
    return _NAME.fullmatch(name) is not None and ".." not in name


def no_name(name: str) -> Problem:
    """The problem of a name that can't be part of a host name."""
    return Problem("Service", f"{name!r} can't stand in a host name: letters, digits, - and _ can")


def read_service(
    name: str, instances: Iterable[ConsulInstance], settings: ConsulSettings, virtual: frozenset[str] = frozenset()
) -> MappedService:
    """The service that instances make up; the order in which they come does not matter.

    ``virtual``: its addresses in Consul's own mesh.
    """
    members = sorted((i for i in instances if i.is_served), key=lambda i: (i.node, i.id))
    if not members:
        return MappedService()
    problems: list[Problem] = []
    if not is_name(name):
        return MappedService(problems=(no_name(name),))
    ports = _ports(members, settings, problems)
    if not ports:
        reason = "no instance has a port: register it with one, or with metadata port_<name>"
        return MappedService(problems=(*problems, Problem("Port", reason)))
    namespace = _namespace(members, settings, problems)
    key = ServiceKey(_host(name, members, settings), namespace)
    if len(key.host) > MAX_HOST:
        reason = f"the host name {key.host[:40]!r}... has {len(key.host)} characters, allowed are {MAX_HOST}"
        return MappedService(problems=(*problems, Problem("Service", reason)))
    reachable = [i for i in members if not _has_odd_address(i, settings, problems)]
    endpoints = tuple(e for i in reachable for e in _endpoints(name, i, ports, namespace, settings, problems))
    is_external = all(_is_external(i) for i in members)
    if not is_external and any(_is_external(i) for i in members):
        problems.append(Problem("Meta.external", "only some instances are external; the service counts as in the mesh"))
    # Without a healthy instance it stays what it was: endpoints that are held in force are host names still.
    found = [e.address for e in endpoints] or [i.reached_at(settings.address_tag)[0] for i in reachable]
    service = Service(
        host=key.host,
        namespace=namespace,
        ports=tuple(Port(p.number, p.name, p.protocol, said_by=p.said_by) for p in ports),
        addresses=_virtual_addresses(members, problems) or tuple(sorted(filter(is_ip, virtual))),
        resolution=Resolution.CLIENT_SIDE if all(map(is_ip, found)) else Resolution.DNS,
        external=is_external,
        registry="Consul",
        declared_by_users=False,
        network_gateways=network_gateways(
            members, lambda i: _health(i, settings) is Health.HEALTHY, _is_host_name, problems
        ),
    )
    if settings.mesh and (native := sorted(i.id for i in members if i.is_native)):
        reason = f"instance {native[0]!r} takes TLS of Consul's own CA, which no proxy of this mesh has: see the docs"
        problems.append(Problem("Connect.Native", reason, Severity.WARNING))
    reading = MappedService(service, Endpoints(key, endpoints), tuple(problems))
    return attrs.evolve(reading, merged=_merged(name, service, endpoints, settings)) if settings.merged else reading


def left_out(
    host: str, known: Mapping[str, Sequence[ConsulInstance]], settings: ConsulSettings
) -> Iterable[tuple[ConsulInstance, str]]:
    """The instances of a host that get no traffic, each with the reason."""
    for name, instances in known.items():
        members = [each for each in instances if each.is_served]
        if not members or host not in (_host(name, members, settings), *_merged_host(name, settings)):
            continue
        for each in members:
            if each.state is State.PASSING and each.weight:
                continue
            if _health(each, settings) is not Health.HEALTHY:
                yield each, each.trouble if each.weight else f"weight 0; {each.trouble}".removesuffix("; ")


def _merged_host(name: str, settings: ConsulSettings) -> tuple[str, ...]:
    return (_local_host(name, settings),) if settings.merged else ()


def _merged(
    name: str, service: Service, endpoints: tuple[Endpoint, ...], settings: ConsulSettings
) -> tuple[Endpoints, Service]:
    here = attrs.evolve(service, host=_local_host(name, settings), addresses=(), network_gateways=())
    return Endpoints(here.key, endpoints), here


def _host(name: str, members: Sequence[ConsulInstance], settings: ConsulSettings) -> str:
    datacenter = settings.datacenter or members[0].datacenter
    if settings.remote and datacenter:
        return f"{name}.service.{datacenter}.{settings.domain}".lower()
    return _local_host(name, settings)


def _local_host(name: str, settings: ConsulSettings) -> str:
    return f"{name}.service.{settings.domain}".lower()


def _namespace(members: Sequence[ConsulInstance], settings: ConsulSettings, problems: list[Problem]) -> str:
    said = _said(members, "namespace", problems)
    if said and not _NAMESPACE.fullmatch(said):
        reason = f"{said!r} is no namespace; the service is served in {settings.namespace!r}"
        problems.append(Problem("Meta.namespace", reason))
        return settings.namespace
    return said or settings.namespace


# -- ports


def _ports(members: Sequence[ConsulInstance], settings: ConsulSettings, problems: list[Problem]) -> tuple[_PortOf, ...]:
    """The ports of a service: that of its registration first, then those of metadata by name.

    Where instances differ on the port that clients call, each of them is one: callers move at their own pace, too.
    """
    found: dict[str, _PortOf] = {}
    if listening := [(i, at) for i in members if (at := i.reached_at(settings.address_tag)[1])]:
        name = _said(members, "port_name", problems)
        protocol, said_by = _protocol(members, [f"protocol_{name}"] if name else [], settings, problems)
        name = name or (protocol.lower() if protocol is not Protocol.AUTO else "main")
        numbers = _client_ports(listening, "service_port", settings.service_port, problems)
        found |= {port.name: port for port in _named(name, numbers, protocol, said_by, "")}
    names = {k.removeprefix("port_") for i in members for k in i.facts if k.startswith("port_") and k != "port_name"}
    for name in sorted(names - found.keys()):
        protocol, said_by = _protocol(members, [f"protocol_{name}"], settings, problems, name)
        _report_bad_numbers(members, f"port_{name}", problems)
        if listening := [(i, at) for i in members if (at := port_number(i.facts.get(f"port_{name}", "")))]:
            numbers = _client_ports(listening, f"service_port_{name}", 0, problems)
            found |= {port.name: port for port in _named(name, numbers, protocol, said_by, name)}
    # Envoy has one listener for a number: the port of the registration, which comes first, keeps it.
    by_number: dict[int, _PortOf] = {}
    for port in found.values():
        taken = by_number.setdefault(port.number, port)
        if taken is not port:
            reason = f"is {port.number} as that of {taken.name!r}; it is left out: set service_port_{port.key}"
            problems.append(Problem(f"Meta.port_{port.key}", reason))
    return tuple(by_number.values())


def _named(name: str, numbers: Sequence[int], protocol: Protocol, said_by: str, key: str) -> Iterable[_PortOf]:
    for rank, number in enumerate(numbers):
        yield _PortOf(f"{name}-{number}" if rank else name, number, protocol, said_by, key)


def _client_ports(
    listening: Sequence[tuple[ConsulInstance, int]], key: str, default: int, problems: list[Problem]
) -> Sequence[int]:
    """The numbers by which clients call a port: those that instances say, in order.

    `listening`: the instances that have the port, and where; `default`: the number where one says none, 0 for the
    lowest of those at which these listen.
    """
    _report_bad_numbers([each for each, _ in listening], key, problems)
    said = {port_number(each.facts.get(key, "")) for each, _ in listening} - {0}
    unsaid = {at for each, at in listening if not port_number(each.facts.get(key, ""))}
    if unsaid and not default and len(unsaid) > 1:
        reason = f"instances listen on {len(unsaid)} ports, clients use the lowest, {min(unsaid)}: say {key}"
        problems.append(Problem(f"Meta.{key}", reason))
    numbers = sorted(said | ({default or min(unsaid)} if unsaid else set()))
    if said and len(numbers) > 1:
        listed = ", ".join(map(str, numbers))
        silent = f" ({default or min(unsaid)} for those that do not say)" if unsaid else ""
        problems.append(Problem(f"Meta.{key}", f"instances differ: {listed}{silent}; clients can use each of them"))
    return numbers


def _report_bad_numbers(members: Iterable[ConsulInstance], key: str, problems: list[Problem]) -> None:
    bad = sorted({i.facts[key] for i in members if key in i.facts and not port_number(i.facts[key])})
    if bad:
        problems.append(Problem(f"Meta.{key}", f"{', '.join(map(repr, bad))} is no port number; it is ignored"))


def _protocol(
    members: Sequence[ConsulInstance],
    keys: Sequence[str],
    settings: ConsulSettings,
    problems: list[Problem],
    port_name: str = "",
) -> tuple[Protocol, str]:
    """The protocol of a port: of one of these keys, else of a further port's name, else the service's; and by what."""
    for key in (*keys, *(() if port_name else ("protocol",))):
        said = _said(members, key, problems)
        protocol = Protocol.parse(said)
        if protocol is not Protocol.AUTO:
            return protocol, f"metadata or tag {key}"
        if said:
            used = settings.default_protocol.value
            problems.append(Problem(f"Meta.{key}", f"{said!r} is no protocol that is known; {used} is used"))
    named = Protocol.parse(port_name.partition("-")[0])
    return (settings.default_protocol, "the service's default") if named is Protocol.AUTO else (named, "its name")


def _said(members: Sequence[ConsulInstance], key: str, problems: list[Problem]) -> str:
    """The value of a key that concerns the whole service; if instances differ, that of most of them."""
    votes = Counter(i.facts[key] for i in members if key in i.facts)
    if not votes:
        return ""
    winner = min(votes, key=lambda value: (-votes[value], value))
    if len(votes) > 1:
        problems.append(Problem(f"Meta.{key}", f"instances say {', '.join(sorted(votes))}; {winner} is used"))
    return winner


# -- addresses


def _virtual_addresses(members: Sequence[ConsulInstance], problems: list[Problem]) -> tuple[str, ...]:
    found = {i.tagged["virtual"][0] for i in members if "virtual" in i.tagged}
    for address in sorted(a for a in found if not is_ip(a)):
        problems.append(Problem("TaggedAddresses.virtual", f"{address!r} is no IP address; it is ignored"))
    return tuple(sorted({plain_address(a) for a in found if is_ip(a)}))


def _has_odd_address(instance: ConsulInstance, settings: ConsulSettings, problems: list[Problem]) -> bool:
    """True if the address is neither an IP address nor a host name, which is then a problem. Empty ones are none."""
    address, _ = instance.reached_at(settings.address_tag)
    if not address or is_ip(address) or _is_host_name(address):
        return False
    reason = (
        f"instance {instance.id!r} is left out: its address {address[:MAX_HOST]!r} is no IP address and no host name"
    )
    problems.append(Problem("Address", reason))
    return True


def _is_host_name(text: str) -> bool:
    name = text.removesuffix(".")
    return len(text) <= MAX_HOST and is_name(name) and not name.rpartition(".")[2].isdecimal()


# -- endpoints


def _endpoints(
    name: str,
    instance: ConsulInstance,
    ports: Sequence[_PortOf],
    namespace: str,
    settings: ConsulSettings,
    problems: list[Problem],
) -> Iterable[Endpoint]:
    health = _health(instance, settings)
    address, main = instance.reached_at(settings.address_tag)
    if health is None or not address:
        return
    further = _other_address(instance, main, settings, problems)
    facts = instance.facts
    labels = {k: v for k, v in sorted(facts.items()) if k not in RESERVED and not k.startswith(_RESERVED_PREFIXES)}
    for port in ports:
        number = port.at(instance, main)
        if number:
            yield Endpoint(
                address=address,
                port=number,
                service_port=port.name,
                labels=labels,
                locality=_locality(instance),
                network=said_network(instance),
                cluster_id=said_cluster(instance),
                weight=instance.weight,
                service_account=_identity(facts.get("service_account", ""), namespace),
                tls_mode=MESH_TLS_MODE if facts.get("tls_mode") == MESH_TLS_MODE else "",
                namespace=namespace,
                workload=facts.get("workload", ""),
                health=health,
                registration=Registration(instance.node, name, instance.id),
                additional_addresses=further,
            )


def _other_address(
    instance: ConsulInstance, port: int, settings: ConsulSettings, problems: list[Problem]
) -> tuple[str, ...]:
    """The address of an instance of the other IP version, if it has one that listens at the same port."""
    tag, address, its_port = instance.other_address(settings.address_tag)
    reason = ""
    if not address:
        return ()
    if not is_ip(address) or (":" in address) is not tag.endswith("6"):
        reason = f"{address[:MAX_HOST]!r} of instance {instance.id!r} is not an IPv{tag[-1]} address; it is ignored"
    elif its_port != port:
        reason = f"instance {instance.id!r} listens at port {its_port} there and at {port} else; it is ignored"
    if reason:
        problems.append(Problem(f"TaggedAddresses.{tag}", reason))
    return () if reason else (plain_address(address),)


def _health(instance: ConsulInstance, settings: ConsulSettings) -> Health | None:
    """The health of an instance; None: it is left out, as one whose weight is 0, which Envoy would take for 1."""
    if not instance.weight:
        return None
    match instance.state:
        case State.PASSING:
            return Health.HEALTHY
        case State.WARNING:
            rules = {WarningRule.IN: Health.HEALTHY, WarningRule.UNHEALTHY: Health.UNHEALTHY}
            return rules.get(settings.warning)
        case State.CRITICAL | State.MAINTENANCE:
            return Health.UNHEALTHY if settings.critical is CriticalRule.UNHEALTHY else None


def _locality(instance: ConsulInstance) -> Locality:
    """Region, zone and subzone: of the service's metadata, else of its node's; the datacenter is the region."""

    def said(key: str) -> str:
        return instance.facts.get(key) or instance.node_meta.get(key, "")

    return Locality(said("region") or instance.datacenter, said("zone"), said("subzone"))


def _identity(account: str, namespace: str) -> str:
    """A SPIFFE id as it is; the name of an account as one of this namespace, without a trust domain."""
    return account if not account or account.startswith(SCHEME) else workload_path(namespace, account)


def _is_external(instance: ConsulInstance) -> bool:
    """True outside the mesh: by its own metadata, or registered on an external node."""
    return instance.facts.get("external", instance.node_meta.get("external-node", "")).lower() == "true"
