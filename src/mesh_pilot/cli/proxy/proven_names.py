"""Namespace and service account as the proof of this machine says them, so that they need not be said again.

Nothing is verified here: the control plane does that, and refuses a proxy that claims another name than it proves.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path

from mesh_pilot.model.spiffe import Identity, parse_identity

MAX_BYTES = 64 * 1024


def proven_names(*, token: Path | None, certificates: tuple[Path | None, ...]) -> Mapping[str, str]:
    """The settings that the token says, else the first certificate that exists; nothing if neither can be read."""
    found = _of_token(_text(token))
    for chain in certificates:
        found = found or _of_certificate(_text(chain))
    return found


def _text(file: Path | None) -> bytes:
    if file is None:
        return b""
    try:
        with file.open("rb") as opened:
            return opened.read(MAX_BYTES)
    except OSError:
        return b""


def _of_token(text: bytes) -> Mapping[str, str]:
    """The subject of a JSON Web Token, which a join token is as well."""
    try:
        claims = text.strip().split(b".")[1]
        subject = json.loads(base64.urlsafe_b64decode(claims + b"=" * (-len(claims) % 4)))["sub"]
    except (IndexError, ValueError, KeyError, TypeError):
        return {}
    if not isinstance(subject, str):
        return {}
    match subject.split(":"):
        case ["system", "serviceaccount", namespace, account]:  # of Kubernetes
            return {"namespace": namespace, "service_account": account}
    return _of_identity(parse_identity(subject))


def _of_certificate(chain: bytes) -> Mapping[str, str]:
    from mesh_pilot.agent.identity.material import identity_in

    return _of_identity(parse_identity(identity_in(chain)))


def _of_identity(identity: Identity | None) -> Mapping[str, str]:
    if identity is None:
        return {}
    return {"namespace": identity.namespace, "service_account": identity.service_account}
