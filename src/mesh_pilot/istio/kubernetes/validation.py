"""Rules for Services and sets of endpoints, which a server may hand on unchecked: addresses, ports and host names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mesh_pilot.istio.kubernetes.objects import HEADLESS_CLUSTER_IP, Object, service_host
from mesh_pilot.istio.rules.context import check
from mesh_pilot.istio.rules.names import fqdn_or_ip_reason, fqdn_reason, ip_reason, port_reason
from mesh_pilot.model.config import Problem


def check_object(kind: str, found: Object, domain: str) -> Iterator[Problem]:
    """Everything that is wrong with an object. ``domain``: the suffix of the host names of services."""
    match kind:
        case "Service":
            metadata = found["metadata"]
            yield from check(
                "metadata.name", fqdn_reason(service_host(metadata["name"], metadata["namespace"], domain))
            )
            yield from _check_service(found.get("spec") or {})
        case "Endpoints":
            for index, subset in enumerate(found.get("subsets") or ()):
                for name in ("addresses", "notReadyAddresses"):
                    for at, address in enumerate(subset.get(name) or ()):
                        yield from check(f"subsets[{index}].{name}[{at}].ip", ip_reason(address["ip"]))
                yield from _check_ports(f"subsets[{index}].", subset.get("ports"))
        case "EndpointSlice" if found.get("addressType") != "FQDN":
            for index, endpoint in enumerate(found.get("endpoints") or ()):
                for at, address in enumerate(endpoint["addresses"]):
                    yield from check(f"endpoints[{index}].addresses[{at}]", ip_reason(address))
            yield from _check_ports("", found.get("ports"))


def _check_service(spec: Object) -> Iterator[Problem]:
    if spec.get("type") == "ExternalName":
        yield from check("spec.externalName", fqdn_or_ip_reason(spec.get("externalName") or ""))
    elif spec.get("clusterIP") != HEADLESS_CLUSTER_IP:
        addresses = {f"spec.clusterIPs[{i}]": ip for i, ip in enumerate(spec.get("clusterIPs") or ())}
        for path, address in (addresses or {"spec.clusterIP": spec.get("clusterIP")}).items():
            if address:
                yield from check(path, ip_reason(address))
    for index, port in enumerate(spec.get("ports") or ()):
        path = f"spec.ports[{index}]"
        yield from check(f"{path}.port", port_reason(port["port"]))
        target = port.get("targetPort")
        if isinstance(target, int) and target:
            yield from check(f"{path}.targetPort", port_reason(target))


def _check_ports(path: str, ports: Sequence[Mapping[str, Any]] | None) -> Iterator[Problem]:
    for at, port in enumerate(ports or ()):
        if port.get("port") is not None:
            yield from check(f"{path}ports[{at}].port", port_reason(port["port"]))
