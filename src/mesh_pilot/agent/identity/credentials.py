"""The proof of who we are while there is no certificate: tokens in files, read again for each use.

A join token may be good for one use, and each call that shows it is one. So it is shown to have a certificate signed,
and for nothing else; other tokens also open streams.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path

from mesh_pilot.agent.settings import CredentialSettings

JOIN_TOKEN_PREFIX = "mpjt_"
"""As in ``identity.tokens.join_tokens``, which is too large to import."""
CONSUL_TOKEN, CONSUL_SERVICE = "x-consul-token", "x-consul-service"
MAX_TOKEN_BYTES = 64 * 1024


class TokenError(Exception):
    """A token file that holds none; one line with the file."""


def serves_secrets(credentials: CredentialSettings) -> bool:
    """True if Envoy gets its certificate from the agent, or another SDS server of the machine; else over ADS."""
    known = (credentials.token_file, credentials.consul_token_file, credentials.certificate, credentials.sds_socket)
    return any(place is not None for place in known)


def token_files(credentials: CredentialSettings) -> tuple[Path, ...]:
    """The file of the token that is shown; none without one."""
    file = credentials.token_file or credentials.consul_token_file
    return () if file is None else (file,)


def token_metadata(credentials: CredentialSettings) -> Mapping[str, str]:
    """The metadata of a call that show the token; empty if none is configured. Raises TokenError."""
    if credentials.token_file is not None:
        return {"authorization": f"Bearer {read_token(credentials.token_file)}"}
    if credentials.consul_token_file is not None:
        service = {CONSUL_SERVICE: credentials.consul_service} if credentials.consul_service else {}
        return {CONSUL_TOKEN: read_token(credentials.consul_token_file), **service}
    return {}


def named_in(metadata: Mapping[str, str]) -> str:
    """The SPIFFE id in a join token; empty for other tokens, which do not have it. Nothing is verified."""
    token = metadata.get("authorization", "").removeprefix("Bearer ")
    if not token.startswith(JOIN_TOKEN_PREFIX):
        return ""
    payload = token.removeprefix(JOIN_TOKEN_PREFIX).partition(".")[2].partition(".")[0]
    try:
        subject = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4))).get("sub")
    except (ValueError, AttributeError, RecursionError):
        return ""
    return subject if isinstance(subject, str) and subject.startswith("spiffe://") else ""


def is_reusable(metadata: Mapping[str, str]) -> bool:
    """True if the token may be shown any number of times."""
    return not metadata.get("authorization", "").startswith(f"Bearer {JOIN_TOKEN_PREFIX}")


def read_token(file: Path) -> str:
    """The token in a file. Raises TokenError."""
    try:
        with file.open("rb") as opened:
            token = opened.read(MAX_TOKEN_BYTES).decode("ascii").strip()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it holds no token"
        raise TokenError(f"{file}: {reason}") from None
    if not token.isprintable() or not token or " " in token:
        raise TokenError(f"{file}: it holds no token")
    return token
