"""A sidecar's inbound listeners: virtualInbound for everything captured, and those that it listens on itself.

Replicas of a workload share their listeners: what these depend on is taken out of the workload first.
"""

from __future__ import annotations

from collections.abc import Sequence

from envoy.config.core.v3 import base_pb2
from envoy.config.listener.v3.listener_pb2 import Listener

from mesh_pilot.envoy.core.protobuf import address, boolean
from mesh_pilot.envoy.listeners.chains import Chain, assemble, balance_exactly
from mesh_pilot.envoy.listeners.guards import guards
from mesh_pilot.envoy.listeners.inbound_chains import (
    VIRTUAL_INBOUND,
    black_hole_chain,
    passthrough_chains,
    port_chains,
)
from mesh_pilot.envoy.listeners.inspectors import inbound_filters, wait_for_client
from mesh_pilot.envoy.telemetry.access_logs import listener_access_logs
from mesh_pilot.incremental import derived
from mesh_pilot.mesh.inbound import InboundPort, InboundSettings, inbound_ports, inbound_settings
from mesh_pilot.mesh.policies import PolicyContext
from mesh_pilot.mesh.proxy.proxy_config import listener_buffer
from mesh_pilot.mesh.proxy.scope import Plan, ResourceQuery, Workload
from mesh_pilot.model.proxy import Interception
from mesh_pilot.model.resource import Resource
from mesh_pilot.world.view import View


@derived
def inbound_listeners(view: View, workload: Workload) -> Plan:
    """The inbound listeners of a workload."""
    side = inbound_settings(view, workload)
    ports = inbound_ports(view, workload)
    balanced = workload.scope.is_on("INBOUND_LISTENER_EXACT_BALANCE")
    plan: dict[str, ResourceQuery] = {p.name: port_listener.query(side, p, balanced) for p in ports if p.listen}
    if workload.scope.interception is not Interception.NONE:
        captured = tuple(p for p in ports if not p.listen)
        plan[VIRTUAL_INBOUND] = virtual_inbound.query(side, captured, balanced)
    return plan


@derived
def virtual_inbound(view: View, side: InboundSettings, ports: tuple[InboundPort, ...], balanced: bool) -> Resource:
    """The listener to which the host's rules send what comes in; ``balanced``: evenly to Envoy's workers."""
    number = _listen_port(view)
    tproxy = side.interception is Interception.TPROXY
    header = Listener(
        name=VIRTUAL_INBOUND,
        address=address(side.wildcard, number),
        traffic_direction=base_pb2.INBOUND,
    )
    if balanced:
        balance_exactly(header)
    if tproxy:
        header.transparent.CopyFrom(boolean(True))
    declared = {p.number for p in ports}
    others = tuple(port for port, _ in side.modes.ports if port not in declared)
    chains = [black_hole_chain(view, number), *passthrough_chains(view, side, others)]
    for port in ports:
        chains += port_chains(view, side, port)
    header.listener_filters.extend(inbound_filters(chains, captured=True, tproxy=tproxy))
    wait_for_client(header, view)
    return _assembled(view, side.context, header, chains)


@derived
def port_listener(view: View, side: InboundSettings, port: InboundPort, balanced: bool) -> Resource:
    """The listener of one port where nothing is captured: clients connect to it, the application is behind it."""
    header = Listener(name=port.name, address=address(port.listen, port.number), traffic_direction=base_pb2.INBOUND)
    if balanced:
        balance_exactly(header)
    chains = port_chains(view, side, port)
    header.listener_filters.extend(inbound_filters(chains, captured=False, tproxy=False))
    wait_for_client(header, view)
    return _assembled(view, side.context, header, chains)


def _assembled(view: View, context: PolicyContext, header: Listener, chains: Sequence[Chain]) -> Resource:
    logs = listener_access_logs(view, context)
    buffer = listener_buffer(view, context.settings)
    return assemble(header, chains, logs=logs, buffer=buffer, configs=guards(view, context))


@derived
def _listen_port(view: View) -> int:
    return view.mesh().proxy_inbound_listen_port
