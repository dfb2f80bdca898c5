"""The flags of ``mesh-pilot discovery`` about Kubernetes, spelled as istiod's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from mesh_pilot.sources.kubernetes import KubernetesRegistry

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
)
"""Each flag with what click takes of it."""


def kubernetes_registry(
    flags: Mapping[str, Any], environment: Mapping[str, str], is_named: bool | None
) -> KubernetesRegistry | None:
    """The cluster that a flag names, or ``--registries``. Raises UsageError.

    With a kubeconfig, but left out of ``--registries``, its services are not read.
    """
    if not flags["kubeconfig"] and not is_named:
        if flags["context"]:
            raise click.UsageError("--context needs --kubeconfig, or --registries with Kubernetes")
        return None
    if not flags["cluster_id"]:
        raise click.UsageError("--cluster-id: a cluster needs a name")
    from mesh_pilot.apiserver import KubernetesError, load_access
    from mesh_pilot.sources.kubernetes import KubernetesRegistry

    try:
        access = load_access(flags["kubeconfig"], flags["context"])
    except KubernetesError as error:
        raise click.UsageError(f"--kubeconfig: {error}") from None
    return KubernetesRegistry(
        access,
        cluster_id=flags["cluster_id"],
        domain=flags["domain"],
        system_namespace=flags["namespace"],
        has_services=is_named is not False,
    )
