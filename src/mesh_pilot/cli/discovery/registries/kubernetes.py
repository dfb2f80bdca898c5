"""The flags of ``mesh-pilot discovery`` about Kubernetes, spelled as istiod's."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import click

from mesh_pilot.cli.lib.options import one_line
from mesh_pilot.model.flags import FlagKind, flag

if TYPE_CHECKING:
    from mesh_pilot.app.settings import Settings
    from mesh_pilot.istio.kubernetes.cluster_sets import ClusterSetMode
    from mesh_pilot.kubernetes.source import KubernetesClusters, KubernetesRegistry

_flag = partial(flag, section="Kubernetes")

_MCS = (
    ("ENABLE_MCS_SERVICE_DISCOVERY", "exports"),
    ("ENABLE_MCS_HOST", "hosts"),
    ("ENABLE_MCS_CLUSTER_LOCAL", "strict"),
)
"""Variables of istiod, each of which needs those before it, and what they come to."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class KubernetesFlags:
    """A cluster, and others that it knows of."""

    kubeconfig: Path | None = _flag(
        "--kubeconfig",
        help="How to reach its API server.  [default, with --registries: as a pod, or as kubectl does]",
        common=True,
        doc="How to reach the API server of [a Kubernetes](kubernetes.md#services).",
    )
    context: str = _flag("--context", default="", help="Context of the kubeconfig.  [default: its current one]")
    cluster_id: str = _flag(
        "--cluster-id --clusterID",
        default="Kubernetes",
        help="Name of the cluster: CLUSTER_ID of its proxies.",
        common=True,
    )
    clusters_dir: Path | None = _flag(
        "--clusters-dir",
        help="Folder of kubeconfigs of other clusters, whose services are read too; a file's name is the id.",
        common=True,
        doc="Folder of kubeconfigs of [other clusters](clusters.md#other-clusters), whose services are read too; a"
        " file's name is the id.",
    )
    cluster_secrets: bool | None = _flag(
        "--cluster-secrets/--no-cluster-secrets",
        help="Read other clusters by Istio's labelled Secrets.  [default: if services are read]",
    )
    cluster_timeout: float = _flag(
        "--cluster-timeout",
        default=30.0,
        kind=FlagKind.DURATION,
        help="Time that the start waits for other clusters; 0: forever.",
        doc="Time that the start waits for other clusters; 0: forever.",
    )
    cluster_set: str = _flag(
        "--cluster-set",
        default="off",
        kind=("off", "exports", "hosts", "strict"),
        help="How far ServiceExports and ServiceImports count (docs/kubernetes.md).",
        doc="How far [ServiceExports and ServiceImports](kubernetes.md#services-of-several-clusters) count.",
    )
    insecure_kubeconfig_options: tuple[str, ...] = _flag(
        "--insecure-kubeconfig-options",
        kind=FlagKind.WORDS,
        default=(),
        adds_up=True,
        metavar="KEY,...",
        help="What kubeconfigs in Secrets may have: exec, tokenFile, clientKey, clientCertificate, ...",
        doc="What kubeconfigs in Secrets may have: `exec`, `tokenFile`, `clientKey`, `clientCertificate`, "
        "`certificateAuthority`.",
    )

    def registry(
        self, environment: Mapping[str, str], is_named: bool | None, mesh: Settings
    ) -> KubernetesRegistry | KubernetesClusters | None:
        """The cluster that a flag names, or ``--registries``. Raises UsageError.

        With a kubeconfig, but left out of ``--registries``, its services are not read.
        """
        is_here = self.kubeconfig is not None or is_named
        if not is_here and self.context:
            raise click.UsageError("--context needs --kubeconfig, or --registries with Kubernetes")
        if not is_here and not self.clusters_dir:
            return None
        from mesh_pilot.kubernetes.apiserver import KubernetesError, load_access
        from mesh_pilot.kubernetes.source import ClusterSettings, KubernetesClusters, KubernetesRegistry

        if not is_here:
            return KubernetesClusters(
                ClusterSettings(folder=self.clusters_dir, sync_seconds=self.cluster_timeout),
                domain=mesh.domain,
                system_namespace=mesh.namespace,
                cluster_set=self._cluster_set(environment),
            )
        if not self.cluster_id:
            raise click.UsageError("--cluster-id: a cluster needs a name")
        has_services = is_named is not False
        with one_line(KubernetesError, as_=click.UsageError):
            access = load_access(self.kubeconfig, self.context, flag="--kubeconfig")
        return KubernetesRegistry(
            access,
            cluster_id=self.cluster_id,
            domain=mesh.domain,
            system_namespace=mesh.namespace,
            has_services=has_services,
            clusters=ClusterSettings(
                folder=self.clusters_dir,
                secrets=has_services if self.cluster_secrets is None else self.cluster_secrets,
                sync_seconds=self.cluster_timeout,
                allowed=frozenset(self.insecure_kubeconfig_options),
            ),
            cluster_set=self._cluster_set(environment),
        )

    def _cluster_set(self, environment: Mapping[str, str]) -> ClusterSetMode:
        """The mode of the flag, else that of istiod's variables."""
        from mesh_pilot.istio.kubernetes.cluster_sets import ClusterSetMode

        found = self.cluster_set
        if found == "off":
            for variable, mode in _MCS:
                if environment.get(variable, "").lower() not in ("true", "1", "t"):
                    break
                found = mode
        return ClusterSetMode(found)
