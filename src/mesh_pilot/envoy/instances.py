"""What runs beside a proxy: the service ports that have an endpoint at its addresses."""

from __future__ import annotations

from mesh_pilot.envoy.scope import Workload
from mesh_pilot.model.service import Instance
from mesh_pilot.world.view import View


def instances(view: View, workload: Workload) -> tuple[Instance, ...]:
    """The instances at a workload's addresses, oldest service first, in the order of the service's ports.

    A proxy that says its namespace takes part in services of that namespace only: nobody may put a service into a
    namespace that is not theirs by claiming its addresses.
    """
    found: list[Instance] = []
    for ip in workload.ip_addresses:
        for key, endpoints in view.endpoints_at(ip):
            if workload.metadata_namespace not in ("", key.namespace):
                continue
            service = view.service(key)
            if service is None:
                continue
            for port in service.ports:
                found += (Instance(service, port, e) for e in endpoints if e.service_port == port.name)
    return tuple(found)
