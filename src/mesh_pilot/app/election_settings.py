"""The settings of elections by Consul and Kubernetes."""

from __future__ import annotations

from pathlib import Path

import attrs

from mesh_pilot.consul.client.client import check_files
from mesh_pilot.consul.client.settings import Agent
from mesh_pilot.consul.election.lock import ConsulLock
from mesh_pilot.kubernetes.apiserver import load_access
from mesh_pilot.kubernetes.election.lease import KubernetesLease
from mesh_pilot.replicas.election.base import Replica, boot_clock
from mesh_pilot.replicas.election.elections import LockElection

SHORTEST_SECONDS = 1.0
"""The shortest TTL. The longest is ``LONGEST_SECONDS``: Consul delays a lock by a minute at most."""

DEFAULT_TTL_SECONDS = 15.0


@attrs.frozen(kw_only=True)
class ConsulElectionSettings:
    """A lock in Consul's KV store; implements `base.ElectionSettings`."""

    agent: Agent
    datacenter: str = ""
    """The datacenter whose KV store it is; empty: the agent's own."""
    key: str = "mesh-pilot/leader"
    """The entry of the lock; replicas are listed beside it, in ``replicas/``."""
    ttl_seconds: float = DEFAULT_TTL_SECONDS

    def election(self, replica: Replica) -> LockElection:
        check_files(self.agent)
        lock = ConsulLock(self.agent, self.datacenter, self.key.strip("/"), self.ttl_seconds, replica)
        return LockElection(lock, replica)


@attrs.frozen(kw_only=True)
class KubernetesElectionSettings:
    """A Lease of Kubernetes; implements `base.ElectionSettings`."""

    kubeconfig: Path | None = None
    """The way to the API server; None: as a pod, or as kubectl does."""
    namespace: str = "istio-system"
    name: str = "mesh-pilot-leader"
    ttl_seconds: float = DEFAULT_TTL_SECONDS

    def election(self, replica: Replica) -> LockElection:
        access = load_access(self.kubeconfig, flag="--kubernetes-kubeconfig")
        lease = KubernetesLease(access, self.namespace, self.name, self.ttl_seconds, replica, boot_clock)
        return LockElection(lease, replica)
