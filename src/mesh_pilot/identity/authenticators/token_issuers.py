"""Issuers of tokens that are believed, and whom their tokens name: the file of ``--jwt-rules``.

    - issuer: https://login.example.com
      audiences: [mesh-pilot]
      namespace: shop
      serviceAccount: "{azp}"

``issuer``, ``audiences``, ``jwksUri`` and ``jwks`` mean what they do in Istio's JWTRule.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import attrs
import yaml

from mesh_pilot.identity.authenticators.compact_token import ALGORITHMS, CompactToken, shown
from mesh_pilot.identity.trust.callers import AuthenticationError
from mesh_pilot.istio.rules.authentication import http_url_reason

SERVICE_ACCOUNT_SUBJECT = "system:serviceaccount:"
"""The prefix of the subject of a Kubernetes service account: ``system:serviceaccount:<namespace>:<name>``."""

_TEMPLATE = re.compile(r"([^{}]*)(?:\{([^{}]+)\}([^{}]*))?")
_NESTED = re.compile(r"(\[[^\[\]]+\])+")


class TokenIssuerError(Exception):
    """A file of issuers that can't be used: where, and why."""


@attrs.frozen
class ClaimTemplate:
    """A name with at most one claim in it. With two, different claims could make the same name."""

    before: str
    path: tuple[str, ...] = ()
    """The names of objects from the outside, and then of the claim; empty: there is none."""
    after: str = ""

    def of(self, claims: Mapping[str, Any]) -> str:
        """The name that claims make. Raises AuthenticationError."""
        return self.before + (claim_text(claims, self.path) if self.path else "") + self.after


@attrs.frozen(kw_only=True)
class TokenIssuer:
    """An issuer whose tokens are believed, and the identity that they prove."""

    issuer: str
    """The value of the claim ``iss``."""
    audiences: frozenset[str]
    """One of them must be in the claim ``aud``."""
    jwks_uri: str = ""
    """The URL of its keys; empty: as its ``/.well-known/openid-configuration`` says, unless they are given here."""
    jwks: str = attrs.field(default="", repr=False)
    jwks_file: Path | None = None
    """The issuer's keys, in a file that is read again when a key is not found."""
    ca_file: Path | None = None
    """The CA of its server; None: those that the system trusts."""
    allow_http: bool = False
    """True if keys may be fetched over plain HTTP."""
    algorithms: frozenset[str] = ALGORITHMS
    namespace: ClaimTemplate | None = None
    service_account: ClaimTemplate | None = None
    """None: the subject must be a Kubernetes service account, which has both names."""
    claims: Mapping[tuple[str, ...], tuple[object, ...]] = attrs.field(factory=dict)
    """Further claims that must be there, with their values."""

    def names(self, token: CompactToken) -> tuple[str, str]:
        """Namespace and service account of a token, as they stand there. Raises AuthenticationError."""
        for path, allowed in self.claims.items():
            _check_claim(token.claims, path, allowed)
        if self.namespace is None or self.service_account is None:
            return service_account_names(token.text("sub"))
        return self.namespace.of(token.claims), self.service_account.of(token.claims)


def service_account_names(subject: str) -> tuple[str, str]:
    """Namespace and name of a Kubernetes service account. Raises AuthenticationError for other subjects."""
    match subject.removeprefix(SERVICE_ACCOUNT_SUBJECT).split(":"):
        case [namespace, name] if subject.startswith(SERVICE_ACCOUNT_SUBJECT):
            return namespace, name
    raise AuthenticationError(
        "claim_form", f"the token is for {shown(subject)}, which is not {SERVICE_ACCOUNT_SUBJECT}<namespace>:<name>"
    )


def claim_text(claims: Mapping[str, Any], path: Sequence[str]) -> str:
    """The text at a path of claims. Raises AuthenticationError."""
    value = _claim(claims, path)
    if not isinstance(value, str) or not value:
        raise AuthenticationError("claim_form", f"the token has the claim {'/'.join(path)!r}, and that is not a string")
    return value


def _claim(claims: Mapping[str, Any], path: Sequence[str]) -> object:
    value: object = claims
    for name in path:
        if not isinstance(value, Mapping) or name not in value:
            raise AuthenticationError("claim_missing", f"the token has no claim {'/'.join(path)!r}")
        value = value[name]
    return value


def _check_claim(claims: Mapping[str, Any], path: Sequence[str], allowed: Sequence[object]) -> None:
    value = _claim(claims, path)
    found = value if isinstance(value, list) else [value]
    if not any(type(one) is type(other) and one == other for one in found for other in allowed):
        raise AuthenticationError("claim_value", f"the token has a claim {'/'.join(path)!r} with another value")


def read_issuers(path: Path) -> tuple[TokenIssuer, ...]:
    """The issuers of a file in YAML or JSON. Raises TokenIssuerError."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TokenIssuerError(f"cannot read {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise TokenIssuerError(f"{path} is not YAML: {error}") from error
    if not isinstance(document, list):
        raise TokenIssuerError(f"{path} is not a list of issuers, each with issuer, audiences, ...")
    issuers: dict[str, TokenIssuer] = {}
    for index, rule in enumerate(document):
        where = f"{path}: [{index}]"
        found = _read_issuer(where, rule, path.parent)
        if found.issuer in issuers:
            raise TokenIssuerError(f"{where}.issuer: {found.issuer!r} is there twice")
        issuers[found.issuer] = found
    return tuple(issuers.values())


def _read_issuer(where: str, rule: object, folder: Path) -> TokenIssuer:
    if not isinstance(rule, dict):
        raise TokenIssuerError(f"{where} is not an object with issuer, audiences, ...")
    if unknown := sorted(str(name) for name in rule.keys() - _FIELDS.keys()):
        raise TokenIssuerError(f"{where}.{unknown[0]} is not known; there are {', '.join(_FIELDS)}")
    values: dict[str, Any] = {}
    for name, value in rule.items():
        field, read = _FIELDS[name]
        try:
            values[field] = read(value, folder)
        except ValueError as error:
            raise TokenIssuerError(f"{where}.{name} {error}") from None
    if reason := _reason(values):
        raise TokenIssuerError(f"{where}{reason}")
    return TokenIssuer(**values)


def _reason(values: Mapping[str, Any]) -> str:
    """The reason why these fields do not go together; empty if they do."""
    for name in ("issuer", "audiences"):
        if name not in values:
            return f".{name} is missing"
    if ("namespace" in values) != ("service_account" in values):
        return ": namespace and serviceAccount go together; without both, the subject names a service account"
    places = [name for name in ("jwks_uri", "jwks", "jwks_file") if name in values]
    if len(places) > 1:
        return ": give one of jwksUri, jwks and jwksFile"
    url = values.get("jwks_uri", values["issuer"])
    if not places or "jwks_uri" in values:
        if reason := http_url_reason(url):
            return f": {reason}: give jwksUri, jwks or jwksFile"
        if urlsplit(url).scheme != "https" and not values.get("allow_http"):
            return f": {url} is not https, so anybody on the way can replace the keys (allowHttp: true permits it)"
    return ""


def _text(value: object, _: Path) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("is not a string")
    return value


def _texts(value: object, _: Path) -> frozenset[str]:
    if not isinstance(value, list) or not value or not all(isinstance(one, str) and one for one in value):
        raise ValueError("is not a list of strings")
    return frozenset(value)


def _file(value: object, folder: Path) -> Path:
    return folder / _text(value, folder)


def _flag(value: object, _: Path) -> bool:
    if not isinstance(value, bool):
        raise ValueError("is neither true nor false")
    return value


def _algorithms(value: object, folder: Path) -> frozenset[str]:
    named = _texts(value, folder)
    if named - ALGORITHMS:
        raise ValueError(f"has {min(named - ALGORITHMS)!r}; permitted are {', '.join(sorted(ALGORITHMS))}")
    return named


def _template(value: object, folder: Path) -> ClaimTemplate:
    found = _TEMPLATE.fullmatch(_text(value, folder))
    if found is None:
        raise ValueError("is not a name with at most one {claim} in it")
    before, claim, after = found.groups(default="")
    return ClaimTemplate(before, claim_path(claim) if claim else (), after)


def claim_path(claim: str) -> tuple[str, ...]:
    """``name``, or ``[outer][inner]`` as Istio writes claims within claims."""
    if _NESTED.fullmatch(claim):
        return tuple(claim[1:-1].split("]["))
    if "[" in claim or "]" in claim:
        raise ValueError(f"has {claim!r}, which is neither name nor [outer][inner]")
    return (claim,)


def _claims(value: object, _: Path) -> Mapping[tuple[str, ...], tuple[object, ...]]:
    if not isinstance(value, dict) or not all(isinstance(name, str) and name for name in value):
        raise ValueError("is not an object of claims with lists of their values")
    found = {}
    for name, values in value.items():
        if not isinstance(values, list) or not all(isinstance(one, str | int | bool) for one in values):
            raise ValueError(f"has {name!r} without a list of strings, numbers, true or false")
        found[claim_path(name)] = tuple(values)
    return found


_FIELDS: Mapping[str, tuple[str, Callable[[object, Path], object]]] = {
    "issuer": ("issuer", _text),
    "audiences": ("audiences", _texts),
    "jwksUri": ("jwks_uri", _text),
    "jwks": ("jwks", _text),
    "jwksFile": ("jwks_file", _file),
    "caFile": ("ca_file", _file),
    "allowHttp": ("allow_http", _flag),
    "algorithms": ("algorithms", _algorithms),
    "namespace": ("namespace", _template),
    "serviceAccount": ("service_account", _template),
    "claims": ("claims", _claims),
}
"""The fields of a rule, each with ours and how it is read."""
