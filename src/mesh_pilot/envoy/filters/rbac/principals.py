"""Principals of Envoy's RBAC: conditions on the caller's address, its certificate and the claims of its token.

The identity in a certificate is ``spiffe://TRUST-DOMAIN/ns/NAMESPACE/sa/ACCOUNT``; policies write it without the
scheme. The claims of a valid token are in the dynamic metadata of the filter ``jwt_authn``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from envoy.config.rbac.v3.rbac_pb2 import Principal
from envoy.type.matcher.v3 import string_pb2, value_pb2

from mesh_pilot.envoy.core.protobuf import exact, prefix, regex, suffix
from mesh_pilot.envoy.filters.jwt_authn import JWT_AUTHN_NAME, JWT_PAYLOAD
from mesh_pilot.envoy.filters.rbac.matchers import (
    NON_EMPTY,
    WILDCARD,
    glob,
    header,
    metadata,
    quoted,
    subnet,
    text,
    text_or_member,
)
from mesh_pilot.model.spiffe import SCHEME

LOCAL_DOMAIN = "cluster.local"
"""In policies, an alias of the mesh's trust domain."""


def certificate(matcher: string_pb2.StringMatcher) -> Principal:
    """A caller with a matching identity in its certificate."""
    return Principal(authenticated=Principal.Authenticated(principal_name=matcher))


def identity(value: str) -> Principal:
    """``source.principal``."""
    if value == WILDCARD:
        return certificate(regex(NON_EMPTY))
    if value.startswith(WILDCARD):
        return certificate(regex(f"{SCHEME}.*{quoted(value.removeprefix(WILDCARD))}"))
    if value.endswith(WILDCARD):
        return certificate(prefix(SCHEME + value.removesuffix(WILDCARD)))
    return certificate(exact(SCHEME + value))


def namespace(value: str) -> Principal:
    """``source.namespace``; wildcards may be anywhere in it."""
    return certificate(regex(f".*/ns/{glob(value)}/.*"))


def service_account(value: str, policy_namespace: str) -> Principal:
    """``source.serviceAccount``: ``account`` (of the policy's namespace) or ``namespace/account``."""
    account_namespace, _, account = value.rpartition("/")
    inside = quoted(account_namespace or policy_namespace)
    # As in Istio: an identity may have more segments, and a rule that excludes an account excludes it with them.
    return certificate(regex(f"{SCHEME}.+/ns/{inside}/(.+/|)sa/{quoted(account)}(/.+)?"))


def trust_domain(value: str) -> Principal:
    """``source.trustDomain``: that of the identity."""
    domain = "[^/]+" if value == WILDCARD else glob(value, "[^/]*")
    return certificate(regex(f"{SCHEME}{domain}/.*"))


def with_aliases(values: Iterable[str], trust_domains: tuple[str, ...]) -> tuple[str, ...]:
    """Identities in all spellings: those of the mesh's trust domain under its own name and under each alias.

    ``trust_domains`` are the mesh's own, then its aliases.
    """
    spellings: dict[str, None] = {}
    for value in values:
        domain, slash, rest = value.partition("/")
        if not slash or domain == WILDCARD or not _is_ours(domain, trust_domains):
            spellings[value] = None
            continue
        for name in trust_domains:
            spellings[value if _covers(domain, name) else f"{name}/{rest}"] = None
    return tuple(spellings)


def _is_ours(domain: str, trust_domains: tuple[str, ...]) -> bool:
    return domain == LOCAL_DOMAIN or any(_covers(domain, name) for name in trust_domains)


def _covers(domain: str, name: str) -> bool:
    return name.endswith(domain.removeprefix(WILDCARD)) if domain.startswith(WILDCARD) else name == domain


def claim(path: tuple[str, ...], value: value_pb2.ValueMatcher) -> Principal:
    """A caller with a matching claim in its valid token."""
    return Principal(metadata=metadata(JWT_AUTHN_NAME, (JWT_PAYLOAD, *path), value))


def claim_text(path: tuple[str, ...], value: str) -> Principal:
    """A caller with a claim that is this text, or a list with this member."""
    return claim(path, text_or_member(text(value)))


def request_identity(value: str) -> Principal:
    """``request.auth.principal``: ``ISSUER/SUBJECT``, in any of the four forms.

    The last slash is between them, as issuers are URLs. A condition on ``request.auth.claims[sub]`` can name a subject
    that has a slash.
    """
    issuer, slash, subject = value.rpartition("/") if "/" in value else (value, "", "")
    anything = regex(NON_EMPTY)
    match value:
        case "*":
            wanted = anything, anything
        case _ if value.startswith(WILDCARD) and slash:
            wanted = anything if issuer == WILDCARD else suffix(issuer.removeprefix(WILDCARD)), exact(subject)
        case _ if value.startswith(WILDCARD):
            wanted = anything, suffix(value.removeprefix(WILDCARD))
        case _ if value.endswith(WILDCARD) and slash:
            wanted = exact(issuer), anything if subject == WILDCARD else prefix(subject.removesuffix(WILDCARD))
        case _ if value.endswith(WILDCARD):
            wanted = prefix(value.removesuffix(WILDCARD)), anything
        case _:
            wanted = exact(issuer), exact(subject)
    both = [_claimed(name, matcher) for name, matcher in zip(("iss", "sub"), wanted, strict=True)]
    return Principal(and_ids=Principal.Set(ids=both))


def _claimed(name: str, matcher: string_pb2.StringMatcher) -> Principal:
    return claim((name,), value_pb2.ValueMatcher(string_match=matcher))


# -- the keys of ``when``

HEADERS_KEY = "request.headers"


def source_ip(value: str) -> Principal:
    """``source.ip``: the peer address of the connection."""
    return Principal(direct_remote_ip=subnet(value))


def remote_ip(value: str) -> Principal:
    """``remote.ip``: the original client, as trusted proxies report it."""
    return Principal(remote_ip=subnet(value))


def _header(name: str, value: str) -> Principal:
    return Principal(header=header(name, value))


def _in_brackets(key: str) -> tuple[str, ...]:
    """``request.auth.claims[a][b]``: ``a`` and ``b``."""
    return tuple(key.partition("[")[2].removesuffix("]").split("]["))


CONNECTION_KEYS: dict[str, Callable[[str], Principal]] = {
    "source.ip": source_ip,
    "remote.ip": remote_ip,
    "source.namespace": namespace,
    "source.trustDomain": trust_domain,
}
"""Keys about connections, each with the builder of a principal from a value."""

REQUEST_KEYS: dict[str, Callable[[str], Callable[[str], Principal]]] = {
    HEADERS_KEY: lambda key: partial(_header, key.removeprefix(f"{HEADERS_KEY}[").removesuffix("]")),
    "request.auth.principal": lambda key: request_identity,
    "request.auth.audiences": lambda key: partial(claim_text, ("aud",)),
    "request.auth.presenter": lambda key: partial(claim_text, ("azp",)),
    "request.auth.claims": lambda key: partial(claim_text, _in_brackets(key)),
}
"""Keys about requests (up to a bracket), each with a function from the whole key to the builder."""


def is_unsupported_by_grpc(key: str) -> bool:
    """True if proxyless gRPC servers cannot check the key: they see no tokens and no header of gRPC itself."""
    return not key.startswith(HEADERS_KEY) or _in_brackets(key)[0].lower().startswith("grpc-")
