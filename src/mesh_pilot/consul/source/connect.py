"""Consul's own mesh (Connect): its roots, the leaves of services that have moved, and the proxies of the others.

A leaf is asked for as soon as an instance of the service says ``tls_mode``: then it has a proxy of ours, or is to
have one. Consul's agent makes the key, keeps the leaf and renews it. It is passed on as a Secret that names who may
have it: the service accounts of that service, which intentions take for the service anyway. What Consul refuses, and
what can't be used, leaves the last leaf as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime

import attrs
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from mesh_pilot.base.reading import as_objects, as_string
from mesh_pilot.consul.client.api import Answer, ConsulApi
from mesh_pilot.consul.client.client import ConsulDeniedError, ConsulError
from mesh_pilot.consul.source.instance import ConsulInstance
from mesh_pilot.consul.source.mapping import ConnectFacts, MappedService
from mesh_pilot.model.config import Problem
from mesh_pilot.model.connect import CONNECT_ROOTS, connect_caller, connect_leaf, parse_connect_id
from mesh_pilot.model.events import Event, Grant, Secret
from mesh_pilot.model.service import CONNECT_TLS_MODE, MESH_TLS_MODE
from mesh_pilot.model.spiffe import SCHEME
from mesh_pilot.sources.base.published import PublishedState

ROOTS = "Connect's roots"
_PROXY = "connect-proxy"
"""The kind of a sidecar; gateways have other ones."""
_IS_OFF = "Connect must be enabled"


class LeafError(ValueError):
    """A leaf or roots that can't be used."""


def leaf_of(service: str) -> str:
    """A query's name for people."""
    return f"the leaf of {service}"


@attrs.frozen
class _Leaf:
    chain: bytes
    key: bytes = attrs.field(repr=False)


class ConnectData:
    """Consul's own mesh as far as it concerns ours.

    State: `trust_domain` (empty: not known), `_roots`; `_sidecars`, those that each service's instances are, and
    `_of_service`, the same by the service that they are for; `_leaves`, and `_accounts` that may have them;
    `_published`, the Secrets of each service.
    """

    def __init__(self, state: PublishedState[str], now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self.trust_domain = ""
        self._state = state
        self._now = now
        self._roots = b""
        self._sidecars: dict[str, tuple[ConsulInstance, ...]] = {}
        self._of_service: dict[str, dict[tuple[str, str], ConsulInstance]] = {}
        self._leaves: dict[str, _Leaf] = {}
        self._accounts: dict[str, frozenset[Grant]] = {}
        self._published: dict[str, tuple[Secret, ...]] = {}

    # -- proxies

    def take_proxies(self, name: str, instances: Sequence[ConsulInstance]) -> set[str]:
        """Take the instances of a service, which may be sidecars: the services whose sidecars are others now."""
        found = tuple(i for i in instances if i.kind == _PROXY and i.proxied and i.proxied_id)
        before = self._sidecars.get(name, ())
        if found == before:
            return set()
        if found:
            self._sidecars[name] = found
        else:
            self._sidecars.pop(name)
        owners = {i.proxied for i in (*found, *before)}
        for owner in owners:
            every = (i for sidecars in self._sidecars.values() for i in sidecars if i.proxied == owner)
            self._of_service[owner] = {(i.node, i.proxied_id): i for i in every}
        return owners

    def facts(self, service: str) -> ConnectFacts:
        return ConnectFacts(self.trust_domain, self._of_service.get(service, {}))

    # -- roots

    async def ask_roots(self, api: ConsulApi, index: int, wait_seconds: float) -> Answer:
        """The roots. Raises ConsulError, and ConsulDeniedError where Connect is off: that is an answer, too."""
        try:
            return await api.connect_roots(index, wait_seconds)
        except ConsulError as error:
            raise ConsulDeniedError(str(error)) from None if _IS_OFF in str(error) else error

    def take_roots(self, data: object, cause: str) -> tuple[Sequence[Event], bool]:
        """Take the roots: the events, and True if the trust domain is another one now."""
        try:
            domain, roots = read_roots(data)
        except LeafError as error:
            return self._state.refuse(ROOTS, (Problem("", f"{error}; the last roots are kept"),)), False
        is_other, self.trust_domain, self._roots = domain != self.trust_domain, domain, roots
        secret = Secret(CONNECT_ROOTS, ca_certificates=roots, is_guarded=True)
        return self._state.put(ROOTS, (secret,), cause=cause), is_other

    # -- leaves

    def wants_leaf(self, instances: Iterable[ConsulInstance]) -> bool:
        """True if an instance of a service has a proxy of ours, or is to have one."""
        modes = (MESH_TLS_MODE, CONNECT_TLS_MODE)
        return any(i.is_served and i.facts.get("tls_mode") in modes for i in instances)

    def take_leaf(self, service: str, data: object, cause: str) -> Sequence[Event]:
        """Take the leaf of a service, or None: it is not followed any more."""
        if data is None:
            self._leaves.pop(service, None)
            return [*self._republished(cause), *self._state.drop(leaf_of(service), cause=cause)]
        try:
            self._leaves[service] = read_leaf(data, service, self.trust_domain, self._now())
        except LeafError as error:
            return self._state.refuse(leaf_of(service), (Problem("", f"{error}; the last leaf is kept"),))
        return self._republished(cause, fresh=service)

    def take_service(self, name: str, reading: MappedService | None, cause: str) -> Sequence[Event]:
        """Take what is served of a service: who may have its leaf."""
        before = self._accounts.pop(name, frozenset())
        if reading is not None and reading.service is not None and reading.endpoints is not None:
            said = {e.service_account for e in reading.endpoints.endpoints if e.service_account}
            namespace = reading.service.namespace
            self._accounts[name] = frozenset(filter(None, map(_grant, said))) or frozenset((Grant(namespace, name),))
        changed = before != self._accounts.get(name, frozenset()) and name in self._leaves
        return self._republished(cause) if changed else ()

    def _republished(self, cause: str, fresh: str = "") -> Sequence[Event]:
        """The events of all Secrets that are others now, and of a service whose leaf was read just now.

        An account that several services have is, as a caller, the service of its name, else the first.
        """
        callers: dict[Grant, str] = {}
        for service in sorted(self._leaves):
            for account in self._accounts.get(service, ()):
                if account not in callers or account.service_account == service:
                    callers[account] = service
        events: list[Event] = []
        for service in sorted(self._leaves.keys() | self._published.keys()):
            secrets = tuple(self._secrets(service, callers))
            if service == fresh or secrets != self._published.get(service, ()):
                self._published[service] = secrets
                events += self._state.put(leaf_of(service), secrets, cause=cause)
            if not secrets:
                del self._published[service]
        return events

    def _secrets(self, service: str, callers: Mapping[Grant, str]) -> Iterable[Secret]:
        leaf, grants = self._leaves.get(service), sorted(self._accounts.get(service, ()), key=attrs.astuple)
        if leaf is None or not grants:
            return
        yield Secret(connect_leaf(service), "", leaf.chain, leaf.key, grants=tuple(grants), is_guarded=True)
        for grant in grants:
            if callers.get(grant) == service:
                name = connect_caller(grant.namespace, grant.service_account)
                yield Secret(name, "", leaf.chain, leaf.key, grants=(grant,), is_guarded=True)


def _grant(account: str) -> Grant | None:
    """The grant to an account that an endpoint has: a SPIFFE id, or its path."""
    parts = account.removeprefix(SCHEME).split("/")
    match parts[1:] if account.startswith(SCHEME) else parts:
        case ["ns", namespace, "sa", name]:
            return Grant(namespace, name)
        case _:
            return None


def read_roots(data: object) -> tuple[str, bytes]:
    """The trust domain of Consul's mesh and its roots in PEM, all that are active. Raises LeafError."""
    domain = as_string(data, "TrustDomain").lower()
    roots = [as_string(each, "RootCert").strip() for each in as_objects(data, "Roots")]
    try:
        for each in roots:
            x509.load_pem_x509_certificates(each.encode())
    except ValueError as error:
        raise LeafError(f"a root of Connect can't be read as a certificate: {error}") from None
    if not domain or not roots:
        raise LeafError("Consul's answer has no trust domain or no root")
    return domain, "".join(f"{root}\n" for root in roots).encode()


def read_leaf(data: object, service: str, trust_domain: str, now: datetime) -> _Leaf:
    """A leaf that can be presented. Raises LeafError."""
    chain, key = as_string(data, "CertPEM").encode(), as_string(data, "PrivateKeyPEM").encode()
    try:
        certificate = x509.load_pem_x509_certificates(chain)[0]
        private = serialization.load_pem_private_key(key, None)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    except (ValueError, TypeError, IndexError, x509.ExtensionNotFound) as error:
        raise LeafError(
            f"what Consul gives for {service} can't be read as a certificate with its key: {error}"
        ) from None
    if _public(private.public_key()) != _public(certificate.public_key()):
        raise LeafError(f"Consul's key for {service} is not that of its certificate")
    named = parse_connect_id(uris[0]) if len(uris) == 1 else None
    if named is None or (named.trust_domain.lower(), named.service.lower()) != (trust_domain, service.lower()):
        raise LeafError(f"Consul's certificate for {service} is for {', '.join(uris) or 'no name'}")
    if certificate.not_valid_after_utc <= now:
        raise LeafError(f"Consul's certificate for {service} ended at {certificate.not_valid_after_utc:%F %T} UTC")
    return _Leaf(chain, key)


def _public(key: object) -> bytes:
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return bytes(key.public_bytes(serialization.Encoding.DER, form))  # type: ignore[attr-defined]
