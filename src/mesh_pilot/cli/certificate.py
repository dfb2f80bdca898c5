"""``mesh-pilot certificate``: a workload's own key, and a certificate of the mesh for it, in files."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

import click

from mesh_pilot.cli.options import address, duration

if TYPE_CHECKING:
    from cryptography import x509

    from mesh_pilot.rpc import TlsSource

PATH = click.Path(path_type=Path)

KEY, CHAIN, ROOTS = "key.pem", "cert-chain.pem", "root-cert.pem"
"""The files, as Istio's agent names them (``OUTPUT_CERTS``)."""

CALL_SECONDS = 60.0


@click.command("certificate", context_settings={"show_default": True})
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

    A certificate in force in --out-dir proves who asks, and the roots beside it are trusted as --tls-ca is; else
    the token in --token-file does. So the same command, run now and then with --if-due, gets the first certificate
    and renews it. Files are replaced by renaming, the certificate last, as Envoy wants it.
    """
    import trio

    from mesh_pilot.rpc import CertificateFiles, GRPCError, RpcError, client_tls

    found = _certificate_in(folder)
    if found is not None and if_due and _half_time(found) > datetime.now(UTC):
        click.echo(f"{folder / CHAIN} is due at {_half_time(found):%F %T} UTC", err=True)
        return
    token = None
    if found is None:
        if token_file is None:
            raise click.UsageError(f"there is no certificate in force in {folder}: give a token with --token-file")
        token = _token(token_file)
    _prepare(folder)
    shown = {} if found is None else {"certificate": folder / CHAIN, "key": folder / KEY}
    try:
        tls = client_tls(CertificateFiles(trusted=tls_ca, **shown))
        if found is not None:
            tls.context().load_verify_locations(folder / ROOTS)
    except RpcError as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        raise click.ClickException(f"{folder / ROOTS}: cannot load the roots: {error.strerror}") from None
    try:
        key, chain = trio.run(_request, pilot, tls, tls_server_name, token, int(ttl or 0))
    except GRPCError as error:
        raise click.ClickException(f"{pilot} signs nothing: {error.message} ({error.status.name})") from None
    except RpcError as error:
        advice = f"; if {folder / CHAIN} was revoked, remove it and give a token" if found is not None else ""
        raise click.ClickException(f"{pilot}: {str(error).removeprefix(f'{pilot}: ')}{advice}") from None
    _write(folder, key, chain)
    _report(folder, chain[0])


async def _request(
    pilot: str, tls: TlsSource, server_name: str | None, token: str | None, seconds: int
) -> tuple[bytes, list[bytes]]:
    """A new key and its chain, each in PEM: leaf, intermediates, and last the roots. Raises GRPCError, RpcError."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding

    from mesh_pilot.api.istio.v1.auth import IstioCertificateRequest, IstioCertificateResponse
    from mesh_pilot.rpc import RpcError, open_channel
    from mesh_pilot.security.authority.material import key_pem
    from mesh_pilot.security.certificate_service import PATH as METHOD
    from mesh_pilot.security.signing_requests import new_request

    key = ec.generate_private_key(ec.SECP256R1())
    csr = new_request(key).public_bytes(Encoding.PEM).decode()
    request = IstioCertificateRequest(csr=csr, validity_duration=seconds)
    metadata = {"authorization": f"Bearer {token}"} if token else None
    async with open_channel(pilot, tls=tls, server_hostname=server_name) as channel:
        answer = await channel.unary(METHOD, bytes(request), bytes, timeout_seconds=CALL_SECONDS, metadata=metadata)
    chain = [text.encode() for text in IstioCertificateResponse.parse(answer).cert_chain]
    if len(chain) < 2:
        raise RpcError(f"{pilot} has no root to send yet; try again")
    return key_pem(key), chain


def _certificate_in(folder: Path) -> x509.Certificate | None:
    """The certificate of a folder; None if there is none in force, with its key and roots."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        found = x509.load_pem_x509_certificate((folder / CHAIN).read_bytes())
        key = load_pem_private_key((folder / KEY).read_bytes(), password=None)
    except (OSError, ValueError, TypeError):
        return None
    is_in_force = found.not_valid_before_utc <= datetime.now(UTC) < found.not_valid_after_utc
    return found if is_in_force and found.public_key() == key.public_key() and (folder / ROOTS).exists() else None


def _half_time(certificate: x509.Certificate) -> datetime:
    return certificate.not_valid_before_utc + (certificate.not_valid_after_utc - certificate.not_valid_before_utc) / 2


def _token(file: Path) -> str:
    try:
        token = file.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it holds no token"
        raise click.ClickException(f"{file}: {reason}") from None
    if not token.isprintable() or not token or " " in token:
        raise click.ClickException(f"{file}: it holds no token")
    return token


def _prepare(folder: Path) -> None:
    """Make the folder. What cannot be written must not cost a use of the token."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise click.ClickException(f"{folder}: {error.strerror}; nothing was asked for") from None


def _write(folder: Path, key: bytes, chain: list[bytes]) -> None:
    from mesh_pilot.security.private_files import replace

    try:
        replace(folder / ROOTS, chain[-1], 0o644)
        replace(folder / KEY, key)
        replace(folder / CHAIN, b"".join(chain[:-1]), 0o644)
    except OSError as error:
        raise click.ClickException(f"{error.filename or folder}: {error.strerror}") from None


def _report(folder: Path, leaf: bytes) -> None:
    from cryptography import x509

    certificate = x509.load_pem_x509_certificate(leaf)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    identity = ", ".join(names.get_values_for_type(x509.UniformResourceIdentifier))
    click.echo(
        f"{folder / CHAIN} is {identity} until {certificate.not_valid_after_utc:%F %T} UTC; "
        f"renew it from {_half_time(certificate):%F %T} on"
    )
