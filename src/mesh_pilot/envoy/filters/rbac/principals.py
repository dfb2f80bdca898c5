"""Who a caller is, as Envoy knows it: the identity in the client's certificate, and what its token says.

An identity is ``spiffe://TRUST-DOMAIN/ns/NAMESPACE/sa/ACCOUNT``; policies write it without the scheme. A token's
claims are where the filter ``jwt_authn`` leaves them once it has found the token good.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from envoy.config.rbac.v3.rbac_pb2 import Principal
from envoy.type.matcher.v3 import string_pb2, value_pb2

from mesh_pilot.envoy.core.protobuf import exact, prefix, regex, suffix
from mesh_pilot.envoy.filters.rbac.matchers import (
    ANY,
    ANYTHING,
    glob,
    header,
    metadata,
    quoted,
    subnet,
    text,
    text_or_member,
)
from mesh_pilot.mesh.names import JWT_FILTER, JWT_PAYLOAD
from mesh_pilot.security.spiffe import SCHEME

LOCAL_DOMAIN = "cluster.local"
"""In a policy: the mesh's own trust domain, whatever its name."""


def certificate(matcher: string_pb2.StringMatcher) -> Principal:
    """The identity in the client's certificate is like this."""
    return Principal(authenticated=Principal.Authenticated(principal_name=matcher))


def identity(value: str) -> Principal:
    """``source.principal``."""
    if value == ANY:
        return certificate(regex(ANYTHING))
    if value.startswith(ANY):
        return certificate(regex(f"{SCHEME}.*{quoted(value.removeprefix(ANY))}"))
    if value.endswith(ANY):
        return certificate(prefix(SCHEME + value.removesuffix(ANY)))
    return certificate(exact(SCHEME + value))


def namespace(value: str) -> Principal:
    """``source.namespace``; a ``*`` may be anywhere."""
    return certificate(regex(f".*/ns/{glob(value)}/.*"))


def service_account(value: str, own_namespace: str) -> Principal:
    """``source.serviceAccount``: ``account`` (of the policy's namespace) or ``namespace/account``."""
    where, _, account = value.rpartition("/")
    return certificate(regex(f"{SCHEME}[^/]+/ns/{quoted(where or own_namespace)}/sa/{quoted(account)}"))


def trust_domain(value: str) -> Principal:
    """The trust domain of the identity."""
    anything = "[^/]+" if value == ANY else glob(value, "[^/]*")
    return certificate(regex(f"{SCHEME}{anything}/.*"))


def with_aliases(values: Iterable[str], trust_domains: tuple[str, ...]) -> tuple[str, ...]:
    """Identities under each name that the mesh's trust domain has, where they are under one of these."""
    found: dict[str, None] = {}
    for value in values:
        domain, slash, rest = value.partition("/")
        if not slash or domain == ANY or not _is_ours(domain, trust_domains):
            found[value] = None
            continue
        for name in trust_domains:
            found[value if _covers(domain, name) else f"{name}/{rest}"] = None
    return tuple(found)


def _is_ours(domain: str, trust_domains: tuple[str, ...]) -> bool:
    return domain == LOCAL_DOMAIN or any(_covers(domain, name) for name in trust_domains)


def _covers(domain: str, name: str) -> bool:
    return name.endswith(domain.removeprefix(ANY)) if domain.startswith(ANY) else name == domain


def claim(path: tuple[str, ...], value: value_pb2.ValueMatcher) -> Principal:
    """The request has a good token with a claim like this."""
    return Principal(metadata=metadata(JWT_FILTER, (JWT_PAYLOAD, *path), value))


def claim_text(path: tuple[str, ...], value: str) -> Principal:
    """A claim that is this text, or a list that has it."""
    return claim(path, text_or_member(text(value)))


def request_identity(value: str) -> Principal:
    """``request.auth.principal``: ``ISSUER/SUBJECT``, in any of the four forms.

    Either part may hold slashes, so that each slash of a value (behind its scheme) may be the one between them.
    """
    if value == ANY:
        return _claimed("sub", regex(ANYTHING))
    found = [Principal(and_ids=Principal.Set(ids=both)) if len(both) > 1 else both[0] for both in _splits(value)]
    return found[0] if len(found) == 1 else Principal(or_ids=Principal.Set(ids=found))


def _splits(value: str) -> Iterator[list[Principal]]:
    """The ways in which an issuer and a subject make up a value."""
    if value.startswith(ANY):
        tail = value.removeprefix(ANY)
        # The subject alone may end so; otherwise the issuer ends at one of the slashes.
        yield [_claimed("sub", suffix(tail))]
        for issuer, subject in _at_slashes(tail):
            yield (
                [_claimed("iss", suffix(issuer)), _claimed("sub", exact(subject))]
                if issuer
                else [_claimed("sub", exact(subject))]
            )
    elif value.endswith(ANY):
        head = value.removesuffix(ANY)
        yield [_claimed("iss", prefix(head)), _claimed("sub", regex(ANYTHING))]
        for issuer, subject in _at_slashes(head):
            if issuer:
                yield [_claimed("iss", exact(issuer)), _claimed("sub", prefix(subject) if subject else regex(ANYTHING))]
    else:
        found = [(issuer, subject) for issuer, subject in _at_slashes(value) if issuer and subject]
        # Without a slash it is nobody: an issuer and a subject always have one between them.
        for issuer, subject in found or [(value, "")]:
            yield [_claimed("iss", exact(issuer)), _claimed("sub", exact(subject))]


def _at_slashes(value: str) -> Iterator[tuple[str, str]]:
    scheme, separator, rest = value.partition("://")
    start = f"{scheme}{separator}" if separator else ""
    rest = rest if separator else value
    for index, letter in enumerate(rest):
        if letter == "/":
            yield start + rest[:index], rest[index + 1 :]


def _claimed(name: str, matcher: string_pb2.StringMatcher) -> Principal:
    return claim((name,), value_pb2.ValueMatcher(string_match=matcher))


# -- the attributes of ``when``

HEADERS = "request.headers"


def source_ip(value: str) -> Principal:
    """``source.ip``: of the connection."""
    return Principal(direct_remote_ip=subnet(value))


def remote_ip(value: str) -> Principal:
    """``remote.ip``: of the client, as trusted proxies tell it."""
    return Principal(remote_ip=subnet(value))


def _header(name: str, value: str) -> Principal:
    return Principal(header=header(name, value))


def _in_brackets(key: str) -> tuple[str, ...]:
    """``request.auth.claims[a][b]``: ``a`` and ``b``."""
    return tuple(key.partition("[")[2].removesuffix("]").split("]["))


OF_CONNECTION: dict[str, Callable[[str], Principal]] = {
    "source.ip": source_ip,
    "remote.ip": remote_ip,
    "source.namespace": namespace,
    "source.trustDomain": trust_domain,
}
"""By attribute: what compares it with a value."""

OF_REQUEST: dict[str, Callable[[str], Callable[[str], Principal]]] = {
    HEADERS: lambda key: partial(_header, _in_brackets(key)[0]),
    "request.auth.principal": lambda key: request_identity,
    "request.auth.audiences": lambda key: partial(claim_text, ("aud",)),
    "request.auth.presenter": lambda key: partial(claim_text, ("azp",)),
    "request.auth.claims": lambda key: partial(claim_text, _in_brackets(key)),
}
"""By attribute: what makes of the whole key what compares it with a value."""


def is_hidden_in_grpc(key: str) -> bool:
    """Whether a gRPC server can't look at this attribute of a request: it sees no tokens, nor headers of gRPC's own."""
    return not key.startswith(HEADERS) or _in_brackets(key)[0].lower().startswith("grpc-")
