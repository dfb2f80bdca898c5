"""The flags of ``mesh-pilot discovery`` about Vault, or OpenBao, as the signer of certificates."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from mesh_pilot.identity.signers.vault.settings import VaultSettings

_FILE = click.Path(path_type=Path)

FLAGS: Sequence[tuple[str, Mapping[str, Any]]] = (
    (
        "--vault-addr",
        {"default": "", "help": "URL of a Vault or OpenBao whose PKI engine signs, instead of a CA here."},
    ),
    ("--vault-role", {"default": "", "help": "Role of its PKI engine that signs."}),
    ("--vault-mount", {"default": "pki", "help": "Path of the PKI engine."}),
    ("--vault-namespace", {"default": "", "help": "Namespace of the engine and the login."}),
    ("--vault-token", {"default": "", "help": "Token; better in a file or the environment."}),
    ("--vault-token-file", {"type": _FILE, "help": "File with the token, read again when it changes."}),
    ("--vault-approle-id", {"default": "", "help": "Role id to log in with AppRole, in place of a token."}),
    ("--vault-approle-secret-file", {"type": _FILE, "help": "File with its secret id, read at each login."}),
    ("--vault-approle-mount", {"default": "approle", "help": "Path of the AppRole method."}),
    ("--vault-ca-file", {"type": _FILE, "help": "PEM file of the CA of its certificate.  [default: the system's]"}),
    ("--vault-client-cert", {"type": _FILE, "help": "PEM file of our certificate towards it."}),
    ("--vault-client-key", {"type": _FILE, "help": "PEM file of its key."}),
    ("--vault-roots", {"type": _FILE, "help": "PEM file of the roots, if the engine does not have them."}),
)


def take_vault(options: MutableMapping[str, Any]) -> VaultSettings | None:
    """The settings that were given, taken out of the options of the command; None without a server.

    Raises UsageError.
    """
    names = [name.removeprefix("--").replace("-", "_") for name, _ in FLAGS]
    given = {name.removeprefix("vault_"): options.pop(name) for name in names}
    address = given.pop("addr")
    if not address:
        return None
    from mesh_pilot.identity.signers.vault.settings import VaultSettings

    settings = VaultSettings(
        address=address,
        role=given["role"],
        mount=given["mount"],
        namespace=given["namespace"],
        token=given["token"],
        token_file=given["token_file"],
        role_id=given["approle_id"],
        secret_id_file=given["approle_secret_file"],
        approle_mount=given["approle_mount"],
        ca_file=given["ca_file"],
        client_certificate=given["client_cert"],
        client_key=given["client_key"],
        roots_file=given["roots"],
    )
    if options.get("ca_dir") is not None:
        raise click.UsageError("--ca-dir and --vault-addr exclude each other: one of them signs")
    if problem := settings.problem():
        raise click.UsageError(f"--vault-*: {problem}")
    return settings
