"""Stand-ins for clusters that a client has and of which only the name is known (decision 011).

A State of the World client takes every response with clusters as complete: a cluster that is not in it is gone. After
a restart of the control plane it may have clusters that are gone meanwhile, which its old routes still name. It does
not say which, but it requests their endpoints. A placeholder of that name keeps such a cluster in service: Envoy takes
it for a changed cluster, and goes on with the old one while the new one waits for its endpoints.
"""

from __future__ import annotations

from functools import lru_cache

from envoy.config.cluster.v3 import cluster_pb2
from envoy.config.core.v3 import config_source_pb2
from envoy.config.endpoint.v3 import endpoint_pb2

from mesh_pilot.envoy.core.protobuf import resource_of
from mesh_pilot.model.resource import Resource

INITIAL_FETCH_TIMEOUT_SECONDS = 15
"""How long Envoy waits for the endpoints of a placeholder. Meanwhile it accepts no clusters, so it must not wait for
ever where it refuses the routes that would end the waiting."""


@lru_cache(maxsize=1000)
def placeholder(name: str) -> Resource:
    """A cluster of this name that gets its endpoints over ADS."""
    cluster = cluster_pb2.Cluster(name=name, type=cluster_pb2.Cluster.EDS)
    source = cluster.eds_cluster_config.eds_config
    source.ads.SetInParent()
    source.resource_api_version = config_source_pb2.V3
    source.initial_fetch_timeout.seconds = INITIAL_FETCH_TIMEOUT_SECONDS
    return resource_of(name, cluster)


def no_endpoints(cluster: str) -> Resource:
    """The ClusterLoadAssignment of a cluster that has none."""
    return resource_of(cluster, endpoint_pb2.ClusterLoadAssignment(cluster_name=cluster))
