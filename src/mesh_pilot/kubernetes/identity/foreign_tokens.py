"""Authenticators of tokens that others made, in the order in which they are asked."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from mesh_pilot.consul.identity.authenticator import ConsulToken
from mesh_pilot.identity.authenticators.jwt import JsonWebToken
from mesh_pilot.identity.authenticators.token_issuers import read_issuers
from mesh_pilot.identity.authenticators.token_questions import TIMEOUT_SECONDS
from mesh_pilot.identity.trust.callers import Authenticator, TrustDomainsNow

if TYPE_CHECKING:
    from mesh_pilot.consul.identity.authenticator import ConsulTokenSettings
    from mesh_pilot.kubernetes.identity.token_review import KubernetesTokenSettings


@attrs.frozen(kw_only=True)
class ForeignTokenSettings:
    """The tokens of others that are accepted; a kind without settings is not."""

    jwt_rules: Path | None = None
    """The file of issuers; see ``authenticators.token_issuers``."""
    kubernetes: KubernetesTokenSettings | None = None
    consul: ConsulTokenSettings | None = None


def foreign_token_authenticators(
    settings: ForeignTokenSettings, trust_domains: TrustDomainsNow
) -> tuple[Authenticator, ...]:
    """The authenticators. One of a kind that is not accepted says so. Raises TokenIssuerError and KubernetesError."""
    issuers = read_issuers(settings.jwt_rules) if settings.jwt_rules else ()
    found: list[Authenticator] = [JsonWebToken(issuers, trust_domains, is_last=settings.kubernetes is None)]
    if settings.kubernetes is not None:
        from mesh_pilot.kubernetes.apiserver import ApiClient, load_access
        from mesh_pilot.kubernetes.identity.token_review import KubernetesToken

        access = load_access(settings.kubernetes.kubeconfig, flag="--kubernetes-kubeconfig")
        others = [issuer.issuer for issuer in issuers]
        client = partial(ApiClient, access, answer_seconds=TIMEOUT_SECONDS)
        found.append(KubernetesToken(client, settings.kubernetes.audiences, trust_domains, other_issuers=others))
    return (*found, ConsulToken(settings.consul, trust_domains))
