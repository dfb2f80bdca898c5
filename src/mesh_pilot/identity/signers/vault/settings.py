"""The settings of a Vault or OpenBao server that signs."""

from __future__ import annotations

from pathlib import Path

import attrs


@attrs.frozen(kw_only=True)
class VaultSettings:
    """A server, a role of its PKI secrets engine, and one way to log in."""

    address: str
    """URL, such as ``https://vault:8200``."""
    role: str
    """The role of the PKI engine that signs."""
    mount: str = "pki"
    """The path of the PKI engine."""
    namespace: str = ""
    """Of Vault Enterprise and OpenBao; empty: the root namespace."""
    token: str = attrs.field(default="", repr=False)
    token_file: Path | None = None
    """Read again when it changes; wins over ``token``."""
    role_id: str = ""
    """Of AppRole; empty: a token is used."""
    secret_id_file: Path | None = None
    """The file of the AppRole's secret id, read at each login."""
    approle_mount: str = "approle"
    ca_file: Path | None = None
    """PEM file of the CA of the server's certificate; None: the system's roots."""
    client_certificate: Path | None = None
    """PEM file of our certificate towards the server."""
    client_key: Path | None = None
    roots_file: Path | None = None
    """PEM file of the roots of workloads, where the PKI engine does not have the root of its own chain."""

    def problem(self) -> str:
        """The reason why these settings cannot work; empty if they can."""
        if not self.address.startswith(("https://", "http://")):
            return f"{self.address!r} is no URL of a Vault server, such as https://vault:8200"
        if not self.role:
            return "the role of the PKI engine that signs is not named"
        if bool(self.role_id) != bool(self.secret_id_file):
            return "logging in with AppRole needs both its role id and the file of its secret id"
        ways = [bool(self.token or self.token_file), bool(self.role_id)]
        if sum(ways) != 1:
            return "name one way to log in: a token, a file with a token, or an AppRole"
        if bool(self.client_certificate) != bool(self.client_key):
            return "a client certificate needs its key, and the other way round"
        return ""
