"""The workload that a Pod belongs to, as Istio tells it from the Pod alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import attrs

_CRON_JOB = re.compile(r"(.+)-\d{8,10}")
_HASHES = (("pod-template-hash", "Deployment", ""), ("rollouts-pod-template-hash", "Rollout", "v1alpha1"))
"""Labels by which a ReplicaSet is one of something else: its kind, and the version if it is another."""


@attrs.frozen
class PodOwner:
    """The owner of a Pod, or the Pod itself."""

    name: str
    namespace: str
    kind: str = "Pod"
    api_version: str = "v1"

    @property
    def owner(self) -> str:
        """The value of node metadata ``OWNER``; empty without a name."""
        if not self.name:
            return ""
        path = f"namespaces/{self.namespace or 'default'}/{self.kind.lower()}s/{self.name}"
        return f"kubernetes://apis/{self.api_version}/{path}"


def workload_of(pod: Mapping[str, Any], namespace: str) -> PodOwner:
    """The workload of a Pod (JSON data). A Pod with its own name is its own workload."""
    metadata = pod.get("metadata") or {}
    name = metadata.get("name") or ""
    owner = _controller(metadata) if metadata.get("generateName") else None
    if owner is None:
        return PodOwner(name, namespace)
    labels = metadata.get("labels") or {}
    kind, version = str(owner.get("kind", "")), str(owner.get("apiVersion", ""))
    of = str(owner.get("name", ""))
    # A controller's name says which one is above it: Deployments and Rollouts end theirs in the hash that is a label.
    if kind == "ReplicaSet":
        for label, above, its_version in _HASHES:
            if (ending := labels.get(label)) and of.endswith(f"-{ending}"):
                return PodOwner(of.removesuffix(f"-{ending}"), namespace, above, its_version or version)
    if kind == "ReplicationController" and labels.get("deploymentconfig"):
        return PodOwner(labels["deploymentconfig"], namespace, "DeploymentConfig", version)
    if kind == "Job" and (found := _CRON_JOB.fullmatch(of)):
        return PodOwner(found[1], namespace, "CronJob", "batch/v1")
    return PodOwner(of or name, namespace, kind, version)


def _controller(metadata: Mapping[str, Any]) -> Mapping[str, Any] | None:
    owners = metadata.get("ownerReferences") or ()
    return next((owner for owner in owners if isinstance(owner, Mapping) and owner.get("controller")), None)
