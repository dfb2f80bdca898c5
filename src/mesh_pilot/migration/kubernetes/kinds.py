"""Kinds of Kubernetes that are not taken, each with the reason and with what to do instead."""

from __future__ import annotations

from collections.abc import Mapping

import attrs


@attrs.frozen
class LeftKind:
    """The reason why objects of a kind are not taken."""

    reason: str
    do: str = ""
    is_needless: bool = False
    """True: nothing of the mesh is lost with them."""


def _needless(reason: str) -> LeftKind:
    return LeftKind(reason, is_needless=True)


_WORKLOAD = _needless("a program is started by its machine; its Pods become WorkloadEntries")
_RIGHTS = _needless("rights in Kubernetes")
_OF_CLUSTER = _needless("it is of the cluster itself")
_INSTALLED = LeftKind("nothing is installed here", "its meshConfig goes into mesh.yaml")

LEFT_KINDS: Mapping[tuple[str, str], LeftKind] = {
    **{("apps", kind): _WORKLOAD for kind in ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet")},
    **{("batch", kind): _WORKLOAD for kind in ("Job", "CronJob")},
    ("", "ReplicationController"): _WORKLOAD,
    ("", "ServiceAccount"): _needless("accounts are said by each workload: serviceAccount of its WorkloadEntry"),
    ("", "ConfigMap"): _needless("no setting of the mesh is in it"),
    ("", "Event"): _needless("an event of the past"),
    ("events.k8s.io", "Event"): _needless("an event of the past"),
    ("", "PersistentVolume"): _OF_CLUSTER,
    ("", "PersistentVolumeClaim"): _OF_CLUSTER,
    ("", "LimitRange"): _OF_CLUSTER,
    ("", "ResourceQuota"): _OF_CLUSTER,
    ("coordination.k8s.io", "Lease"): _OF_CLUSTER,
    ("policy", "PodDisruptionBudget"): _OF_CLUSTER,
    ("autoscaling", "HorizontalPodAutoscaler"): _OF_CLUSTER,
    ("apiextensions.k8s.io", "CustomResourceDefinition"): _OF_CLUSTER,
    ("apiregistration.k8s.io", "APIService"): _OF_CLUSTER,
    ("storage.k8s.io", "StorageClass"): _OF_CLUSTER,
    ("admissionregistration.k8s.io", "MutatingWebhookConfiguration"): _needless("webhooks of the API server"),
    ("admissionregistration.k8s.io", "ValidatingWebhookConfiguration"): _needless("webhooks of the API server"),
    **{
        ("rbac.authorization.k8s.io", kind): _RIGHTS
        for kind in ("Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
    },
    ("networking.k8s.io", "NetworkPolicy"): LeftKind(
        "the cluster's network carries it out, not a proxy", "write AuthorizationPolicies, or rules of a firewall"
    ),
    ("extensions", "Ingress"): LeftKind("Kubernetes removed this version", "write networking.k8s.io/v1"),
    ("multicluster.x-k8s.io", "ServiceExport"): LeftKind(
        "cluster sets are read from API servers only", "write a ServiceEntry"
    ),
    ("multicluster.x-k8s.io", "ServiceImport"): LeftKind(
        "cluster sets are read from API servers only", "write a ServiceEntry"
    ),
    ("install.istio.io", "IstioOperator"): _INSTALLED,
    ("sailoperator.io", "Istio"): _INSTALLED,
    ("sailoperator.io", "IstioRevision"): _INSTALLED,
}
"""By group and kind."""

OTHER = _needless("no kind of a mesh")

READ_KINDS = ("Service", "Endpoints", "EndpointSlice", "Pod", "Node", "Secret", "ConfigMap")
"""Kinds of Kubernetes that are no objects of files, and that are read all the same."""
