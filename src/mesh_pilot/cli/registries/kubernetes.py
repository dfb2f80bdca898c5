"""The flags of ``mesh-pilot discovery`` about Kubernetes, spelled as istiod's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mesh_pilot.cli.options import ListOption, duration, words

if TYPE_CHECKING:
    from mesh_pilot.istio.kubernetes.cluster_sets import ClusterSetMode
    from mesh_pilot.kubernetes.source import KubernetesClusters, KubernetesRegistry

FLAGS: Sequence[tuple[str, Mapping[str, Any]]] = (
    (
        "--kubeconfig",
        {
            "type": click.Path(path_type=Path),
            "help": "How to reach its API server.  [default, with --registries: as a pod, or as kubectl does]",
        },
    ),
    ("--context", {"default": "", "help": "Context of the kubeconfig.  [default: its current one]"}),
    (
        "--cluster-id --clusterID",
        {"default": "Kubernetes", "help": "Name of the cluster: CLUSTER_ID of its proxies."},
    ),
    (
        "--clusters-dir",
        {
            "type": click.Path(path_type=Path),
            "help": "Folder of kubeconfigs of other clusters, whose services are read too; a file's name is the id.",
        },
    ),
    (
        "--cluster-secrets/--no-cluster-secrets",
        {
            "default": None,
            "help": "Read other clusters by Istio's labelled Secrets.  [default: if services are read]",
        },
    ),
    (
        "--cluster-timeout",
        {
            "type": duration,
            "default": "30s",
            "help": "How long other clusters are waited for at the start; 0: for ever.",
        },
    ),
    (
        "--cluster-set",
        {
            "type": click.Choice(["off", "exports", "hosts", "strict"]),
            "default": "off",
            "help": "How far ServiceExports and ServiceImports count (docs/kubernetes-registry.md).",
        },
    ),
    (
        "--insecure-kubeconfig-options",
        {
            "cls": ListOption,
            "default": "",
            "metavar": "KEY,...",
            "help": "What kubeconfigs in Secrets may have: exec, tokenFile, clientKey, clientCertificate, ...",
        },
    ),
)
"""Each flag with what click takes of it."""


def kubernetes_registry(
    flags: Mapping[str, Any], environment: Mapping[str, str], is_named: bool | None
) -> KubernetesRegistry | KubernetesClusters | None:
    """The cluster that a flag names, or ``--registries``. Raises UsageError.

    With a kubeconfig, but left out of ``--registries``, its services are not read.
    """
    if not flags["kubeconfig"] and not is_named:
        if flags["context"]:
            raise click.UsageError("--context needs --kubeconfig, or --registries with Kubernetes")
        return _other_clusters(flags, environment) if flags["clusters_dir"] else None
    if not flags["cluster_id"]:
        raise click.UsageError("--cluster-id: a cluster needs a name")
    from mesh_pilot.kubernetes.apiserver import KubernetesError, load_access
    from mesh_pilot.kubernetes.source import ClusterSettings, KubernetesRegistry

    has_services = is_named is not False
    secrets = flags["cluster_secrets"]
    try:
        access = load_access(flags["kubeconfig"], flags["context"], flag="--kubeconfig")
    except KubernetesError as error:
        raise click.UsageError(str(error)) from None
    return KubernetesRegistry(
        access,
        cluster_id=flags["cluster_id"],
        domain=flags["domain"],
        system_namespace=flags["namespace"],
        has_services=has_services,
        clusters=ClusterSettings(
            folder=flags["clusters_dir"],
            secrets=has_services if secrets is None else secrets,
            sync_seconds=flags["cluster_timeout"],
            allowed=frozenset(words(flags["insecure_kubeconfig_options"])),
        ),
        cluster_set=_cluster_set(flags, environment),
    )


_MCS = (
    ("ENABLE_MCS_SERVICE_DISCOVERY", "exports"),
    ("ENABLE_MCS_HOST", "hosts"),
    ("ENABLE_MCS_CLUSTER_LOCAL", "strict"),
)
"""Variables of istiod, each of which needs those before it, and what they come to."""


def _cluster_set(flags: Mapping[str, Any], environment: Mapping[str, str]) -> ClusterSetMode:
    """The mode of the flag, else that of istiod's variables."""
    from mesh_pilot.istio.kubernetes.cluster_sets import ClusterSetMode

    found = flags["cluster_set"]
    if found == "off":
        for variable, mode in _MCS:
            if environment.get(variable, "").lower() not in ("true", "1", "t"):
                break
            found = mode
    return ClusterSetMode(found)


def _other_clusters(flags: Mapping[str, Any], environment: Mapping[str, str]) -> KubernetesClusters:
    """The clusters of a folder, without one of our own."""
    from mesh_pilot.kubernetes.source import ClusterSettings, KubernetesClusters

    settings = ClusterSettings(folder=flags["clusters_dir"], sync_seconds=flags["cluster_timeout"])
    return KubernetesClusters(
        settings,
        domain=flags["domain"],
        system_namespace=flags["namespace"],
        cluster_set=_cluster_set(flags, environment),
    )
