"""Names under which clusters are counted, where the mesh config gives a pattern for them.

Rules: Istio's MeshConfig ``inboundClusterStatName`` and ``outboundClusterStatName``.
"""

from __future__ import annotations

from mesh_pilot.model.service import Port, Service


def outbound_stat_name(pattern: str, service: Service, port: Port, subset: str) -> str:
    """The stat name of an outbound cluster; empty for an empty pattern (then it is the cluster's name)."""
    return _fill(pattern, service, port).replace("%SUBSET_NAME%", subset)


def inbound_stat_name(pattern: str, service: Service, port: Port) -> str:
    """The stat name of an inbound cluster; empty for an empty pattern."""
    return _fill(pattern, service, port).replace("%SUBSET_NAME%", "")


def _fill(pattern: str, service: Service, port: Port) -> str:
    if "%" not in pattern:
        return pattern
    values = {
        "%SERVICE%": _short(service),
        "%SERVICE_NAME%": service.host.partition(".")[0],
        "%SERVICE_FQDN%": service.host,
        "%SERVICE_PORT%": str(port.number),
        "%SERVICE_PORT_NAME%": port.name,
        "%TARGET_PORT%": str(port.target_port or port.number),
    }
    for variable, value in values.items():
        pattern = pattern.replace(variable, value)
    return pattern


def _short(service: Service) -> str:
    """``reviews.shop`` of a service with a namespaced name, else the host."""
    name = service.host.partition(".")[0]
    return f"{name}.{service.namespace}" if service.namespaced_name else service.host
