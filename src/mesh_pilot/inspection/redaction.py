"""Redaction: keys and passwords taken out of JSON that people and programs are shown."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

REDACTED = "[redacted]"

_SECRET_FIELDS = frozenset(
    {"private_key", "privateKey", "password", "private_key_provider", "privateKeyProvider", "generic_secret",
     "genericSecret", "session_ticket_keys", "sessionTicketKeys", "inline_token", "hmac_secret", "token_secret",
     "access_token", "pkcs12"}
)  # fmt: skip
"""Fields of Envoy's API that hold a secret, or a data source of one."""


def redacted(value: Any) -> Any:
    """JSON in which the contents of secret fields are ``[redacted]``; names of files and of other secrets stay."""
    if isinstance(value, Mapping):
        return {name: _blank(member) if name in _SECRET_FIELDS else redacted(member) for name, member in value.items()}
    return [redacted(each) for each in value] if isinstance(value, list) else value


_NAMES = frozenset({"name", "filename", "path", "sds_config", "@type", "provider_name", "environment_variable"})


_BYTES = frozenset({"inline_bytes", "inlineBytes"})
"""Fields in base64: Envoy shows ``[redacted]`` in base64, too."""


def _blank(value: Any, encoded: bool = False) -> Any:
    if isinstance(value, Mapping):
        return {name: member if name in _NAMES else _blank(member, name in _BYTES) for name, member in value.items()}
    if isinstance(value, list):
        return [_blank(each) for each in value]
    if not isinstance(value, str) or not value:
        return value
    return base64.b64encode(REDACTED.encode()).decode() if encoded else REDACTED
