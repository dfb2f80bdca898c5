"""Kubernetes' objects as a Galley sends them, in the form in which an API server writes them.

The bodies are those of Galley's table of types: ``ServiceSpec``, ``Endpoints``, ``Pod`` and ``NodeSpec``. Names and
labels come from the metadata next to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from mesh_pilot.api.k8s.io.api.core import v1 as core
from mesh_pilot.istio.kubernetes.objects import Object
from mesh_pilot.istio.reading.decode import Metadata

KubernetesBody = core.ServiceSpec | core.Endpoints | core.Pod | core.NodeSpec


def object_of(body: KubernetesBody, metadata: Metadata) -> tuple[str, Object]:
    """The kind of a body, and the object."""
    described = {
        "name": metadata.name,
        "namespace": metadata.namespace,
        "creationTimestamp": metadata.created,
        "labels": metadata.labels,
        "annotations": metadata.annotations,
    }
    match body:
        case core.ServiceSpec():
            return "Service", {"metadata": described, "spec": _service_spec(body)}
        case core.Endpoints():
            return "Endpoints", {"metadata": described, "subsets": [_subset(subset) for subset in body.subsets]}
        case core.Pod():
            spec, status = body.spec or core.PodSpec(), body.status or core.PodStatus()
            account = {"serviceAccountName": spec.service_account_name, "nodeName": spec.node_name}
            return "Pod", {"metadata": described, "spec": account, "status": {"podIP": status.pod_ip}}
        case core.NodeSpec():
            return "Node", {"metadata": described}
        case _:
            assert_never(body)


def _service_spec(spec: core.ServiceSpec) -> Object:
    return {
        "type": spec.type,
        "clusterIP": spec.cluster_ip,
        "clusterIPs": spec.cluster_ips,
        "externalName": spec.external_name,
        "externalIPs": spec.external_ips,
        "selector": spec.selector,
        "ports": [
            {
                "name": port.name,
                "port": port.port,
                "protocol": port.protocol,
                "appProtocol": port.app_protocol,
                "targetPort": _number_or_name(port.target_port),
            }
            for port in spec.ports
        ],
    }


def _number_or_name(value: core.IntOrString | None) -> int | str:
    if value is None:
        return 0
    return value.int_val if value.type == 0 else value.str_val


def _subset(subset: core.EndpointSubset) -> Object:
    return {
        "addresses": _addresses(subset.addresses),
        "notReadyAddresses": _addresses(subset.not_ready_addresses),
        "ports": [{"name": port.name, "port": port.port, "protocol": port.protocol} for port in subset.ports],
    }


def _addresses(addresses: Sequence[core.EndpointAddress]) -> list[Object]:
    found: list[Object] = []
    for address in addresses:
        target = address.target_ref
        reference = {"kind": target.kind, "namespace": target.namespace, "name": target.name} if target else None
        found.append({"ip": address.ip, "targetRef": reference})
    return found
