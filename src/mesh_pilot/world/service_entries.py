"""Services and endpoints of ServiceEntries and WorkloadEntries.

The rules are Istio's (ServiceEntry and WorkloadEntry reference; checked against what a real Pilot generates).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from functools import lru_cache

import attrs

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.model.config import Config, ConfigKey
from mesh_pilot.model.net import UNIX_PREFIX, plain_address
from mesh_pilot.model.service import (
    CLUSTER_LABEL,
    LOCALITY_LABEL,
    MESH_TLS_MODE,
    NETWORK_LABEL,
    NOWHERE,
    PLACE_LABELS,
    TLS_MODE_LABEL,
    Endpoint,
    Locality,
    Port,
    Protocol,
    Resolution,
    Service,
    ServiceKey,
)
from mesh_pilot.model.spiffe import Identity

GROUP_ANNOTATION = "istio.io/autoRegistrationGroup"
"""On a WorkloadEntry: the name of its WorkloadGroup, in the same namespace."""

HEALTH_ANNOTATION = "proxy.istio.io/health-checks-enabled"
"""On a WorkloadEntry: its health is checked. Its condition ``Healthy`` has the result."""

AUTO_REGISTRATION = "auto-registration"
"""The name of the source of WorkloadEntries that are made of WorkloadGroups as their proxies connect."""

_TRUE = frozenset(("1", "t", "T", "true", "True", "TRUE"))
"""Texts that Go's strconv.ParseBool reads as true."""

_RESOLUTION = {
    api.ServiceEntryResolution.NONE: Resolution.PASSTHROUGH,
    api.ServiceEntryResolution.STATIC: Resolution.CLIENT_SIDE,
    api.ServiceEntryResolution.DNS: Resolution.DNS,
    api.ServiceEntryResolution.DNS_ROUND_ROBIN: Resolution.DNS_ROUND_ROBIN,
    api.ServiceEntryResolution.DYNAMIC_DNS: Resolution.DYNAMIC_DNS,
}


def services_of(config: Config) -> tuple[Service, ...]:
    """The services that a ServiceEntry declares, one for each host."""
    spec: api.ServiceEntry = config.spec
    ports = tuple(
        Port(p.number, p.name, Protocol.parse(p.protocol), p.target_port, said_by="protocol") for p in spec.ports
    )
    addresses = tuple(dict.fromkeys(plain_address(a) for a in spec.addresses))
    selector = dict(spec.workload_selector.labels) if spec.workload_selector else {}
    return tuple(
        Service(
            host=host,
            namespace=config.namespace,
            ports=ports,
            addresses=addresses,
            resolution=_RESOLUTION[spec.resolution],
            external=spec.location == api.ServiceEntryLocation.MESH_EXTERNAL,
            export_to=frozenset(config.namespace if e == "." else e for e in spec.export_to),
            labels=config.labels,
            selector=selector,
            subject_alt_names=tuple(spec.subject_alt_names),
            created=config.created,
            config=config.key,
        )
        for host in dict.fromkeys(spec.hosts)
    )


def endpoints_of(
    config: Config, workloads: Iterable[Config], trust_domain: str, cluster_id: str = ""
) -> dict[ServiceKey, tuple[Endpoint, ...]]:
    """The endpoints of the services of a ServiceEntry, for all of their ports.

    ``workloads`` are the WorkloadEntries that its selector matches, oldest first. Unhealthy ones are omitted.
    ``cluster_id``: the cluster of those that do not say theirs.
    """
    spec: api.ServiceEntry = config.spec
    services = [ServiceKey(host, config.namespace) for host in dict.fromkeys(spec.hosts)]
    dns = spec.resolution in (api.ServiceEntryResolution.DNS, api.ServiceEntryResolution.DNS_ROUND_ROBIN)
    if dns and not spec.endpoints and spec.workload_selector is None:
        ports = [(p.target_port or p.number, p.name) for p in spec.ports]
        return {
            key: tuple([Endpoint(key.host, number, name, cluster_id=cluster_id) for number, name in ports])
            for key in services
        }
    found: list[Endpoint] = []
    workloads = [workload for workload in workloads if is_healthy(workload)]
    for port in spec.ports:
        found += [_endpoint(e, port, config.namespace, "", trust_domain, cluster_id) for e in spec.endpoints]
        found += [
            _endpoint(w.spec, port, config.namespace, workload_name(w), trust_domain, cluster_id) for w in workloads
        ]
    return dict.fromkeys(services, tuple(found))


def selected_endpoints(service: Service, workloads: Iterable[Config], trust_domain: str) -> tuple[Endpoint, ...]:
    """The endpoints at these WorkloadEntries of a registry's service that selects them by labels.

    A workload has a port under the name of the target port if that is a name, else under that of the service's port;
    without it, the port is the target's number. Unhealthy workloads are omitted.
    """
    found: list[Endpoint] = []
    workloads = [workload for workload in workloads if is_healthy(workload)]
    for port in service.ports:
        for workload in workloads:
            ports = workload.spec.ports
            number = ports.get(port.target_name or port.name, 0)
            if number or not port.target_name:
                target = api.ServicePort(name=port.name, number=port.number, target_port=number or port.target_port)
                spec = dataclasses.replace(workload.spec, ports={}) if ports else workload.spec
                found.append(
                    _endpoint(
                        spec, target, service.namespace, workload_name(workload), trust_domain, service.cluster_id
                    )
                )
    return tuple(found)


def selects(config: Config, labels: Mapping[str, str]) -> bool:
    """True if a ServiceEntry's workloadSelector matches these labels."""
    selector = config.spec.workload_selector
    return selector is not None and bool(selector.labels) and selector.labels.items() <= labels.items()


def is_healthy(workload: Config) -> bool:
    """False if a WorkloadEntry must get no requests. One with health checks is unhealthy until reported healthy."""
    if workload.annotations.get(HEALTH_ANNOTATION) not in _TRUE:
        return True
    return workload.conditions.get("Healthy", "").lower() == "true"


def group_of(workload: Config) -> ConfigKey | None:
    """The WorkloadGroup that a WorkloadEntry names."""
    name = workload.annotations.get(GROUP_ANNOTATION)
    return ConfigKey("WorkloadGroup", workload.namespace, name) if name else None


def workload_name(workload: Config) -> str:
    """The workload that a WorkloadEntry is an instance of: its group, as in Istio's metrics; without one, itself."""
    group = group_of(workload)
    return group.name if group is not None else workload.name


def group_labels(group: Config) -> Mapping[str, str]:
    """The labels that a WorkloadGroup gives its members."""
    spec: api.WorkloadGroup = group.spec
    of_template = spec.template.labels if spec.template is not None else {}
    return {**(spec.metadata.labels if spec.metadata is not None else {}), **of_template}


def from_template(workload: Config, group: Config) -> Config:
    """A WorkloadEntry merged with its group's template. Its own fields, ports and labels have precedence."""
    own: api.WorkloadEntry = workload.spec
    template: api.WorkloadEntry = group.spec.template or api.WorkloadEntry()
    spec = api.WorkloadEntry(
        address=own.address,
        ports={**template.ports, **own.ports},
        labels={**group_labels(group), **own.labels},
        network=own.network or template.network,
        locality=own.locality or template.locality,
        weight=own.weight or template.weight,
        service_account=own.service_account or template.service_account,
    )
    if is_auto_registered(workload) and group.spec.probe is not None:
        return attrs.evolve(workload, spec=spec, annotations={**workload.annotations, HEALTH_ANNOTATION: "true"})
    return attrs.evolve(workload, spec=spec)


def is_auto_registered(workload: Config) -> bool:
    """True for a WorkloadEntry that mesh-pilot has made from its WorkloadGroup."""
    return workload.origin.source == AUTO_REGISTRATION


def may_join(workload: Config, group: Config | None) -> bool:
    """True if an auto-registered WorkloadEntry, without the template, is of the service account of its group."""
    if group is None:
        return False
    account = group.spec.template.service_account if group.spec.template is not None else ""
    return account in ("", workload.spec.service_account)


def with_health(workload: Config, is_healthy: bool) -> Config:
    """A WorkloadEntry with the health that was reported."""
    return attrs.evolve(
        workload,
        annotations={**workload.annotations, HEALTH_ANNOTATION: "true"},
        conditions={**workload.conditions, "Healthy": str(is_healthy)},
    )


def _endpoint(
    entry: api.WorkloadEntry, port: api.ServicePort, namespace: str, workload: str, trust_domain: str, cluster_id: str
) -> Endpoint:
    address, number = entry.address, entry.ports.get(port.name, 0) or port.target_port or port.number
    if address.startswith(UNIX_PREFIX):
        address, number = address.removeprefix(UNIX_PREFIX), 0
    account = entry.service_account
    return Endpoint(
        address=address,
        port=number,
        service_port=port.name,
        labels=entry_labels(entry),
        locality=entry_locality(entry),
        network=entry.network,
        cluster_id=entry.labels.get(CLUSTER_LABEL) or cluster_id,
        weight=entry.weight,
        service_account=_identity(trust_domain, namespace, account) if account else "",
        tls_mode=entry.labels.get(TLS_MODE_LABEL, MESH_TLS_MODE if account else ""),
        namespace=namespace if workload else "",
        workload=workload,
    )


_locality = lru_cache(maxsize=1024)(Locality.parse)
"""Cached, so that the many endpoints of a locality share one object."""


@lru_cache(maxsize=1024)
def _identity(trust_domain: str, namespace: str, account: str) -> str:
    return str(Identity(trust_domain, namespace, account))


def entry_labels(entry: api.WorkloadEntry) -> Mapping[str, str]:
    """An entry's labels and the labels of its topology, by which subsets and failover may select."""
    if not entry.locality and not entry.network:
        return entry.labels
    values = zip((*PLACE_LABELS, NETWORK_LABEL), (*_locality(entry.locality), entry.network), strict=True)
    topology = {label: value for label, value in values if value}
    return {**topology, **entry.labels}


def entry_locality(entry: api.WorkloadEntry) -> Locality:
    """The locality of an entry, else that of its label ``istio-locality``."""
    if entry.locality:
        return _locality(entry.locality)
    label = entry.labels.get(LOCALITY_LABEL)
    return Locality.of_labels({LOCALITY_LABEL: label}) if label else NOWHERE
