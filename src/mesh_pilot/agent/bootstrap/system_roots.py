"""The CA certificates of the operating system: the file that Envoy verifies servers by unless a rule names others.

Envoy has no default. A node's metadata ``SYSTEM_ROOTS`` tells the control plane the file; it serves the secret
``file-root:system``, which names it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

SYSTEM_ROOTS = "SYSTEM_ROOTS"

PLACES: Sequence[str] = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu, Alpine, Arch; images of Envoy and Istio
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",  # Fedora, RHEL, Rocky, Amazon Linux
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",  # SUSE
    "/etc/ssl/cert.pem",
)


def system_roots(environ: Mapping[str, str], places: Sequence[str] = PLACES) -> str:
    """The first file that can be read and is not empty, ``SSL_CERT_FILE`` before ``places``; empty without one."""
    named = environ.get("SSL_CERT_FILE", "")
    return next((place for place in (named, *places) if place and _is_usable(Path(place))), "")


def _is_usable(file: Path) -> bool:
    try:
        return file.is_file() and file.stat().st_size > 0 and os.access(file, os.R_OK)
    except OSError:
        return False
