"""The settings of a signer of Kubernetes that signs: one behind ``CertificateSigningRequest``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import attrs

from mesh_pilot.identity.signers.settings import SignerSettings, setting
from mesh_pilot.kubernetes.apiserver import KubernetesError, load_access
from mesh_pilot.model.config import Problem

_SIGNER = re.compile(r"(?=.{3,571}\Z)[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[A-Za-z0-9._:-]+")
BUILT_IN = "kubernetes.io/"


@attrs.frozen(kw_only=True)
class ConfigMapRoots:
    """A ConfigMap with roots in PEM, such as trust-manager writes it."""

    namespace: str = setting("namespace")
    name: str = setting("name")
    key: str = setting("key", "root-cert.pem")
    """As in Istio's ``istio-ca-root-cert``."""


@attrs.frozen(kw_only=True)
class TrustBundleRoots:
    """A ClusterTrustBundle."""

    name: str = setting("name", "")
    """Empty: all of the signer."""


@attrs.frozen(kw_only=True)
class RootsFrom:
    """Where the cluster has the roots: one of these."""

    config_map: ConfigMapRoots | None = setting("configMap", None, of=ConfigMapRoots)
    cluster_trust_bundle: TrustBundleRoots | None = setting("clusterTrustBundle", None, of=TrustBundleRoots)


@attrs.frozen(kw_only=True)
class KubernetesSignerSettings(SignerSettings):
    """A signer, and the API server where it looks for requests."""

    signer_name: str = setting("signerName")
    """Such as ``clusterissuers.cert-manager.io/mesh``."""
    approve: bool = setting("approve", True)
    """We approve our requests, as istiod does; False: somebody else does."""
    kubeconfig: Path | None = setting("kubeconfig", None)
    """None: as a pod where we are one, else as kubectl finds it."""
    context: str = setting("context", "")
    roots_from: RootsFrom | None = setting("rootsFrom", None, of=RootsFrom)

    def problems(self) -> Iterator[Problem]:
        """See ``SignerSettings``."""
        yield from super().problems()
        if self.signer_name.startswith(BUILT_IN):
            reason = f"the signers of {BUILT_IN} sign for Kubernetes itself, and no SPIFFE ids: name one of your own"
            yield Problem("signerName", reason)
        elif _SIGNER.fullmatch(self.signer_name) is None:
            example = "clusterissuers.cert-manager.io/mesh"
            yield Problem("signerName", f"{self.signer_name!r} is not a signer's name, such as {example}")
        found = self.roots_from
        sources = [self.roots, found and found.config_map, found and found.cluster_trust_bundle]
        if sum(each is not None for each in sources) != 1:
            reason = "name one: a file in roots, or in rootsFrom a configMap or a clusterTrustBundle"
            yield Problem("rootsFrom" if found is not None else "roots", reason)
        try:
            load_access(self.kubeconfig, self.context)
        except KubernetesError as error:
            yield Problem("kubeconfig", str(error))
