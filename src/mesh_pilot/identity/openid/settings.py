"""The issuer that people log in at, and the client that is registered there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import attrs

SCOPES = ("openid", "profile", "email", "groups")
"""The scopes that are requested if the issuer says that it supports them; ``openid`` always."""

OFFLINE = "offline_access"
"""The scope that some issuers want before they give a refresh token."""


@attrs.frozen(kw_only=True)
class ClientSettings:
    """A client of an OpenID Connect issuer."""

    issuer: str
    """The URL that is the claim ``iss``, without ``/.well-known``."""
    client_id: str
    client_secret_file: Path | None = None
    """Read at each use. None: a public client, which PKCE protects."""
    scopes: Sequence[str] = ()
    """Empty: those of `SCOPES` that the issuer supports."""
    ca_file: Path | None = None
    """The CA of its server; None: those that the system trusts."""
    allow_http: bool = False
    """True if the issuer may be asked over plain HTTP."""
