"""The settings of a Vault or OpenBao server that signs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import attrs

from mesh_pilot.identity.signers.settings import HttpSettings, address_problem, setting
from mesh_pilot.model.config import Problem


@attrs.frozen(kw_only=True)
class AppRole:
    """A login with AppRole."""

    role_id: str = setting("roleId")
    secret_id_file: Path = setting("secretIdFile")
    """Read at each login."""
    mount: str = setting("mount", "approle")


@attrs.frozen(kw_only=True)
class VaultSettings(HttpSettings):
    """``kind: vault``: a server, a role of its PKI secrets engine, and one way to log in."""

    role: str = setting("role")
    mount: str = setting("mount", "pki")
    """The path of the PKI engine."""
    namespace: str = setting("namespace", "")
    """That of the engine and the login, in Vault Enterprise and OpenBao; empty: the root namespace."""
    token_file: Path | None = setting("tokenFile", None)
    """Read at each request."""
    app_role: AppRole | None = setting("appRole", None, of=AppRole)

    def problems(self) -> Iterator[Problem]:
        """See ``SignerSettings``. A Vault on this machine may be asked in plaintext."""
        if reason := address_problem(self.address, ("https", "http")):
            yield Problem("address", reason)
        yield from self.key_problems()
        if (self.token_file is None) == (self.app_role is None):
            yield Problem("", "name one way to log in: tokenFile or appRole")
