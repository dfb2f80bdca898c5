"""The settings of access to the web port."""

from __future__ import annotations

from pathlib import Path

import attrs

from mesh_pilot.net.rpc import CertificateFiles


@attrs.frozen(kw_only=True)
class AccessSettings:
    """The callers that may use the web port, next to everybody on this machine where it is a loopback address."""

    token_file: Path | None = None
    """The roles of tokens and certificates; see ``roles``."""
    people_file: Path | None = None
    """The issuer that people log in at, and their roles; see ``people``."""
    tls: CertificateFiles | None = None
    """The port's certificate, and the CA of clients' certificates; None: plaintext."""
