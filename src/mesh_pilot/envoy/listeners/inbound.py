"""A sidecar's inbound listeners: ``virtualInbound`` for captured connections, and those of ports without capture.

Listeners depend on ``InboundSettings``, never on the workload, so that its replicas share them.
"""

from __future__ import annotations

from envoy.config.core.v3 import base_pb2
from envoy.config.listener.v3.listener_pb2 import Listener

from mesh_pilot.envoy.core.protobuf import address, boolean
from mesh_pilot.envoy.listeners.filter_chains import balance_exactly, black_hole_chain, context_listener
from mesh_pilot.envoy.listeners.inbound_chains import (
    VIRTUAL_INBOUND,
    passthrough_chains,
    port_chains,
)
from mesh_pilot.envoy.listeners.inspectors import inbound_filters, set_detection_timeout
from mesh_pilot.incremental import derived
from mesh_pilot.mesh.inbound import InboundPort, InboundSettings, inbound_ports, inbound_settings
from mesh_pilot.mesh.proxy.scope import Plan, ResourceQuery, Workload
from mesh_pilot.model.proxy import Interception
from mesh_pilot.model.resource import Resource
from mesh_pilot.world.view import View


@derived
def inbound_listeners(view: View, workload: Workload) -> Plan:
    """The inbound listeners of a workload, by name."""
    settings = inbound_settings(view, workload)
    ports = inbound_ports(view, workload)
    balanced = workload.scope.is_on("INBOUND_LISTENER_EXACT_BALANCE")
    plan: dict[str, ResourceQuery] = {p.name: port_listener.query(settings, p, balanced) for p in ports if p.listen}
    if workload.scope.interception is not Interception.NONE:
        captured = tuple(p for p in ports if not p.listen)
        plan[VIRTUAL_INBOUND] = virtual_inbound.query(settings, captured, balanced)
    return plan


@derived
def virtual_inbound(view: View, settings: InboundSettings, ports: tuple[InboundPort, ...], balanced: bool) -> Resource:
    """The listener that the host redirects incoming connections to; ``balanced``: exactly, over Envoy's workers."""
    number = _listen_port(view)
    tproxy = settings.interception is Interception.TPROXY
    header = Listener(
        name=VIRTUAL_INBOUND,
        address=address(settings.wildcard, number),
        traffic_direction=base_pb2.INBOUND,
    )
    if balanced:
        balance_exactly(header)
    if tproxy:
        header.transparent.CopyFrom(boolean(True))
    declared = {p.number for p in ports}
    mode_ports = tuple(port for port, _ in settings.modes.ports if port not in declared)
    chains = [black_hole_chain(view, VIRTUAL_INBOUND, number), *passthrough_chains(view, settings, mode_ports)]
    for port in ports:
        chains += port_chains(view, settings, port)
    header.listener_filters.extend(inbound_filters(chains, captured=True, tproxy=tproxy))
    set_detection_timeout(header, view)
    return context_listener(view, settings.context, header, chains)


@derived
def port_listener(view: View, settings: InboundSettings, port: InboundPort, balanced: bool) -> Resource:
    """The listener of one port without capture: clients connect to it instead of to the application."""
    header = Listener(name=port.name, address=address(port.listen, port.number), traffic_direction=base_pb2.INBOUND)
    if balanced:
        balance_exactly(header)
    chains = port_chains(view, settings, port)
    header.listener_filters.extend(inbound_filters(chains, captured=False, tproxy=False))
    set_detection_timeout(header, view)
    return context_listener(view, settings.context, header, chains)


@derived
def _listen_port(view: View) -> int:
    return view.mesh().proxy_inbound_listen_port
