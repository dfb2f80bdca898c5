"""Callers with an ACL token of Consul: ``x-consul-token``. Consul is asked, with that token, whose it is.

A service identity ``web`` of the token is the service account ``web``. The namespace is the one that is configured;
what a service's metadata says counts only if that is permitted, as whoever may register a service writes it.

Source of the rules: Consul, "ACL System", "HTTP API: ACL Tokens". Only our own agent is ever asked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING

import attrs

from mesh_pilot.base.reading import as_list, as_object, as_objects
from mesh_pilot.identity.authenticators.compact_token import shown
from mesh_pilot.identity.authenticators.jwt import identity_of
from mesh_pilot.identity.authenticators.token_questions import Names, TokenQuestions
from mesh_pilot.identity.trust.callers import (
    AuthenticationError,
    Credentials,
    TrustDomainsNow,
)
from mesh_pilot.model.spiffe import Identity

if TYPE_CHECKING:
    from mesh_pilot.consul.client.api import ConsulApi
    from mesh_pilot.consul.source import ConsulSettings

TOKEN_HEADER = "x-consul-token"
SERVICE_HEADER = "x-consul-service"
"""Names one of the service identities of a token that has several."""

_SECRET = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
"""The form of a token. An empty one must not reach the agent: it would put in its own."""
ANONYMOUS = "00000000-0000-0000-0000-000000000002"
MANAGEMENT = "00000000-0000-0000-0000-000000000001"
"""The policy that permits everything."""

MAX_CALLERS = 8
"""Callers about whom Consul is asked at the same time; each is a connection to the agent."""
DEFAULT = "default"
"""The partition and the namespace of Consul where there is no other."""
MAX_ROLES = 20
"""Roles of a token that are read."""
REMEMBERED_SECONDS = 5.0


@attrs.frozen(kw_only=True)
class ConsulTokenSettings:
    """The agent to ask, and the namespace of identities."""

    datacenter: ConsulSettings
    trust_namespaces: bool = False
    """True if the namespace is the one that the source of services reads, from the service's metadata."""


@attrs.frozen
class ServiceIdentities:
    """The services that a token may be, each with the datacenters that limit it (none: all)."""

    services: Mapping[str, tuple[str, ...]]
    is_management: bool
    unread_roles: bool = False
    """True if there are roles that our own token may not read."""


class ConsulToken:
    """Judges ACL tokens by asking Consul; None: this control plane takes none.

    Mutable state: the questions, and our datacenter once it is known.
    """

    name = "consul"

    def __init__(self, settings: ConsulTokenSettings | None, trust_domains: TrustDomainsNow) -> None:
        self._settings = settings
        self._trust_domains = trust_domains
        self._datacenter = settings.datacenter.datacenter if settings else ""
        self._questions: TokenQuestions[ConsulApi] | None = None
        if settings is not None:
            from mesh_pilot.consul.client.api import open_api
            from mesh_pilot.consul.client.client import ConsulError

            self._questions = TokenQuestions(
                partial(open_api, settings.datacenter),
                failures=(ConsulError,),
                trouble="tokens cannot be looked up in Consul",
                refusal="Consul cannot be asked about its token now; the control plane's log says why",
                at_once=MAX_CALLERS,
                remembered_seconds=REMEMBERED_SECONDS,
            )

    @property
    def questions(self) -> int:
        """The number of tokens that Consul was asked about."""
        return self._questions.count if self._questions else 0

    async def authenticate(self, credentials: Credentials) -> Identity | None:
        tokens = credentials.metadata.get(TOKEN_HEADER, ())
        if not tokens:
            return None
        if self._settings is None or self._questions is None:
            raise AuthenticationError(
                "disabled",
                "this control plane takes no tokens of Consul: it was started without --accept-consul-tokens",
            )
        if len(tokens) > 1 or not _SECRET.fullmatch(tokens[0]):
            raise AuthenticationError("token_form", f"its {TOKEN_HEADER} is not the secret id of one ACL token")
        wanted = credentials.metadata.get(SERVICE_HEADER, ())
        if len(wanted) > 1:
            raise AuthenticationError("token_form", f"it has more than one {SERVICE_HEADER}")
        service = wanted[0] if wanted else ""
        ask = partial(self._names, self._settings, tokens[0], service)
        names = await self._questions.names(f"{tokens[0]} {service}", ask)
        return identity_of(self._trust_domains().own, *names)

    async def _names(self, settings: ConsulTokenSettings, token: str, wanted: str, api: ConsulApi) -> Names:
        found = await _service_identities(api, settings.datacenter, token)
        service = chosen(found, wanted)
        limits = found.services[service]
        if limits and await self._here(api) not in limits:
            raise AuthenticationError(
                "datacenter", f"the ACL token is for {shown(service)} in {', '.join(limits)} only"
            )
        if settings.trust_namespaces:
            return await _namespace_of(api, service, settings.datacenter), service
        return settings.datacenter.namespace, service

    async def _here(self, api: ConsulApi) -> str:
        """The datacenter of our agent: as configured, else that of the servers it knows. Raises ConsulError."""
        from mesh_pilot.consul.client.client import ConsulError

        if not self._datacenter:
            _, servers = await api.catalog.service("consul")
            names = {str(server.get("Datacenter")) for server in as_objects(servers)}
            if len(names) != 1:
                raise ConsulError("which datacenter this is cannot be found out; name it with --consul-datacenter")
            self._datacenter = names.pop()
        return self._datacenter


async def _service_identities(api: ConsulApi, datacenter: ConsulSettings, token: str) -> ServiceIdentities:
    """The service identities of a token; Consul is asked with it. Raises AuthenticationError and ConsulError."""
    from mesh_pilot.consul.client.client import ConsulDeniedError, ConsulError

    try:
        said = await api.acl_tokens.self(token)
    except ConsulDeniedError:
        raise AuthenticationError(
            "unknown_token", "Consul knows no such ACL token: it is wrong, expired or deleted"
        ) from None
    if not isinstance(said, dict):
        raise ConsulError("Consul does not say whose token this is; are its ACLs enabled?")
    if said.get("AccessorID") == ANONYMOUS:
        raise AuthenticationError("anonymous", "the ACL token is the anonymous one, which anybody has")
    check_place(said, datacenter)
    if _is_past(said.get("ExpirationTime")):
        raise AuthenticationError("expired", "the ACL token has expired")
    holders: list[Mapping[str, object]] = [said]
    unread = False
    for role in islice(as_objects(said, "Roles"), MAX_ROLES):
        try:
            holders.append(as_object(await api.acl_roles.get(role.get("ID"))))  # of one that is deleted, nothing
        except ConsulDeniedError:
            unread = True
    policies = chain.from_iterable(as_objects(holder, "Policies") for holder in holders)
    return ServiceIdentities(_services(holders), any(policy.get("ID") == MANAGEMENT for policy in policies), unread)


def check_place(said: Mapping[str, object], datacenter: ConsulSettings) -> None:
    """Refuse a token of another partition or namespace of Consul Enterprise, where others make the tokens.

    Raises AuthenticationError.
    """
    for field, own in (("Partition", datacenter.partition), ("Namespace", datacenter.consul_namespace)):
        found = said.get(field) or DEFAULT
        if found != (own or DEFAULT):
            raise AuthenticationError("place", f"the ACL token is of another {field.lower()} of Consul: {shown(found)}")


def chosen(found: ServiceIdentities, wanted: str) -> str:
    """The service that a caller is, who may have said which (else empty). Raises AuthenticationError."""
    if wanted:
        if wanted not in found.services:
            raise AuthenticationError("service", f"the ACL token has no service identity {shown(wanted)}")
        return wanted
    if len(found.services) == 1 and not found.is_management:
        return next(iter(found.services))
    if found.services:
        raise AuthenticationError(
            "ambiguous",
            f"the ACL token may be several services, or is for management: {SERVICE_HEADER} has to name one",
        )
    if found.is_management:
        raise AuthenticationError("management", "the ACL token is for management, and names no workload")
    unread = (
        "; its roles were not read, as the token of this control plane lacks acl:read" if found.unread_roles else ""
    )
    raise AuthenticationError("no_service", f"the ACL token has no service identity{unread}")


async def _namespace_of(api: ConsulApi, service: str, datacenter: ConsulSettings) -> str:
    """The namespace of a service, as the source of services reads it. Raises ConsulError."""
    from mesh_pilot.consul.source.instance import is_entry, read_instance
    from mesh_pilot.consul.source.mapping import read_service

    answer = await api.instances(service, 0, 0.0)
    found = map(read_instance, filter(is_entry, as_list(answer.data)))
    mapped = read_service(service, found, datacenter).service
    return mapped.namespace if mapped else datacenter.namespace


def _services(holders: Iterable[Mapping[str, object]]) -> Mapping[str, tuple[str, ...]]:
    """The service identities of a token and its roles."""
    services: dict[str, tuple[str, ...]] = {}
    for identity in chain.from_iterable(as_objects(holder, "ServiceIdentities") for holder in holders):
        name, limits = identity.get("ServiceName"), identity.get("Datacenters") or []
        if isinstance(name, str) and isinstance(limits, list):
            before = services.get(name)
            services[name] = () if not limits or before == () else (*(before or ()), *map(str, limits))
    return services


def _is_past(time: object) -> bool:
    if not isinstance(time, str) or not time:
        return False
    try:
        return datetime.fromisoformat(time) <= datetime.now(UTC)
    except (ValueError, TypeError):
        return True
