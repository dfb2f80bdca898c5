"""Flags of ``mesh-pilot discovery`` about who may use its web port and its API."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from mesh_pilot.ops.access.settings import AccessSettings

_PATH = click.Path(path_type=Path)

FLAGS: Sequence[tuple[str, Mapping[str, Any]]] = (
    (
        "--api-token-file",
        {
            "type": _PATH,
            "help": "File with a line ROLE TOKEN NAME for each caller (docs/api.md); may change.",
        },
    ),
    ("--api-tls-cert", {"type": _PATH, "help": "PEM file of the certificate of --http-addr: serves HTTPS there."}),
    ("--api-tls-key", {"type": _PATH, "help": "PEM file of its key."}),
    ("--api-client-ca", {"type": _PATH, "help": "PEM file of a CA of clients, which --api-token-file gives roles."}),
)
"""Each flag with what click takes of it."""


def take_access(settings: MutableMapping[str, Any]) -> AccessSettings:
    """The settings, of which the flags are taken out. Raises UsageError."""
    token_file, certificate = settings.pop("api_token_file"), settings.pop("api_tls_cert")
    key, client_ca = settings.pop("api_tls_key"), settings.pop("api_client_ca")
    if bool(certificate) != bool(key):
        raise click.UsageError("a certificate for --http-addr needs both of --api-tls-cert and --api-tls-key")
    if client_ca and not certificate:
        raise click.UsageError("--api-client-ca needs --api-tls-cert and --api-tls-key: certificates come over TLS")
    if client_ca and not token_file:
        raise click.UsageError("--api-client-ca needs --api-token-file, with lines such as: view certificate NAME")
    from mesh_pilot.net.rpc.tls import CertificateFiles
    from mesh_pilot.ops.access.settings import AccessSettings

    tls = CertificateFiles(certificate=certificate, key=key, trusted=client_ca) if certificate else None
    return AccessSettings(token_file=token_file, tls=tls)
