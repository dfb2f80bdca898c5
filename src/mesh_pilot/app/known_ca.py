"""The roots that this control plane's CA had, in its state: a CA that disappears is not replaced by a new root.

A folder that was not mounted looks like one in which nothing has been made yet. A root made there would be trusted by
no proxy: proxies could neither connect nor renew their certificates.
"""

from __future__ import annotations

from pathlib import Path

import structlog
from cryptography import x509

from mesh_pilot.app.settings import Settings, StartError
from mesh_pilot.identity.authority.authority import Authority, fingerprint
from mesh_pilot.identity.authority.material import has_ca, joined
from mesh_pilot.identity.authority.store import MaterialStore
from mesh_pilot.identity.trust.private_files import replace

log = structlog.get_logger(scope="security")

FILE = "ca-roots.pem"
"""The file in the state folder."""


async def refuse_lost(settings: Settings, store: MaterialStore) -> None:
    """Raise StartError if the store has no CA although there was one; StoreError if it cannot be read."""
    known = _file(settings)
    if known is None or not known.exists() or has_ca((await store.read()).files):
        return
    try:
        roots = ", ".join(fingerprint(each)[:16] for each in x509.load_pem_x509_certificates(known.read_bytes()))
    except (OSError, ValueError):
        roots = "unknown"
    raise StartError(
        f"{store.place} has no CA, and {known} says that there was one (SHA-256 of its root: {roots}); no root is made "
        "in its place: no proxy would trust it. Mount or restore the CA; to begin with another root: mesh-pilot ca init"
    )


def remember(settings: Settings, authority: Authority) -> None:
    """Write the roots in force into the state, now and whenever they change."""
    known = _file(settings)
    if known is None:
        return

    def write() -> None:
        content = joined(authority.material.roots)
        try:
            if not known.exists() or known.read_bytes() != content:
                known.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                replace(known, content, 0o644)
        except OSError as error:
            log.warning("the roots cannot be kept in the state", file=str(known), reason=error.strerror)

    authority.on_change(write)
    write()


def _file(settings: Settings) -> Path | None:
    return settings.state.folder / FILE if settings.state is not None else None
