"""Callers behind a proxy that ends their TLS and tells whose certificate it saw, in ``x-forwarded-client-cert``.

The header counts only from a proxy that is trusted: by its address, or by its own client certificate. Of several
elements the last is that proxy's own word; those before it came from its client. Source: Envoy, "HTTP header
manipulation", x-forwarded-client-cert.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator
from datetime import datetime

from mesh_pilot.identity.authenticators.client_certificate import identity_in
from mesh_pilot.identity.authenticators.settings import Network, TrustedGateways
from mesh_pilot.identity.trust.callers import AuthenticationError, Authenticator, Credentials, TrustDomainsNow, host_of
from mesh_pilot.model.spiffe import SCHEME, Identity

HEADER = "x-forwarded-client-cert"


class ForwardedCertificate:
    """Judges the header. It comes before the client certificate in the chain, which is the proxy's own.

    Whoever a trusted proxy speaks for is not the proxy: what is wrong with the header is final.
    """

    name = "xfcc"

    def __init__(
        self,
        trusted: TrustedGateways,
        trust_domains: TrustDomainsNow,
        own: Authenticator,
        revoked_until: Callable[[Identity], datetime | None] = lambda _: None,
    ) -> None:
        """``own`` judges the proxy's own certificate; ``revoked_until``: see `Authentication`."""
        self._revoked_until = revoked_until
        self._trusted = trusted
        self._trust_domains = trust_domains
        self._own = own

    async def authenticate(self, credentials: Credentials) -> Identity | None:
        header = ",".join(credentials.metadata.get(HEADER, ()))
        if HEADER not in credentials.metadata:
            return None
        if not await self._is_trusted(credentials):
            raise AuthenticationError(
                "xfcc_stranger",
                f"it sends {HEADER}, and is not a gateway that may: neither its address nor its certificate is named",
            )
        try:
            last = list(elements(header))[-1]
            uris = tuple(value for key, value in last if key == "uri" and value.startswith(SCHEME))
            return identity_in(uris, self._trust_domains())
        except ValueError as error:
            raise AuthenticationError("xfcc_form", f"its {HEADER} {error}", is_final=True) from None
        except AuthenticationError as error:
            raise AuthenticationError(error.reason, str(error), is_final=True) from None

    async def _is_trusted(self, credentials: Credentials) -> bool:
        if _is_within(credentials.address, self._trusted.networks):
            return True
        if credentials.certificate is None or not self._trusted.identities:
            return False
        try:
            own = await self._own.authenticate(credentials)
        except AuthenticationError:
            return False
        if own is None or self._revoked_until(own) is not None:
            return False
        return (own.namespace, own.service_account) in self._trusted.identities


def _is_within(address: str, networks: tuple[Network, ...]) -> bool:
    try:
        ip = ipaddress.ip_address(host_of(address).strip("[]"))
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    return any(ip in network for network in networks)


_PAIR = re.compile(r'\s*([A-Za-z]+)=(?:"((?:[^"\\]|\\.)*)"\s*|([^",;=]*))([,;]|$)')


def elements(header: str) -> Iterator[list[tuple[str, str]]]:
    """The elements of the header, each its pairs of lower-case key and value. Raises ValueError."""
    pairs: list[tuple[str, str]] = []
    at, separator = 0, ","
    while separator:
        found = _PAIR.match(header, at)
        if found is None:
            raise ValueError(f"is not of Envoy's form from character {at} on")
        key, quoted, plain, separator = found.groups()
        value = re.sub(r"\\(.)", r"\1", quoted) if quoted is not None else plain.strip()
        pairs.append((key.lower(), value))
        if separator != ";":
            yield pairs
            pairs = []
        at = found.end()
