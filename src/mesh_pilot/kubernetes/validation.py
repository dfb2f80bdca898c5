"""Rules for Services and Endpoints, which a server may hand on unchecked: addresses, ports and host names."""

from __future__ import annotations

from collections.abc import Iterator

from mesh_pilot.api.k8s.io.api.core import v1 as core
from mesh_pilot.config.validation.context import check
from mesh_pilot.config.validation.names import fqdn_or_ip_reason, fqdn_reason, ip_reason, port_reason
from mesh_pilot.kubernetes.objects import HEADLESS_CLUSTER_IP, KubernetesBody, service_host
from mesh_pilot.model.config import Problem


def check_object(body: KubernetesBody, name: str, namespace: str, domain: str) -> Iterator[Problem]:
    """Everything that is wrong with a Service or an Endpoints. ``domain``: the suffix of the host names of services."""
    match body:
        case core.ServiceSpec():
            yield from check("metadata.name", fqdn_reason(service_host(name, namespace, domain)))
            yield from _check_service(body)
        case core.Endpoints():
            yield from _check_endpoints(body)


def _check_service(spec: core.ServiceSpec) -> Iterator[Problem]:
    if spec.type == "ExternalName":
        yield from check("spec.externalName", fqdn_or_ip_reason(spec.external_name))
    elif spec.cluster_ip != HEADLESS_CLUSTER_IP:
        addresses = {f"spec.clusterIPs[{i}]": ip for i, ip in enumerate(spec.cluster_ips)}
        for path, address in (addresses or {"spec.clusterIP": spec.cluster_ip}).items():
            if address:
                yield from check(path, ip_reason(address))
    for index, port in enumerate(spec.ports):
        path = f"spec.ports[{index}]"
        yield from check(f"{path}.port", port_reason(port.port))
        target = port.target_port
        if target is not None and target.type == 0 and target.int_val:
            yield from check(f"{path}.targetPort", port_reason(target.int_val))


def _check_endpoints(body: core.Endpoints) -> Iterator[Problem]:
    for index, subset in enumerate(body.subsets):
        path = f"subsets[{index}]"
        for name, addresses in (("addresses", subset.addresses), ("notReadyAddresses", subset.not_ready_addresses)):
            for at, address in enumerate(addresses):
                yield from check(f"{path}.{name}[{at}].ip", ip_reason(address.ip))
        for at, port in enumerate(subset.ports):
            yield from check(f"{path}.ports[{at}].port", port_reason(port.port))
