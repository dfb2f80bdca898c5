"""Patches to a cluster. Adding and removing clusters is a matter of plans."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from envoy.config.cluster.v3.cluster_pb2 import Cluster

from mesh_pilot.envoy.envoy_filter.edit import Edit
from mesh_pilot.envoy.envoy_filter.match import cluster_matches
from mesh_pilot.envoy.envoy_filter.merge import check_name, merge_patch, merge_socket, replaces_lists
from mesh_pilot.envoy.envoy_filter.patch import ApplyTo, Patch, PatchError

SOCKET = frozenset(("transport_socket",))


def edit_cluster(edit: Edit, cluster: Cluster, hosts: Collection[str]) -> None:
    """Merge what is for this cluster; ``hosts`` are the services that an inbound one is for."""
    for patch in edit.of(ApplyTo.CLUSTER):
        if patch.is_merge and cluster_matches(patch.match.cluster, cluster.name, hosts):
            edit.apply(patch, partial(_merge, cluster, patch))


def _merge(cluster: Cluster, patch: Patch) -> bool:
    source = patch.message
    assert isinstance(source, Cluster)
    check_name(cluster, source)
    if not source.HasField("transport_socket"):
        merge_patch(cluster, patch)
        return True
    chosen = cluster.transport_socket
    if cluster.transport_socket_matches:
        # A socket beside those chosen by endpoint would never be used: the one of its name is meant.
        sockets = [m.transport_socket for m in cluster.transport_socket_matches]
        named = [s for s in sockets if s.name == source.transport_socket.name]
        if not named:
            raise PatchError(
                f"the cluster chooses between the transport sockets {', '.join(s.name for s in sockets)} "
                f"by endpoint; none is {source.transport_socket.name}"
            )
        chosen = named[0]
    merge_socket(chosen, source.transport_socket, replace_lists=replaces_lists(patch))
    merge_patch(cluster, patch, without=SOCKET)
    return True
