"""``mesh-pilot certificate``: a workload's own key, and a certificate of the mesh for it, in files."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mesh_pilot.agent.identity.folder import CHAIN, KEY, ROOTS, CertificateFolder
from mesh_pilot.cli.lib.options import SectionedCommand, address, duration, one_line

if TYPE_CHECKING:
    from mesh_pilot.agent.identity.material import IdentityMaterial

PATH = click.Path(path_type=Path)


@click.command("certificate", cls=SectionedCommand, context_settings={"show_default": True})
@click.option("--pilot", type=address, default="127.0.0.1:15012", help="The control plane's --secure-grpc-addr.")
@click.option(
    "--tls-ca", type=PATH, required=True, help="PEM file of the roots that it is known by, of: mesh-pilot ca root"
)
@click.option("--tls-server-name", help="DNS name in its certificate.  [default: that of --pilot]")
@click.option(
    "--token-file", type=PATH, help="File with a join token or JSON Web Token, for when there is no certificate yet."
)
@click.option("--out-dir", "folder", type=PATH, default=Path(), help=f"Folder of {KEY}, {CHAIN} and {ROOTS}.")
@click.option("--ttl", type=duration, help="Lifetime to ask for.  [default: the control plane's]")
@click.option("--if-due", is_flag=True, help="Do nothing while the certificate has more than half of its life left.")
def command(
    *,
    pilot: str,
    tls_ca: Path,
    tls_server_name: str | None,
    token_file: Path | None,
    folder: Path,
    ttl: float | None,
    if_due: bool,
) -> None:
    """Make a key and have it signed. The key never leaves this machine.

    A certificate in force in --out-dir proves who asks, and the roots next to it are trusted as --tls-ca is; else
    the token in --token-file does. So the same command, run now and then with --if-due, gets the first certificate
    and renews it. Files are replaced by renaming, the certificate last, as Envoy wants it.
    """
    import trio

    from mesh_pilot.agent.identity.credentials import named_in
    from mesh_pilot.agent.identity.material import MaterialError, new_key
    from mesh_pilot.agent.identity.signing import NotSigned, signed_material
    from mesh_pilot.net.rpc import CertificatePem, RpcError, client_tls_in_memory

    # A certificate in force goes before the token, which may be used up by now. The folder is prepared before anything
    # is asked for: a certificate that could not be saved would be lost, and a single-use token with it.
    own = CertificateFolder(folder)
    found = _in_force(own)
    if found is not None and if_due and _half_time(found) > datetime.now(UTC):
        click.echo(f"{folder / CHAIN} is due at {_half_time(found):%F %T} UTC", err=True)
        return
    if found is None and token_file is None:
        raise click.UsageError(f"there is no certificate in force in {folder}: give a token with --token-file")
    metadata = _metadata(token_file) if found is None and token_file is not None else {}
    try:
        own.prepare()
    except OSError as error:
        raise click.ClickException(f"{folder}: {error.strerror}; nothing was asked for") from None
    shown = None if found is None else CertificatePem(certificate=found.chain, key=found.key)
    with one_line(RpcError):
        tls = client_tls_in_memory(lambda: shown, trusted=tls_ca, roots=lambda: b"" if found is None else found.roots)

    async def request() -> IdentityMaterial:
        name = named_in(metadata) if found is None else found.identity
        return await signed_material(
            pilot,
            new_key("EC"),
            name,
            tls=tls,
            server_name=tls_server_name,
            metadata=metadata,
            seconds=int(ttl or 0),
        )

    try:
        material = trio.run(request)
    except MaterialError as error:
        raise click.ClickException(f"{pilot}: its answer cannot be used: {error}") from None
    except NotSigned as error:
        advice = ""
        if found is not None and isinstance(error.__cause__, RpcError):
            advice = f"; if {folder / CHAIN} was revoked, remove it and give a token"
        raise click.ClickException(f"{error}{advice}") from None
    try:
        own.save(material)
    except OSError as error:
        raise click.ClickException(f"{error.filename or folder}: {error.strerror}") from None
    click.echo(
        f"{folder / CHAIN} is {material.identity} until {material.ends:%F %T} UTC; "
        f"renew it from {_half_time(material):%F %T} on"
    )


def _in_force(folder: CertificateFolder) -> IdentityMaterial | None:
    """The certificate of a folder; None if there is none in force, with its key and roots."""
    found = folder.load().material
    return found if found is not None and found.clock_difference(datetime.now(UTC)) is None else None


def _half_time(certificate: IdentityMaterial) -> datetime:
    return certificate.begins + certificate.lifetime / 2


def _metadata(token_file: Path) -> dict[str, str]:
    from mesh_pilot.agent.identity.credentials import TokenError, read_token

    with one_line(TokenError):
        return {"authorization": f"Bearer {read_token(token_file)}"}
