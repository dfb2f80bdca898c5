"""Redaction: keys and passwords taken out of JSON that people and programs are shown."""

from __future__ import annotations

import base64
import re
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


# -- reports that leave the house

_SECRET_NAME = re.compile(
    r"(?i)(^|[_\-.\[])(pass(word|wd|phrase)?|secret([_\-]?id)?|token|credentials?|auth(orization)?|hmac|cookie|"
    r"(api|private|access|signing|encryption)[_\-]?key)([_\-.]?(value|data|string|bytes))?\]?$|"
    r"(?i:password|clientsecret|secretid|(api|access|private)key|accesstoken)$"
)
"""Names of fields, flags and variables whose values are secrets. Those of files and of other objects (``token_file``,
``credentialName``) end otherwise."""

_VALUES = frozenset(
    {"value", "values", "notValues", "raw_value", "rawValue", "string_match", "stringMatch", "exact_match",
     "exactMatch", "prefix_match", "suffix_match", "contains_match", "safe_regex_match"}
)  # fmt: skip
"""Fields with the value of what another field names: of a variable, a header, a condition."""

_SECRET_TEXTS = (
    re.compile(r"-----BEGIN ([A-Z ]*PRIVATE KEY)-----.*?(-----END \1-----|\Z)", re.DOTALL),
    re.compile(r"\beyJ[\w-]{8,}\.[\w-]{4,}\.[\w-]*"),
    re.compile(r"(?i)(?<=bearer )[\w.~+/=-]{8,}"),
    re.compile(r"(?i)(?<=basic )[A-Za-z0-9+/]{8,}={0,2}"),
    re.compile(r"(?<=://)[^/\s:@]{0,200}:[^/\s@]{1,200}(?=@)"),
    re.compile(r"(?i)(?<=[?&])(access_?token|token|api[_\-]?key|client_?secret|password|secret)=[^&#\s\"']+"),
    re.compile(r"\b(hvs|hvb|s)\.[A-Za-z0-9_-]{20,}"),
)
"""Secrets by their look: PEM keys, JWTs, headers, user, password and parameters of URLs, Vault's tokens."""


_ENCODED_PEM = re.compile(r"LS0tLS1CRUdJTi[A-Za-z0-9+/=]*")
"""PEM in base64."""


def scrubbed(value: Any) -> Any:
    """JSON for a report that others will read: as ``redacted``, without values whose names or looks are a secret's.

    Values beside a name (Kubernetes' ``env``, headers, conditions of policies) are judged by the name.
    """
    return _scrub(redacted(value))


def scrubbed_text(text: str) -> str:
    """A text without what looks like a secret."""
    for pattern in _SECRET_TEXTS:
        text = pattern.sub(REDACTED, text)
    return _ENCODED_PEM.sub(_without_key, text)


def _without_key(found: re.Match[str]) -> str:
    encoded = found.group()
    try:
        is_key = b"PRIVATE KEY" in base64.b64decode(encoded + "=" * (-len(encoded) % 4))
    except ValueError:
        is_key = True
    return REDACTED if is_key else encoded


def _scrub(value: Any) -> Any:
    if isinstance(value, Mapping):
        named = value.get("name", value.get("key"))
        is_secret = isinstance(named, str) and bool(_SECRET_NAME.search(named))
        found = {}
        for name, member in value.items():
            hidden = _SECRET_NAME.search(str(name)) or (is_secret and name in _VALUES)
            found[name] = _blank(member) if hidden else _scrub(member)
        return found
    if isinstance(value, list | tuple):
        return [_scrub(each) for each in value]
    return scrubbed_text(value) if isinstance(value, str) else value
