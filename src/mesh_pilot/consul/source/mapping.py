"""The instances of a Consul service in the terms of the mesh: a Service, its Endpoints, and their problems.

Metadata keys that mean something here (see ``docs/consul.md``) may stand in the service's metadata or in tags
``key=value``; all others are labels of the endpoint.

Consul has instances, Envoy has services: what concerns the whole service is what most instances say, because one that
was registered wrongly must not change it for all. Whoever differs is named in a problem. Where as many say one thing as
another, the smaller value wins, so that the order of Consul's answer decides nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import attrs

from mesh_pilot.consul.client.settings import ConsulSettings, CriticalRule, WarningRule
from mesh_pilot.consul.source.instance import ConsulInstance, InstanceCondition, State, said_cluster, said_network
from mesh_pilot.consul.source.names import (
    MAX_HOST,
    alias,
    host_of,
    is_name,
    local_host,
    no_name,
    tenant_names,
    virtual_names,
)
from mesh_pilot.consul.source.network_gateways import GATEWAY_PORT, network_gateways
from mesh_pilot.consul.source.ports import (
    ServicePort,
    report_odd_ports,
    report_stray_checks,
    said_by_most,
    service_ports,
    with_ports,
)
from mesh_pilot.model.config import Problem, Severity
from mesh_pilot.model.connect import ConnectId
from mesh_pilot.model.events import Endpoints
from mesh_pilot.model.net import is_ip, plain_address
from mesh_pilot.model.service import (
    CONNECT_TLS_MODE,
    MESH_TLS_MODE,
    Endpoint,
    Health,
    Locality,
    Port,
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
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@attrs.frozen
class MappedService:
    """A service of Consul in the terms of the mesh."""

    service: Service | None = None
    """None: nothing to serve; or, with problems, nothing that can be."""
    endpoints: Endpoints | None = None
    problems: tuple[Problem, ...] = ()
    merged: tuple[Endpoints | Service, ...] = ()
    """The same under hosts of the mesh's own datacenter: where the two are to be one, or a peer takes over."""
    aliases: tuple[Service, ...] = ()
    """Further names that Consul's DNS has for it."""

    def items(self) -> tuple[Endpoints | Service, ...]:
        """Endpoints first: whoever learns of a service finds them there."""
        found = (self.endpoints, self.service, *self.merged, *self.aliases)
        return tuple(item for item in found if item is not None)


@attrs.frozen
class ConnectFacts:
    """The proxies that Consul's own mesh has for a service."""

    trust_domain: str
    """Empty while it is not known: then none of its proxies can be called."""
    sidecars: Mapping[tuple[str, str], ConsulInstance] = attrs.field(factory=dict)
    """The proxies of that mesh, by the node and id of its instance."""


def read_service(
    name: str,
    instances: Iterable[ConsulInstance],
    settings: ConsulSettings,
    virtual: frozenset[str] = frozenset(),
    connect: ConnectFacts | None = None,
    takes_over: Iterable[tuple[str, int]] = (),
) -> MappedService:
    """The service that instances make up; the order in which they come does not matter.

    ``virtual``: its addresses in Consul's own mesh; ``connect``: its proxies there, if those are called.
    ``takes_over``: the services of the mesh's own datacenter for which it takes over, each with its rank there.
    """
    members = sorted((i for i in instances if i.is_served), key=lambda i: (i.node, i.id))
    if not members:
        return MappedService()
    problems: list[Problem] = []
    if not is_name(name):
        return MappedService(problems=(no_name(name),))
    report_odd_ports(members, problems)
    ports = service_ports(members, settings, problems)
    if not ports:
        reason = "no instance has a port: register it with one, or with metadata port_<name>"
        return MappedService(problems=(*problems, Problem("Port", reason)))
    namespace = _namespace(members, settings, problems)
    key = ServiceKey(host_of(name, members, settings), namespace)
    if len(key.host) > MAX_HOST:
        reason = f"the host name {key.host[:40]!r}... has {len(key.host)} characters, allowed are {MAX_HOST}"
        return MappedService(problems=(*problems, Problem("Service", reason)))
    report_stray_checks(members, ports, problems)
    members = with_ports(members, ports)
    reachable = [i for i in members if not _has_odd_address(i, settings, problems)]
    if connect is not None and not (connect.sidecars or any(i.is_native for i in members)):
        connect = None
    endpoints = tuple(e for i in reachable for e in _endpoints(name, i, ports, namespace, settings, problems))
    if connect is not None:
        endpoints = tuple(_by_sidecars(endpoints, reachable, ports, connect, settings, problems))
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
            members, lambda i: _health(i.condition, settings) is Health.HEALTHY, _is_host_name, problems
        ),
        connect_id=str(ConnectId(connect.trust_domain, members[0].datacenter, name))
        if connect is not None and connect.trust_domain
        else "",
    )
    if settings.mesh and connect is None and (native := sorted(i.id for i in members if i.is_native)):
        reason = f"instance {native[0]!r} takes TLS of Consul's own CA, which no proxy of this mesh has: see the docs"
        problems.append(Problem("Connect.Native", reason, Severity.WARNING))
    names = (*tenant_names(name, members, settings), *virtual_names(name, members, virtual, settings))
    aliases = tuple(alias(each, service) for each in names if len(each) <= MAX_HOST)
    reading = MappedService(service, Endpoints(key, endpoints), tuple(problems), aliases=aliases)
    others = [*takes_over, *([(name, 0)] if settings.merged else [])]
    merged = [item for other, rank in others for item in _merged(other, rank, service, endpoints, settings)]
    return attrs.evolve(reading, merged=tuple(merged))


@attrs.frozen
class UnusedInstance:
    """An instance that gets no traffic, at all its ports or at one."""

    instance: ConsulInstance
    port: int
    state: State
    reason: str


def left_out(
    host: str, known: Mapping[str, Sequence[ConsulInstance]], settings: ConsulSettings
) -> Iterable[UnusedInstance]:
    """The instances of a host that get no traffic."""
    for name, instances in known.items():
        members = [each for each in instances if each.is_served]
        if not members or host not in (host_of(name, members, settings), *_merged_host(name, settings)):
            continue
        ports = service_ports(members, settings, [])
        for each in with_ports(members, ports):
            if reason := _unused_reason(each.condition, settings):
                yield UnusedInstance(each, each.reached_at(settings.address_tag)[1], each.condition.state, reason)
                continue
            for port in ports:
                condition = each.condition_of(port.key)
                if (number := port.at(each, settings)) and (reason := _unused_reason(condition, settings)):
                    yield UnusedInstance(each, number, condition.state, reason)


def _unused_reason(condition: InstanceCondition, settings: ConsulSettings) -> str:
    """Why an instance, or a port of it, gets no traffic; empty if it does."""
    if condition.weight and (condition.state is State.PASSING or _health(condition, settings) is Health.HEALTHY):
        return ""
    return condition.trouble if condition.weight else f"weight 0; {condition.trouble}".removesuffix("; ")


def _merged_host(name: str, settings: ConsulSettings) -> tuple[str, ...]:
    return (local_host(name, settings),) if settings.merged else ()


def _merged(
    name: str, rank: int, service: Service, endpoints: tuple[Endpoint, ...], settings: ConsulSettings
) -> tuple[Endpoints, Service]:
    if rank:
        endpoints = tuple(attrs.evolve(each, failover_rank=rank) for each in endpoints)
    here = attrs.evolve(service, host=local_host(name, settings), addresses=(), network_gateways=())
    return Endpoints(here.key, endpoints), here


def _namespace(members: Sequence[ConsulInstance], settings: ConsulSettings, problems: list[Problem]) -> str:
    found = said_by_most(members, "namespace", problems)
    if found and not _NAMESPACE.fullmatch(found):
        reason = f"{found!r} is not a namespace; the service is served in {settings.namespace!r}"
        problems.append(Problem("Meta.namespace", reason))
        return settings.namespace
    # A namespace of Consul is one of the mesh: a service of the same name in another is another service.
    return found or next((i.namespace for i in members if _NAMESPACE.fullmatch(i.namespace)), settings.namespace)


# -- addresses


def _virtual_addresses(members: Sequence[ConsulInstance], problems: list[Problem]) -> tuple[str, ...]:
    found = {i.tagged["virtual"][0] for i in members if "virtual" in i.tagged}
    for address in sorted(a for a in found if not is_ip(a)):
        problems.append(Problem("TaggedAddresses.virtual", f"{address!r} is not an IP address; it is ignored"))
    return tuple(sorted({plain_address(a) for a in found if is_ip(a)}))


def _has_odd_address(instance: ConsulInstance, settings: ConsulSettings, problems: list[Problem]) -> bool:
    """True if the address is neither an IP address nor a host name, which is then a problem. False if it is empty."""
    address, _ = instance.reached_at(settings.address_tag)
    if not address or is_ip(address) or _is_host_name(address):
        return False
    wrong = f"the address {address[:MAX_HOST]!r} is neither an IP address nor a host name"
    reason = f"instance {instance.id!r} is left out: {wrong}"
    problems.append(Problem("Address", reason))
    return True


def _is_host_name(text: str) -> bool:
    name = text.removesuffix(".")
    return len(text) <= MAX_HOST and is_name(name) and not name.rpartition(".")[2].isdecimal()


# -- endpoints


def _endpoints(
    name: str,
    instance: ConsulInstance,
    ports: Sequence[ServicePort],
    namespace: str,
    settings: ConsulSettings,
    problems: list[Problem],
) -> Iterable[Endpoint]:
    address, main = instance.reached_at(settings.address_tag)
    if not address or _health(instance.condition, settings) is None:
        return
    further = _other_address(instance, main, settings, problems)
    facts = instance.facts
    labels = {k: v for k, v in sorted(facts.items()) if k not in RESERVED and not k.startswith(_RESERVED_PREFIXES)}
    for port in ports:
        number = port.at(instance, settings)
        condition = instance.condition_of(port.key)
        health = _health(condition, settings)
        if number and health is not None:
            yield Endpoint(
                address=address,
                port=number,
                service_port=port.name,
                labels=labels,
                locality=_locality(instance),
                network=said_network(instance),
                cluster_id=said_cluster(instance),
                weight=condition.weight,
                service_account=_identity(facts.get("service_account", ""), namespace),
                tls_mode=MESH_TLS_MODE if facts.get("tls_mode") == MESH_TLS_MODE else "",
                namespace=namespace,
                workload=facts.get("workload", ""),
                health=health,
                registration=Registration(instance.node, name, instance.id),
                additional_addresses=further,
            )


def _by_sidecars(
    endpoints: Iterable[Endpoint],
    instances: Iterable[ConsulInstance],
    ports: Sequence[ServicePort],
    connect: ConnectFacts,
    settings: ConsulSettings,
    problems: list[Problem],
) -> Iterable[Endpoint]:
    """The endpoints of a service of Consul's mesh: without ``tls_mode: istio``, an instance is called at its sidecar.

    One without a sidecar is not called, as in that mesh: it may only not have registered it yet, and must not be sent
    plaintext until then. The application's own port stays known to the proxy of ours that it may have.
    """
    of = {(i.node, i.id): i for i in instances}
    # It has many branches because each decides about the same endpoint, and the first that holds wins.
    main = {port.name for port in ports if port.is_main}
    for endpoint in endpoints:
        at = endpoint.registration
        instance = of.get((at.node, at.id)) if at is not None else None
        if instance is None or endpoint.tls_mode == MESH_TLS_MODE:
            yield endpoint
            continue
        sidecar = connect.sidecars.get((instance.node, instance.id)) if connect.trust_domain else None
        if connect.trust_domain and instance.is_native and endpoint.service_port in main:
            yield attrs.evolve(endpoint, tls_mode=CONNECT_TLS_MODE)
            continue
        yield attrs.evolve(endpoint, health=Health.UNLISTED)
        if sidecar is None:
            continue
        if endpoint.service_port not in main:
            reason = f"the sidecar of instance {instance.id!r} leads to one port: this one can't be called there"
            problems.append(Problem(f"Meta.port_{endpoint.service_port}", reason, Severity.WARNING))
            continue
        address, number = sidecar.reached_at(settings.address_tag)
        health = _health(sidecar.condition, settings)
        if not address or not number or health is None or _has_odd_address(sidecar, settings, problems):
            continue
        yield attrs.evolve(
            endpoint,
            address=address,
            port=number,
            additional_addresses=(),
            tls_mode=CONNECT_TLS_MODE,
            health=endpoint.health if health is Health.HEALTHY else health,
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


def _health(condition: InstanceCondition, settings: ConsulSettings) -> Health | None:
    """The health in a condition; None: it is left out, as one whose weight is 0, which Envoy would take for 1."""
    if not condition.weight:
        return None
    match condition.state:
        case State.PASSING:
            return Health.HEALTHY
        case State.WARNING:
            rules = {WarningRule.IN: Health.HEALTHY, WarningRule.UNHEALTHY: Health.UNHEALTHY}
            return rules.get(settings.warning)
        case State.CRITICAL | State.MAINTENANCE:
            return Health.UNHEALTHY if settings.critical is CriticalRule.UNHEALTHY else None


def _locality(instance: ConsulInstance) -> Locality:
    """Region, zone and subzone: of the service's metadata, else as registered, else of its node's metadata; the
    datacenter is the region where none is said."""

    def found(key: str, registered: str = "") -> str:
        return instance.facts.get(key) or registered or instance.node_meta.get(key, "")

    region = found("region", instance.region) or instance.datacenter
    return Locality(region, found("zone", instance.zone), found("subzone"))


def _identity(account: str, namespace: str) -> str:
    """A SPIFFE id as it is; the name of an account as one of this namespace, without a trust domain."""
    return account if not account or account.startswith(SCHEME) else workload_path(namespace, account)


def _is_external(instance: ConsulInstance) -> bool:
    """True outside the mesh: by its own metadata, or registered on an external node."""
    return instance.facts.get("external", instance.node_meta.get("external-node", "")).lower() == "true"
