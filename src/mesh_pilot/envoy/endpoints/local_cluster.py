"""The endpoints of a proxy's local cluster: the instances like itself, by which Envoy knows how its peers are spread.

Envoy routes by zone where it knows two things: the zones of the instances that it calls, and the zones of those that
call them as it does. The bootstrap names the cluster of the latter (``cluster_manager.local_cluster_name``); Envoy
starts nothing else before it has its endpoints, so there is always an assignment, if need be an empty one.

Rules: Istio 1.31's self-discovery; Envoy's "Zone aware routing".
"""

from __future__ import annotations

from mesh_pilot.engine import derived
from mesh_pilot.envoy.endpoints.assignments import load_assignment
from mesh_pilot.envoy.endpoints.encode import cluster_load_assignment
from mesh_pilot.envoy.endpoints.viewpoints import EndpointViewpoint
from mesh_pilot.mesh.clusters.locality import REGION_LABEL
from mesh_pilot.mesh.listeners.inbound import workload_instances
from mesh_pilot.mesh.proxy.scope import ProxyLocality, Workload
from mesh_pilot.model.proxy import LOCAL_CLUSTER
from mesh_pilot.model.resource import ENDPOINT, Resource, make_resource
from mesh_pilot.world.view import View

_REVISIONS = ("pod-template-hash", "rollouts-pod-template-hash")
"""Labels of pods. Those of another revision may be spread otherwise, and get another part of the traffic."""


@derived
def local_assignment(view: View, workload: Workload, locality: ProxyLocality, name: str) -> Resource | None:
    """The endpoints of the first port of a workload's oldest service, in the proxy's region; None for other names."""
    if name != LOCAL_CLUSTER:
        return None
    instance = next(iter(workload_instances(view, workload)), None)
    if instance is None:
        return make_resource(LOCAL_CLUSTER, ENDPOINT, cluster_load_assignment(LOCAL_CLUSTER, ()))
    own, service = instance.endpoint.labels, instance.service
    labels = frozenset(((REGION_LABEL, locality.locality.region), *((key, own.get(key, "")) for key in _REVISIONS)))
    port = instance.port.name
    return load_assignment(view, LOCAL_CLUSTER, service.key, port, labels, EndpointViewpoint(), service.configs)
