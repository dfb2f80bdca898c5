"""SPIFFE identities as Istio forms them: ``spiffe://<trust domain>/ns/<namespace>/sa/<service account>``."""

from __future__ import annotations

import attrs

SCHEME = "spiffe://"


@attrs.frozen
class Identity:
    """A workload's name in the mesh."""

    trust_domain: str
    namespace: str
    service_account: str

    def __str__(self) -> str:
        return f"{SCHEME}{self.trust_domain}/ns/{self.namespace}/sa/{self.service_account}"


def parse_identity(uri: str) -> Identity | None:
    """The identity that a SPIFFE id of Istio's form names, or None for any other string."""
    if not uri.startswith(SCHEME):
        return None
    parts = uri.removeprefix(SCHEME).split("/")
    match parts:
        case [domain, "ns", namespace, "sa", account] if domain and namespace and account:
            return Identity(domain, namespace, account)
        case _:
            return None
