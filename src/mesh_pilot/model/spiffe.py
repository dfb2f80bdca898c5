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
        return qualified(workload_path(self.namespace, self.service_account), self.trust_domain)


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


def workload_path(namespace: str, service_account: str) -> str:
    """The path of a workload's SPIFFE id, without scheme and trust domain: ``ns/shop/sa/web``."""
    return f"ns/{namespace}/sa/{service_account}"


def qualified(path: str, trust_domain: str) -> str:
    """The SPIFFE id of a path, such as ``ns/shop/sa/web``, in a trust domain."""
    return f"{SCHEME}{trust_domain}/{path}"


def in_trust_domain(uri: str, trust_domain: str) -> str | None:
    """The same SPIFFE id in another trust domain; None for a text that is no SPIFFE id with a path."""
    _, slash, path = uri.removeprefix(SCHEME).partition("/")
    return qualified(path, trust_domain) if uri.startswith(SCHEME) and slash else None
