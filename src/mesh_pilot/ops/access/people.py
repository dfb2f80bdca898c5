"""The people who may use the web port: the file of ``--api-people-file``.

issuer: https://login.example.com/realms/mesh
clientId: mesh-pilot
url: https://pilot.example.com:8080
roles:
- {role: operate, groups: [platform]}
- {role: edit, namespaces: [shop, cart], groups: [shop-team], users: [alice@example.com]}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import attrs
import yaml

from mesh_pilot.identity.authenticators.token_issuers import TokenIssuer, claim_path
from mesh_pilot.identity.openid.settings import ClientSettings
from mesh_pilot.istio.rules.authentication import http_url_reason
from mesh_pilot.ops.access.read_again import AccessError, ReadAgain
from mesh_pilot.ops.access.roles import is_namespace
from mesh_pilot.ops.api.visitors import EVERYWHERE, Role, Visitor, largest

MOST_GROUPS = 1000
"""Groups of a person that count."""


@attrs.frozen
class Person:
    """A person, as a token of the issuer says."""

    subject: str
    """The issuer's name of them, which never changes."""
    name: str
    """The name for logs and for ``users``: the claim that the file names, else the subject."""
    groups: tuple[str, ...]
    until: float
    """The end of the token, in seconds since 1970."""


@attrs.frozen
class RoleRule:
    """A role for people, in namespaces."""

    role: Role
    namespaces: Sequence[str]
    groups: frozenset[str]
    users: frozenset[str]

    def is_for(self, person: Person) -> bool:
        return person.name in self.users or not self.groups.isdisjoint(person.groups)


@attrs.frozen(kw_only=True)
class PeopleRules:
    """The content of the file."""

    client: ClientSettings
    cli_client_id: str
    """The client that the command line logs in with."""
    url: str
    """The address of the page, as browsers know it; without a slash at its end."""
    issuer: TokenIssuer
    """The tokens that are believed."""
    groups_claim: tuple[str, ...] = ("groups",)
    user_claim: tuple[str, ...] = ("email",)
    roles: Sequence[RoleRule] = ()

    @classmethod
    def parse(cls, text: str, place: str) -> PeopleRules:
        """Raises AccessError for the first thing that is wrong."""
        try:
            document = yaml.safe_load(text)
        except (yaml.YAMLError, RecursionError) as error:
            raise AccessError(f"{place}: is not YAML: {' '.join(str(error).split())[:300]}") from None
        values = _read(document, place, _FIELDS, ("issuer", "clientId", "url", "roles"), Path(place).parent)
        _check_https(values, place)
        client = ClientSettings(
            issuer=values["issuer"],
            client_id=values["clientId"],
            client_secret_file=values.get("clientSecretFile"),
            scopes=values.get("scopes", ()),
            ca_file=values.get("caFile"),
            allow_http=values.get("allowHttp", False),
        )
        cli = values.get("cliClientId", client.client_id)
        issuer = TokenIssuer(
            issuer=client.issuer,
            audiences=frozenset({client.client_id, cli, *values.get("audiences", ())}),
            ca_file=client.ca_file,
            allow_http=client.allow_http,
        )
        return cls(
            client=client,
            cli_client_id=cli,
            url=values["url"].rstrip("/"),
            issuer=issuer,
            groups_claim=values.get("groupsClaim", ("groups",)),
            user_claim=values.get("userClaim", ("email",)),
            roles=values["roles"],
        )

    @property
    def host(self) -> str:
        """Host and port of the page."""
        return urlsplit(self.url).netloc.lower()

    def person(self, claims: Mapping[str, Any]) -> Person:
        """The person whom the claims of a verified token name. Raises AccessError for a token that names none."""
        subject = claims.get("sub")
        if not isinstance(subject, str) or not subject or not subject.isprintable():
            raise AccessError("the token has no subject ('sub')")
        name = _claim(claims, self.user_claim)
        # An address that the issuer has not verified may be anybody's.
        is_proven = self.user_claim != ("email",) or claims.get("email_verified", True) is True
        is_name = isinstance(name, str) and name.isprintable() and 0 < len(name) <= 200
        given = _claim(claims, self.groups_claim)
        groups = [given] if isinstance(given, str) else given if isinstance(given, list) else []
        named = [each for each in groups[:MOST_GROUPS] if isinstance(each, str) and each.isprintable()]
        return Person(
            subject[:200],
            str(name) if is_name and is_proven else subject[:200],
            tuple(dict.fromkeys(named)),
            float(claims["exp"]),
        )

    def visitor(self, person: Person, how: str) -> Visitor:
        """A person with the roles that they have by these rules: in each namespace the largest one."""
        grants = largest(dict.fromkeys(rule.namespaces, rule.role) for rule in self.roles if rule.is_for(person))
        return Visitor(person.name, grants, how, b"", person.subject, person.groups, person.until)


class PeopleFile(ReadAgain[PeopleRules]):
    """The rules of a file of people."""

    def __init__(self, path: Path) -> None:
        """Raises AccessError."""
        super().__init__(path, "people", PeopleRules.parse)


def _claim(claims: Mapping[str, Any], path: Sequence[str]) -> object:
    value: object = claims
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


Reader = Callable[[object, Path], Any]
"""Makes a value of what is in the file. Raises ValueError, with what is wrong."""


def _read(
    document: object, place: str, fields: Mapping[str, Reader], required: Sequence[str], folder: Path
) -> dict[str, Any]:
    if not isinstance(document, dict):
        raise AccessError(f"{place}: is not an object with {', '.join(fields)}")
    if unknown := sorted(str(name) for name in document.keys() - fields.keys()):
        raise AccessError(f"{place}: {unknown[0][:40]!r} is not known; there are {', '.join(fields)}")
    if missing := next((name for name in required if name not in document), None):
        raise AccessError(f"{place}: {missing} is missing")
    found = {}
    for name, value in document.items():
        try:
            found[name] = fields[name](value, folder)
        except ValueError as error:
            raise AccessError(f"{place}: {name} {error}") from None
    return found


def _check_https(values: Mapping[str, Any], place: str) -> None:
    for name in ("issuer", "url"):
        if reason := http_url_reason(values[name]):
            raise AccessError(f"{place}: {name}: {reason}")
        if urlsplit(values[name]).scheme != "https" and not values.get("allowHttp"):
            raise AccessError(
                f"{place}: {name} {values[name][:100]} is not https: whoever is on the way could log in as anybody;"
                " allowHttp: true permits it, for tests"
            )
    if urlsplit(values["url"]).path.strip("/"):
        raise AccessError(f"{place}: url has a path; the page is at the root of its host")


def _text(value: object, _: Path) -> str:
    if not isinstance(value, str) or not value or not value.isprintable():
        raise ValueError("is not a string")
    return value


def _texts(value: object, _: Path) -> tuple[str, ...]:
    if not isinstance(value, list) or not value or not all(isinstance(one, str) and one for one in value):
        raise ValueError("is not a list of strings")
    return tuple(value)


def _file(value: object, folder: Path) -> Path:
    return folder / _text(value, folder)


def _flag(value: object, _: Path) -> bool:
    if not isinstance(value, bool):
        raise ValueError("is neither true nor false")
    return value


def _path(value: object, folder: Path) -> tuple[str, ...]:
    return claim_path(_text(value, folder))


def _role(value: object, _: Path) -> Role:
    if not isinstance(value, str) or value not in [*Role]:
        raise ValueError(f"is not one of {', '.join(Role)}")
    return Role(value)


def _namespaces(value: object, folder: Path) -> tuple[str, ...]:
    found = _texts(value, folder)
    if wrong := next((each for each in found if not is_namespace(each)), None):
        raise ValueError(f'has {wrong[:40]!r}, which is neither the name of a namespace nor "*"')
    return found


def _roles(value: object, folder: Path) -> tuple[RoleRule, ...]:
    if not isinstance(value, list):
        raise ValueError("is not a list of objects with role, namespaces, groups, users")
    return tuple(_rule(f"[{number}]", each, folder) for number, each in enumerate(value))


def _rule(where: str, value: object, folder: Path) -> RoleRule:
    try:
        found = _read(value, where, _RULE, ("role",), folder)
    except AccessError as error:
        raise ValueError(str(error)) from None
    if not found.keys() & {"groups", "users"}:
        raise ValueError(f"{where}: names neither groups nor users")
    return RoleRule(
        found["role"],
        found.get("namespaces", (EVERYWHERE,)),
        frozenset(found.get("groups", ())),
        frozenset(found.get("users", ())),
    )


_FIELDS: Mapping[str, Reader] = {
    "issuer": _text,
    "clientId": _text,
    "clientSecretFile": _file,
    "cliClientId": _text,
    "url": _text,
    "scopes": _texts,
    "audiences": _texts,
    "groupsClaim": _path,
    "userClaim": _path,
    "caFile": _file,
    "allowHttp": _flag,
    "roles": _roles,
}

_RULE: Mapping[str, Reader] = {"role": _role, "namespaces": _namespaces, "groups": _texts, "users": _texts}
