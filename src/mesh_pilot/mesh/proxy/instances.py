"""What runs beside a proxy: the service ports that have an endpoint there."""

from __future__ import annotations

from mesh_pilot.incremental import derived
from mesh_pilot.mesh.proxy.registration import registered
from mesh_pilot.mesh.proxy.scope import Workload
from mesh_pilot.model.service import Instance
from mesh_pilot.world.view import View


@derived
def instances(view: View, workload: Workload) -> tuple[Instance, ...]:
    """The instances that are a workload's, oldest service first, in the order of the service's ports."""
    found: list[Instance] = []
    for key, endpoints in registered(view, workload.claim):
        service = view.service(key)
        if service is None:
            continue
        for port in service.ports:
            found += (Instance(service, port, e) for e in endpoints if e.service_port == port.name)
    return tuple(found)
