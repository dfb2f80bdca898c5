"""SPIFFE identities as Istio forms them: ``spiffe://<trust domain>/ns/<namespace>/sa/<service account>``.

Source of the characters: SPIFFE, "The SPIFFE Identity", and Kubernetes' names of namespaces and service accounts. There
is one way to write an identity, so identities are compared as strings: no percent-encoding, no upper case.
"""

from __future__ import annotations

import re

import attrs

SCHEME = "spiffe://"
FORM = "spiffe://TRUST-DOMAIN/ns/NAMESPACE/sa/SERVICE-ACCOUNT"

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_TRUST_DOMAIN = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*")
_NAMESPACE = re.compile(_LABEL)
_SERVICE_ACCOUNT = re.compile(rf"{_LABEL}(\.{_LABEL})*")
MAX_TRUST_DOMAIN, MAX_NAMESPACE, MAX_SERVICE_ACCOUNT = 255, 63, 253
"""The longest of each, in characters."""


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
    match uri.removeprefix(SCHEME).split("/"):
        case [domain, "ns", namespace, "sa", account]:
            return make_identity(domain, namespace, account)
        case _:
            return None


def make_identity(trust_domain: str, namespace: str, service_account: str) -> Identity | None:
    """The identity of these names; None if one of them is not as SPIFFE and Kubernetes have it."""
    for text, form, longest in (
        (trust_domain, _TRUST_DOMAIN, MAX_TRUST_DOMAIN),
        (namespace, _NAMESPACE, MAX_NAMESPACE),
        (service_account, _SERVICE_ACCOUNT, MAX_SERVICE_ACCOUNT),
    ):
        if len(text) > longest or not form.fullmatch(text):
            return None
    return Identity(trust_domain, namespace, service_account)


def workload_path(namespace: str, service_account: str) -> str:
    """The path of a workload's SPIFFE id, without scheme and trust domain: ``ns/shop/sa/web``."""
    return f"ns/{namespace}/sa/{service_account}"


def qualified(path: str, trust_domain: str) -> str:
    """The SPIFFE id of a path, such as ``ns/shop/sa/web``, in a trust domain."""
    return f"{SCHEME}{trust_domain}/{path}"


def in_trust_domain(uri: str, trust_domain: str) -> str | None:
    """The same SPIFFE id in another trust domain; None for a string that is not an SPIFFE id with a path."""
    _, slash, path = uri.removeprefix(SCHEME).partition("/")
    return qualified(path, trust_domain) if uri.startswith(SCHEME) and slash else None
