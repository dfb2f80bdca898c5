"""Flags of ``mesh-pilot discovery`` for the built-in CA."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mesh_pilot.cli.options import ListOption, duration, words

if TYPE_CHECKING:
    from mesh_pilot.identity.authority.settings import AuthoritySettings

CA_FLAGS: Sequence[tuple[str, Mapping[str, Any]]] = (
    (
        "--ca-dir",
        {
            "type": click.Path(path_type=Path),
            "help": "Folder of the CA, such as Istio's cacerts; if empty, it gets a root."
            "  [default: ca in --state-dir; with --no-state a root for this run]",
        },
    ),
    (
        "--workload-cert-ttl",
        {"type": duration, "default": "24h", "help": "Lifetime of certificates where nobody asks for another."},
    ),
    (
        "--max-workload-cert-ttl",
        {"type": duration, "default": "2160h", "help": "Longest lifetime that a workload may ask for."},
    ),
    (
        "--tls-dns-names",
        {
            "cls": ListOption,
            "default": "",
            "metavar": "NAME,...",
            "help": "DNS names and IP addresses in the server's certificate that the CA signs where there is no"
            " --tls-cert.  [default: istiod.NAMESPACE.svc, mesh-pilot.NAMESPACE.svc, mesh-pilot, the host's, localhost,"
            " addresses listened on, the host of discoveryAddress]",
        },
    ),
)


def take_ca(options: MutableMapping[str, Any]) -> tuple[AuthoritySettings, tuple[str, ...]]:
    """The settings and DNS names that were given, taken out of the options of the command."""
    from mesh_pilot.identity.authority.settings import AuthoritySettings

    ttl, longest = options.pop("workload_cert_ttl"), options.pop("max_workload_cert_ttl")
    if not 0 < ttl <= longest:
        raise click.UsageError("--workload-cert-ttl must be over 0 and at most --max-workload-cert-ttl")
    names = words(options.pop("tls_dns_names"))
    settings = AuthoritySettings(
        workload_cert_ttl=timedelta(seconds=ttl), max_workload_cert_ttl=timedelta(seconds=longest)
    )
    return settings, names
