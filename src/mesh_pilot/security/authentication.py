"""Which workload a stream is: what its connection proves, against what its node claims.

A client certificate proves its SPIFFE id (SPIFFE, "X.509-SVID": it has exactly one), which must be of the mesh's trust
domain; the node must be of that namespace and service account. A peer on this machine (loopback or a Unix socket) that
shows no certificate is taken at its word where the operator allows that. Any other peer has no identity: it is served
configuration, but no private key.

The namespace that counts is the one that configuration is generated for: metadata NAMESPACE, else that of the node id.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable

import attrs

from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.spiffe import Identity, parse_identity

DEFAULT_ACCOUNT = "default"


class AuthenticationError(Exception):
    """A certificate that is not of this mesh, or not of the workload that the node claims, for the proxy's operator."""


@attrs.frozen
class Shown:
    """The evidence of a connection about its peer."""

    address: str
    """``host:port`` or ``unix:///path``."""
    certificate: bool = False
    """True if the peer has a verified client certificate."""
    spiffe_ids: tuple[str, ...] = ()
    """The ``spiffe://`` names of that certificate."""


@attrs.frozen
class Verdict:
    """The identity of a stream, or why it has none."""

    identity: str = ""
    """A SPIFFE id of the mesh's own trust domain; empty where nothing vouches for one."""
    reason: str = ""
    """Why there is no identity."""


@attrs.frozen
class Authentication:
    """The rules by which streams are identified."""

    trust_local: bool = True
    """Peers on this machine need no certificate: the identity in their node is believed."""

    def verdict(self, proxy: Proxy, shown: Shown, *, trust_domain: str, aliases: Collection[str] = ()) -> Verdict:
        """The identity of a stream. ``aliases`` are further names of the mesh's ``trust_domain``.

        Raises AuthenticationError if the certificate is of another trust domain or another workload.
        """
        account = proxy.text("SERVICE_ACCOUNT")
        if shown.certificate:
            if len(shown.spiffe_ids) != 1:
                found = f"{len(shown.spiffe_ids)} SPIFFE names" if shown.spiffe_ids else "no SPIFFE name"
                return Verdict(reason=f"its certificate has {found}; exactly one is needed")
            proven = _proven(proxy, account, shown.spiffe_ids[0], {trust_domain, *aliases})
            return Verdict(str(attrs.evolve(proven, trust_domain=trust_domain)))
        if not is_local(shown.address):
            return Verdict(reason="it shows no certificate and is not on this machine")
        if not self.trust_local:
            return Verdict(reason="it shows no certificate, and proxies on this machine are not trusted without one")
        return Verdict(str(Identity(trust_domain, proxy.namespace, account or DEFAULT_ACCOUNT)))


def _proven(proxy: Proxy, account: str, spiffe_id: str, trust_domains: Collection[str]) -> Identity:
    identity = parse_identity(spiffe_id)
    if identity is not None and identity.trust_domain not in trust_domains:
        raise AuthenticationError(
            f"node {proxy.id}: its certificate is for {spiffe_id}, and {identity.trust_domain} is not a trust domain "
            f"of this mesh ({', '.join(sorted(trust_domains))}); if it should be one, add it to trustDomainAliases"
        )
    is_namespace = identity is not None and identity.namespace == proxy.namespace
    if identity is None or not is_namespace or (account and identity.service_account != account):
        claimed = f"namespace {proxy.namespace}" + (f", service account {account}" if account else "")
        raise AuthenticationError(f"node {proxy.id} claims {claimed}, but its certificate is for {spiffe_id}")
    return identity


def is_foreign(spiffe_ids: Iterable[str], trust_domains: Collection[str]) -> bool:
    """True if any of these SPIFFE ids is of another trust domain."""
    identities = map(parse_identity, spiffe_ids)
    return any(identity is None or identity.trust_domain not in trust_domains for identity in identities)


def is_local(address: str) -> bool:
    """True if a peer's address is on this machine: loopback or a Unix socket."""
    if address.startswith("unix:"):
        return True
    host = address.rpartition(":")[0].strip("[]")
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    return ip.is_loopback
