"""Which workload a stream is: what its connection proves, against what its node claims.

A client certificate proves its SPIFFE id, and the node must be of that namespace and service account. A plaintext
peer on this machine (loopback or a Unix socket) is taken at its word where the operator allows that; any other
plaintext peer has no identity: it is served configuration, but no private key.
"""

from __future__ import annotations

import ipaddress

import attrs

from mesh_pilot.model.proxy import Proxy
from mesh_pilot.security.spiffe import Identity, parse_identity

DEFAULT_ACCOUNT = "default"


class AuthenticationError(Exception):
    """A node that claims to be what its certificate does not say, for the proxy's operator."""


@attrs.frozen
class Authentication:
    """The rules by which streams are identified."""

    trust_local: bool = True
    """Whether plaintext peers on this machine are taken at their word."""

    def identity(self, proxy: Proxy, trust_domain: str, *, address: str, spiffe_ids: tuple[str, ...]) -> str:
        """The SPIFFE id of a stream's workload, empty where nothing vouches for one.

        ``address`` is the peer's, ``host:port`` or ``unix:///path``; ``spiffe_ids`` are those of its verified
        certificate. Raises AuthenticationError where the certificate is another workload's.
        """
        account = proxy.text("SERVICE_ACCOUNT")
        if spiffe_ids:
            return _proven(proxy, account, spiffe_ids)
        if self.trust_local and is_local(address):
            return str(Identity(trust_domain, proxy.namespace, account or DEFAULT_ACCOUNT))
        return ""


def _proven(proxy: Proxy, account: str, spiffe_ids: tuple[str, ...]) -> str:
    for uri in spiffe_ids:
        identity = parse_identity(uri)
        if identity is None or identity.namespace != proxy.namespace:
            continue
        if account and identity.service_account != account:
            continue
        return uri
    claimed = f"namespace {proxy.namespace}" + (f", service account {account}" if account else "")
    raise AuthenticationError(f"node {proxy.id} claims {claimed}, but its certificate is for {', '.join(spiffe_ids)}")


def is_local(address: str) -> bool:
    """Whether a peer's address is of this machine: loopback, or a Unix socket."""
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
