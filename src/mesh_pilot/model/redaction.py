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
from enum import Enum
from functools import lru_cache
from operator import is_
from typing import Any

import attrs

REDACTED = "[redacted]"
_ENCODED = base64.b64encode(REDACTED.encode()).decode()


def redacted(value: Any) -> Any:
    """JSON, a string, a message of the Istio API, or an attrs value, with ``[redacted]`` in place of secrets.

    Names of files and of other objects stay. What holds no secret is returned as it is.
    """
    # The order is that of how often a kind occurs in a dump: this runs on every value of every page.
    kind = type(value)
    if kind is str:
        return _text(value)
    if kind in _PLAIN:
        return value
    if kind is dict or isinstance(value, Mapping):
        changed = _changed(value)
        return {**value, **changed} if changed else value
    if kind is list or isinstance(value, list | tuple):
        found = [redacted(each) for each in value]
        if all(map(is_, found, value)):
            return value
        return tuple(found) if isinstance(value, tuple) else found
    if attrs.has(kind):
        own = {each.alias or each.name: getattr(value, each.name) for each in attrs.fields(kind) if each.init}
        changed = _changed(own)
        return attrs.evolve(value, **changed) if changed else value
    if is_dataclass(value) and not isinstance(value, type):
        changed = _changed({field.name: getattr(value, field.name) for field in fields(value) if field.init})
        return replace(value, **changed) if changed else value
    return _text(value) if isinstance(value, str) else value


_PLAIN = frozenset({int, float, bool, bytes, type(None)})


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
"""Members of a secret that are not secret themselves."""

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


def _changed(members: Mapping[str, Any]) -> dict[str, Any]:
    """The members that hold secrets, redacted. Those that hold none are left out."""
    named = members.get("name") or members.get("key")
    named = getattr(named, "string_value", named)  # google.protobuf.Value
    beside = _values_beside(named) if type(named) is str else _NONE
    found = {}
    for name, member in members.items():
        if type(member) in _PLAIN:
            continue
        role = _role(name) if type(name) is str else _Role.PLAIN
        if (
            (role is _Role.FIELD and not _is_file(name, member))
            or name in beside
            or (role is _Role.VALUE and _is_value(member, name))
        ):
            shown = _blank(member)
        else:
            shown = redacted(member)
            if role is _Role.BYTES and shown is not member and type(member) is str:
                shown = _ENCODED
        if shown is not member:
            found[name] = shown
    return found


def _is_file(name: str, member: Any) -> bool:
    """True for the ``privateKey`` of Istio's TLS settings, a path. Envoy's ``private_key`` is an object."""
    return name in ("privateKey", "private_key") and isinstance(member, str) and member.startswith("/")


class _Role(Enum):
    """The meaning of a name for its member."""

    PLAIN = "nothing"
    FIELD = "it is or holds a secret, in Envoy's API"
    VALUE = "it is a secret, if it is a value"
    BYTES = "it is in base64"


@lru_cache(maxsize=5000)
def _role(name: str) -> _Role:
    if name in _SECRET_FIELDS:
        return _Role.FIELD
    if name in _BYTES:
        return _Role.BYTES
    return _Role.VALUE if _SECRET_NAME.search(name) else _Role.PLAIN


_NONE: frozenset[str] = frozenset()


@lru_cache(maxsize=5000)
def _values_beside(name: str) -> frozenset[str]:
    """The fields next to a name that hold the secret of that name. The cookie that a route matches is not secret."""
    if not _SECRET_NAME.search(name):
        return _NONE
    return _VALUES - _MATCHES if name.lower() == "cookie" else _VALUES


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

_SECRET_TEXTS = (
    ("-----BEGIN ", r"-----BEGIN ([A-Z ]*PRIVATE KEY)-----[^\"]*?(-----END \1-----|(?=\")|\Z)", REDACTED),
    ("mpjt_", r"\bmpjt_[\w.-]+", REDACTED),
    ("eyJ", r"(?<![A-Za-z0-9])eyJ[\w-]{8,}\.[\w-]{4,}\.[\w-]*", REDACTED),
    ("earer ", r"(?<=[Bb]earer )(?=[\w.~+/=-]+[0-9A-Z])[\w.~+/=-]{8,}", REDACTED),
    ("asic ", r"(?<=[Bb]asic )(?=[A-Za-z0-9+/]+[0-9A-Z])[A-Za-z0-9+/]{8,}={0,2}", REDACTED),
    ("://", r"(?<=://)[^/\s@\"'<>?#]{1,400}(?=@)", REDACTED),
    (
        "=",
        r"(?i)(?<=[?&;])([\w.\-]{0,40}?(?:token|api_?-?key|access_?-?key|secret|passw(?:or)?d|signature|sig|credential))"
        r"=[^&#\s\"'\\<>]+",
        rf"\1={REDACTED}",
    ),
    ("hv", r"\bhv[sb]\.[A-Za-z0-9_-]{20,}", REDACTED),
    ("s.", r"\bs\.[A-Za-z0-9_-]{20,}", REDACTED),
    ("AIza", r"\bAIza[\w-]{35}", REDACTED),
)
"""PEM keys, join tokens, JWTs, headers, user and password and parameters of URLs, tokens of Vault, keys of Google: what
each of them has in its text, which is quick to look for; its pattern; and what is shown instead.

None of them crosses a quotation mark, so that encoded JSON stays JSON."""

_LOOKS = tuple((part, re.compile(pattern), instead) for part, pattern, instead in _SECRET_TEXTS)

_ENCODED_PEM = re.compile(r"LS0tLS1CRUdJTi[A-Za-z0-9+/=]*")
"""PEM in base64."""


def _text(text: str) -> str:
    shown = text
    for part, pattern, instead in _LOOKS:
        if part in shown:
            shown = pattern.sub(instead, shown)
    if "LS0tLS1" in shown:
        shown = _ENCODED_PEM.sub(_without_key, shown)
    return text if shown == text else shown


def _without_key(found: re.Match[str]) -> str:
    encoded = found.group()
    try:
        is_key = b"PRIVATE KEY" in base64.b64decode(encoded + "=" * (-len(encoded) % 4))
    except ValueError:
        is_key = True
    return REDACTED if is_key else encoded
