"""The flags about who is calling, and the certificates that callers ask for."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from mesh_pilot.cli.options import ListOption, words
from mesh_pilot.model.spiffe import make_identity

if TYPE_CHECKING:
    from mesh_pilot.identity.certificates.settings import CallerSettings


def _networks(text: str) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
    try:
        return tuple(map(ipaddress.ip_network, words(text)))
    except ValueError as error:
        raise click.BadParameter(f"{error}; write networks as 10.1.0.0/16, with commas between") from None


def _accounts(text: str) -> frozenset[tuple[str, str]]:
    found = set()
    for part in words(text):
        namespace, _, account = part.partition("/")
        if make_identity("any", namespace, account) is None:
            raise click.BadParameter(f"{part!r} is not NAMESPACE/SERVICE-ACCOUNT")
        found.add((namespace, account))
    return frozenset(found)


FLAGS: Sequence[tuple[str, Mapping[str, Any]]] = (
    (
        "--trusted-gateway-cidrs",
        {
            "cls": ListOption,
            "type": _networks,
            "default": "",
            "metavar": "NETWORK,...",
            "help": "Networks of proxies that end TLS for their clients:"
            " their x-forwarded-client-cert is believed.  [default: none]",
        },
    ),
    (
        "--trusted-gateway",
        {
            "cls": ListOption,
            "type": _accounts,
            "default": "",
            "metavar": "NAMESPACE/ACCOUNT,...",
            "help": "Service accounts of such proxies, by their own client certificates.  [default: none]",
        },
    ),
    (
        "--certificates-per-second",
        {
            "type": click.FloatRange(min=0),
            "default": 10.0,
            "help": "Certificates signed for one identity at one address; ten times as many at once.  0: no limit.",
        },
    ),
)


def take_caller_settings(options: MutableMapping[str, Any]) -> CallerSettings:
    """The settings that were given, taken out of the options of the command."""
    from mesh_pilot.identity.authenticators.xfcc import TrustedGateways
    from mesh_pilot.identity.certificates.settings import CallerSettings

    networks = options.pop("trusted_gateway_cidrs")
    identities = options.pop("trusted_gateway")
    return CallerSettings(
        trusted_gateways=TrustedGateways(networks, identities),
        certificates_per_second=options.pop("certificates_per_second"),
    )
