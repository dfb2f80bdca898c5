"""Verifiers of certificate chains: programs and libraries that peers use, each with the roots that they know."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.x509 import verification

from mesh_pilot.identity.authority.material import pem
from tests.support.binaries import require_binary


class Untrusted(Exception):
    """A chain that does not lead to a root."""


def by_openssl(chain: bytes, roots: bytes) -> None:
    """The command: the leaf, and the rest of the chain as untrusted certificates in their order."""
    tool = require_binary("openssl")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        leaf, *_ = x509.load_pem_x509_certificates(chain)
        (folder / "leaf.pem").write_bytes(pem(leaf))
        (folder / "chain.pem").write_bytes(chain)
        (folder / "roots.pem").write_bytes(roots)
        files = ("-CAfile", "roots.pem", "-untrusted", "chain.pem", "leaf.pem")
        done = subprocess.run(
            [tool, "verify", "-no-CApath", "-no-CAstore", *files], cwd=folder, capture_output=True, text=True
        )
    if done.returncode != 0:
        raise Untrusted(done.stderr)


def by_library(chain: bytes, roots: bytes) -> None:
    """The Rust library below ``cryptography``: it searches for a path as Go's does."""
    leaf, *others = x509.load_pem_x509_certificates(chain)
    store = verification.Store(x509.load_pem_x509_certificates(roots))
    builder = verification.PolicyBuilder().store(store).time(datetime.now(UTC))
    try:
        builder.build_client_verifier().verify(leaf, others)
    except verification.VerificationError as error:
        raise Untrusted(str(error)) from None


VERIFIERS: Mapping[str, Callable[[bytes, bytes], None]] = {"openssl": by_openssl, "library": by_library}
"""Each raises Untrusted for a chain in PEM that does not lead to the roots."""
