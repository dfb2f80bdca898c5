"""Where requests and connections to undeclared destinations go: the outboundTrafficPolicy of the mesh or a Sidecar."""

from __future__ import annotations

from mesh_pilot.api.istio.mesh.v1alpha1 import MeshConfigOutboundTrafficPolicyMode as MeshMode
from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.engine import derived
from mesh_pilot.mesh.names.resources import PASSTHROUGH, REQUESTED_HOST, outbound
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.world.view import View


@derived
def resolves_unknown_hosts(view: View) -> bool:
    """True if the mesh's policy is ALLOW_ANY_DYNAMIC_DNS, which a Sidecar may replace by its own."""
    mesh = view.mesh().outbound_traffic_policy
    return mesh is not None and mesh.mode is MeshMode.ALLOW_ANY_DYNAMIC_DNS


@derived
def unknown_host(view: View, sidecar: ConfigKey | None) -> str:
    """The cluster for HTTP requests to undeclared hosts; empty where the policy is REGISTRY_ONLY."""
    config = view.config(sidecar) if sidecar is not None else None
    own = config is not None and config.spec.outbound_traffic_policy is not None
    return unknown_destination(view, sidecar) if own or not resolves_unknown_hosts(view) else REQUESTED_HOST


@derived
def unknown_destination(view: View, sidecar: ConfigKey | None) -> str:
    """The cluster for connections to undeclared addresses; empty where the policy is REGISTRY_ONLY."""
    config = view.config(sidecar) if sidecar is not None else None
    policy = config.spec.outbound_traffic_policy if config is not None else None
    if config is None or policy is None:
        mesh = view.mesh().outbound_traffic_policy
        return "" if mesh is not None and mesh.mode is MeshMode.REGISTRY_ONLY else PASSTHROUGH
    if policy.mode is not api.OutboundTrafficPolicyMode.ALLOW_ANY:
        return ""
    proxy = policy.egress_proxy
    if proxy is None:
        return PASSTHROUGH
    port = proxy.port.number if proxy.port is not None else 0
    return outbound(view.full_host(proxy.host, config.namespace), port, proxy.subset)
