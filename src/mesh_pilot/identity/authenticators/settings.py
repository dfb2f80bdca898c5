"""Settings of callers, their tokens, and the certificates that they ask for."""

from __future__ import annotations

import ipaddress
from functools import partial
from pathlib import Path

import attrs

from mesh_pilot.model.flags import flag, group

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

JOIN_TOKENS = "join-tokens"
"""Name of the folder of join tokens in the CA's folder."""

DEFAULT_RATE = 10.0

_flag = partial(flag, section="Certificates")


def networks(text: str) -> tuple[Network, ...]:
    """Networks with commas between. Raises ValueError."""
    try:
        return tuple(map(ipaddress.ip_network, text.replace(",", " ").split()))
    except ValueError as error:
        raise ValueError(f"{error}; write networks as 10.1.0.0/16, with commas between") from None


def accounts(text: str) -> frozenset[tuple[str, str]]:
    """Namespaces and service accounts, ``shop/web,shop/edge``. Raises ValueError."""
    from mesh_pilot.model.spiffe import make_identity

    found = set()
    for part in text.replace(",", " ").split():
        namespace, _, account = part.partition("/")
        if make_identity("any", namespace, account) is None:
            raise ValueError(f"{part!r} is not NAMESPACE/SERVICE-ACCOUNT")
        found.add((namespace, account))
    return frozenset(found)


@attrs.frozen
class TrustedGateways:
    """The proxies whose word is taken about their clients."""

    networks: tuple[Network, ...] = _flag(
        "--trusted-gateway-cidrs",
        kind=networks,
        default=(),
        text="",
        adds_up=True,
        metavar="NETWORK,...",
        help="Networks of proxies that end TLS: their x-forwarded-client-cert is believed.  [default: none]",
        doc="Networks of proxies that end TLS: their "
        "[`x-forwarded-client-cert`](certificate-requests.md#behind-a-proxy) is believed.",
    )
    """The addresses that they connect from."""
    identities: frozenset[tuple[str, str]] = _flag(
        "--trusted-gateway",
        kind=accounts,
        default=frozenset(),
        text="",
        adds_up=True,
        metavar="NAMESPACE/ACCOUNT,...",
        help="Service accounts of such proxies.  [default: none]",
    )


@attrs.frozen(kw_only=True)
class CallerSettings:
    trusted_gateways: TrustedGateways = group(TrustedGateways)
    certificates_per_second: float = _flag(
        "--certificates-per-second",
        default=DEFAULT_RATE,
        least=0,
        help="Certificates signed for one identity at one address; ten times as many at once.  0: no limit.",
        doc="[Certificates](certificate-requests.md) for one identity at one address; ten times as many at "
        "once. 0: no limit.",
    )


@attrs.frozen
class JoinTokenSettings:
    """The settings of join tokens."""

    folder: Path | None = _flag(
        "--token-dir",
        help="Folder of join tokens (mesh-pilot token).  [default: join-tokens in --ca-dir]",
        doc="Folder of [join tokens](security.md#join-tokens); without one none are taken.",
    )
    """The record and the keys are there; None: in the CA's folder, if there is one."""

    def within(self, ca_folder: Path | None) -> Path | None:
        """The folder; None where join tokens are not taken."""
        return self.folder or (ca_folder / JOIN_TOKENS if ca_folder else None)
