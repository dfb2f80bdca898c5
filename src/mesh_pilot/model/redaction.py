"""Redaction: the one function that every output passes, so that no secret is shown, logged, printed or packed.

Outputs are pages and answers of all ports, server-sent events, metrics, logs, standard output, bug reports, pictures
for plans, and dumps over xDS. A secret is told by the name of its field (of Envoy's API, of a flag, a variable, a
header), or by its look (PEM keys, JSON Web Tokens, credentials in URLs), as it may stand in anybody's text.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import lru_cache
from typing import Any

import attrs

REDACTED = "[redacted]"
_ENCODED = base64.b64encode(REDACTED.encode()).decode()


def redacted(value: Any) -> Any:
    """JSON, a text, a message of the Istio API, or an attrs value, with ``[redacted]`` in place of secrets.

    Names of files and of other objects stay. What holds no secret is returned as it is.
    """
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        members = _members(value)
        return members if _differing(value, members) else value
    if isinstance(value, list | tuple):
        found = [redacted(each) for each in value]
        if all(one is other for one, other in zip(found, value, strict=True)):
            return value
        return tuple(found) if isinstance(value, tuple) else found
    if attrs.has(type(value)):
        own = {each.alias or each.name: getattr(value, each.name) for each in attrs.fields(type(value)) if each.init}
        differing = _differing(own, _members(own))
        return attrs.evolve(value, **differing) if differing else value
    if is_dataclass(value) and not isinstance(value, type):
        own = {field.name: getattr(value, field.name) for field in fields(value) if field.init}
        differing = _differing(own, _members(own))
        return replace(value, **differing) if differing else value
    return value


def _differing(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """The members that are others: what holds no secret is the same object."""
    return {name: member for name, member in after.items() if member is not before[name]}


# -- by name

_SECRET_FIELDS = frozenset(
    {"private_key", "privateKey", "password", "private_key_provider", "privateKeyProvider", "generic_secret",
     "genericSecret", "session_ticket_keys", "sessionTicketKeys", "inline_token", "hmac_secret", "token_secret",
     "access_token", "pkcs12"}
)  # fmt: skip
"""Fields of Envoy's API that hold a secret, or a data source of one."""

_SECRET_NAME = re.compile(
    r"(?i)(^|[_\-.\[])(pass(word|wd|phrase)?|secret([_\-]?id)?|token|auth(orization)?|hmac|cookie|"
    r"(api|private|access|signing|encryption)[_\-]?key)([_\-.]?(value|data|string|bytes))?\]?$|"
    r"(?i:password|clientsecret|secretid|(api|access|private)key|accesstoken)$"
)
"""Names of fields, flags, variables and headers whose values are secrets. Those of files and of other objects
(``token_file``, ``credentialName``) end otherwise."""

_NAMES = frozenset({"name", "filename", "path", "sds_config", "@type", "provider_name", "environment_variable"})
"""Members of a secret that are none themselves."""

_BYTES = frozenset({"inline_bytes", "inlineBytes"})
"""Fields in base64: Envoy shows ``[redacted]`` in base64, too."""

_MATCHES = frozenset(
    {"string_match", "stringMatch", "exact_match", "exactMatch", "prefix_match", "suffix_match", "contains_match",
     "safe_regex_match"}
)  # fmt: skip
_VALUES = frozenset({"value", "values", "notValues", "raw_value", "rawValue"}) | _MATCHES
"""Fields with the value of what another field names: of a variable, a header, a condition."""

_HOLDERS = frozenset(
    {"exact", "prefix", "suffix", "regex", "contains", "safe_regex", "safeRegex", "ignore_case", "ignoreCase", "value",
     "string", "inline_string", "inlineString", "inline_bytes", "inlineBytes", "filename", "environment_variable"}
)  # fmt: skip
"""Fields of an object that is nothing but a value: a match, a data source. Objects with others are looked into."""


def _members(value: Mapping[str, Any]) -> dict[str, Any]:
    named = value.get("name", value.get("key"))
    named = getattr(named, "string_value", named)  # google.protobuf.Value
    beside = _values_beside(named) if isinstance(named, str) else frozenset()
    found = {}
    for name, member in value.items():
        text = str(name)
        if text in _SECRET_FIELDS or text in beside or (is_secret_name(text) and _is_value(member, text)):
            found[name] = _blank(member)
        elif text in _BYTES and isinstance(member, str):
            found[name] = _ENCODED if _text(member) != member else member
        else:
            found[name] = redacted(member)
    return found


def _values_beside(name: str) -> frozenset[str]:
    """The fields beside a name that hold the secret of that name. Which cookie a route matches is no secret."""
    if not is_secret_name(name):
        return frozenset()
    return _VALUES - _MATCHES if name.lower() == "cookie" else _VALUES


@lru_cache(maxsize=5000)
def is_secret_name(name: str) -> bool:
    """True for the name of a field, a flag, a variable or a header whose value is a secret."""
    return bool(_SECRET_NAME.search(name))


def _is_value(member: Any, name: str) -> bool:
    """True for a value itself, False for an object that has such a name, as our own pages have some."""
    if hasattr(member, "string_value"):
        return member.string_value is not None
    members: Iterable[str] | None = None
    if isinstance(member, Mapping):
        members = member
    elif is_dataclass(member):
        members = (field.name for field in fields(member))
    if members is not None:
        return name.lower() != "cookie" and _HOLDERS.issuperset(members)
    return isinstance(member, str) or (isinstance(member, list | tuple) and all(isinstance(x, str) for x in member))


def _blank(value: Any, encoded: bool = False) -> Any:
    if isinstance(value, Mapping):
        return {name: member if name in _NAMES else _blank(member, name in _BYTES) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [_blank(each) for each in value]
    if is_dataclass(value) and not isinstance(value, type):
        found = {field.name: getattr(value, field.name) for field in fields(value) if field.init}
        return replace(value, **{name: _blank(member, encoded) for name, member in found.items() if name not in _NAMES})
    if not isinstance(value, str) or not value:
        return value
    return _ENCODED if encoded else REDACTED


# -- by look

_SUSPECT = re.compile(r"-----BEGIN |eyJ|://|mpjt_|AIza|LS0tLS1CRUdJTi|\bhv[sb]\.|\bs\.|(?i:bearer |basic )")
"""What every secret text has. Most texts have none of it, and need no other look."""

_SECRET_TEXTS = (
    (re.compile(r"-----BEGIN ([A-Z ]*PRIVATE KEY)-----[^\"]*?(-----END \1-----|(?=\")|\Z)"), REDACTED),
    (re.compile(r"\bmpjt_[\w.-]+"), REDACTED),
    (re.compile(r"(?<![A-Za-z0-9])eyJ[\w-]{8,}\.[\w-]{4,}\.[\w-]*"), REDACTED),
    (re.compile(r"(?i:(?<=bearer ))(?=[\w.~+/=-]+[0-9A-Z])[\w.~+/=-]{8,}"), REDACTED),
    (re.compile(r"(?i:(?<=basic ))(?=[A-Za-z0-9+/]+[0-9A-Z])[A-Za-z0-9+/]{8,}={0,2}"), REDACTED),
    (re.compile(r"(?<=://)[^/\s@\"'<>?#]{1,400}(?=@)"), REDACTED),
    (
        re.compile(
            r"(?i)(?<=[?&;])([\w.\-]{0,40}?(?:token|api_?-?key|access_?-?key|secret|passw(?:or)?d|signature|sig|credential))"
            r"=[^&#\s\"'\\<>]+"
        ),
        rf"\1={REDACTED}",
    ),
    (re.compile(r"\b(hvs|hvb|s)\.[A-Za-z0-9_-]{20,}"), REDACTED),
    (re.compile(r"\bAIza[\w-]{35}"), REDACTED),
)
"""PEM keys, join tokens, JWTs, headers, user and password and parameters of URLs, tokens of Vault, keys of Google.

None of them crosses a quotation mark, so that encoded JSON stays JSON."""

_ENCODED_PEM = re.compile(r"LS0tLS1CRUdJTi[A-Za-z0-9+/=]*")
"""PEM in base64."""


def _text(text: str) -> str:
    if _SUSPECT.search(text) is None:
        return text
    shown = text
    for pattern, instead in _SECRET_TEXTS:
        shown = pattern.sub(instead, shown)
    shown = _ENCODED_PEM.sub(_without_key, shown)
    return text if shown == text else shown


def _without_key(found: re.Match[str]) -> str:
    encoded = found.group()
    try:
        is_key = b"PRIVATE KEY" in base64.b64decode(encoded + "=" * (-len(encoded) % 4))
    except ValueError:
        is_key = True
    return REDACTED if is_key else encoded
