"""Credentials in a folder of secrets, as operators put them there."""

from __future__ import annotations

from pathlib import Path

from tests.support.certificates import CertificateFiles


def write_credential(
    folder: Path, name: str, files: CertificateFiles | None = None, *, roots: Path | None = None
) -> None:
    """Put a credential in place, a file after the other: a certificate with its key and CA, or only CAs.

    ``name``: NAMESPACE/NAME, or NAME for one of the root namespace.
    """
    parts: dict[str, Path] = {}
    if files is not None:
        parts = {"tls.crt": files.certificate, "tls.key": files.key, "ca.crt": files.ca}
    if roots is not None:
        parts["ca.crt"] = roots
    place = folder / name
    place.mkdir(parents=True, exist_ok=True)
    for part, source in parts.items():
        whole = place / f".{part}.new"
        whole.write_bytes(source.read_bytes())
        whole.rename(place / part)
