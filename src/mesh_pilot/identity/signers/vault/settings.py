"""The settings of a Vault or OpenBao server that signs."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import attrs

from mesh_pilot.model.flags import flag

_flag = partial(flag, section="Certificates signed by Vault")


@attrs.frozen(kw_only=True)
class VaultSettings:
    """A server, a role of its PKI secrets engine, and one way to log in."""

    address: str = _flag(
        "--vault-addr",
        default="",
        common=True,
        help="URL of a Vault or OpenBao whose PKI engine signs, instead of a CA here.",
        doc="URL of a [Vault](vault.md) or OpenBao whose PKI engine signs, instead of a CA here.",
    )
    """Empty: no Vault signs."""
    role: str = _flag("--vault-role", default="", help="Role of its PKI engine that signs.")
    mount: str = _flag("--vault-mount", default="pki", help="Path of the PKI engine.")
    namespace: str = _flag("--vault-namespace", default="", help="Namespace of the engine and the login.")
    """Of Vault Enterprise and OpenBao; empty: the root namespace."""
    token: str = _flag(
        "--vault-token",
        default="",
        secret="--vault-token-file",
        help="Token; better in a file or the environment.",
    )
    token_file: Path | None = _flag("--vault-token-file", help="File with the token, read again when it changes.")
    """Wins over ``token``."""
    role_id: str = _flag(
        "--vault-approle-id",
        default="",
        help="Role id to log in with AppRole, in place of a token.",
    )
    secret_id_file: Path | None = _flag(
        "--vault-approle-secret-file",
        help="File with its secret id, read at each login.",
    )
    approle_mount: str = _flag("--vault-approle-mount", default="approle", help="Path of the AppRole method.")
    ca_file: Path | None = _flag(
        "--vault-ca-file",
        help="PEM file of the CA of its certificate.  [default: the system's]",
    )
    client_certificate: Path | None = _flag("--vault-client-cert", help="PEM file of our certificate towards it.")
    client_key: Path | None = _flag("--vault-client-key", help="PEM file of its key.")
    roots_file: Path | None = _flag(
        "--vault-roots",
        help="PEM file of the roots, if the engine does not have them.",
    )
    """The roots of workloads: the engine may lack the root of its own chain."""

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
