"""Consul's own mesh data: config entries and intentions, read by blocking queries, as events of the source.

An ACL that denies a query costs what that query asks for; `sight` says so.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from functools import partial

import attrs
import structlog
import trio

from mesh_pilot.base.reading import as_object, as_objects
from mesh_pilot.consul.client.api import Answer, ConsulApi
from mesh_pilot.consul.client.client import ConsulDeniedError, ConsulError
from mesh_pilot.consul.client.query_pool import PooledQuery
from mesh_pilot.consul.client.settings import DEFAULT_NAMESPACE, DEFAULT_PARTITION, ConsulSettings, IntentionDefault
from mesh_pilot.consul.mesh import ConsulMesh, LocationChange, MeshSettings, ServiceFacts
from mesh_pilot.consul.mesh.entries import KINDS
from mesh_pilot.consul.mesh.mesh import GLOBAL
from mesh_pilot.consul.mesh.values import ClientPort
from mesh_pilot.consul.source.instance import ConsulInstance
from mesh_pilot.consul.source.mapping import RESERVED, MappedService
from mesh_pilot.consul.source.sight import BLIND_SECONDS
from mesh_pilot.model.config import Config, ConfigError, ConfigKey, Problem
from mesh_pilot.model.events import Event
from mesh_pilot.model.service import CONNECT_TLS_MODE, Protocol
from mesh_pilot.sources.base.published import PublishedState

log = structlog.get_logger(scope="sources")

INTENTIONS = "the intentions"
CONSUL_VIRTUAL = "consul-virtual"
"""The tagged address that Consul gives services of its service mesh."""

_NOBODY = "mesh-pilot-asks-for-the-default-policy"
"""The name of no service: no intention but that of all services for all is about it."""


def entries_of(kind: str) -> str:
    """A query's name for people."""
    return f"the {kind} entries"


@attrs.frozen
class Denied:
    """The data of an answer to a query that Consul denies."""

    reason: str


@attrs.define
class AllowedQuery:
    """A query that may be denied: then it has no data, and is sent again after a while. State: whether it is."""

    query: PooledQuery
    is_denied: bool = False

    async def __call__(self, index: int, wait_seconds: float) -> Answer:
        if self.is_denied and index:
            await trio.sleep(BLIND_SECONDS)
        try:
            answer = await self.query(0 if self.is_denied else index, wait_seconds)
        except ConsulDeniedError as error:
            self.is_denied = True
            return Answer(1, Denied(str(error)))
        self.is_denied = False
        return answer


@attrs.frozen
class IntentionsAnswer:
    """The intentions, and what holds where there is none."""

    intentions: object
    default_allow: bool | None
    """None: Consul does not say."""


class MeshData:
    """The mesh data of a datacenter.

    State: `mesh`, the entries and their conversions; `_virtual`, the virtual addresses of services by the services,
    often of their proxies, that say them, and `_owners`, of whom each says some; `_known_default`, the default policy
    as Consul said it last, and whether it is known to be missing.
    """

    def __init__(self, source: str, settings: ConsulSettings, state: PublishedState[str]) -> None:
        self._source = source
        self._settings = settings
        self._state = state
        self.mesh = ConsulMesh(
            MeshSettings(
                domain=settings.domain,
                datacenter=settings.datacenter,
                namespace=settings.namespace,
                merged=settings.merges_others,
                reserved=RESERVED,
                peers=settings.peers,
                partition=settings.partition or DEFAULT_PARTITION,
                consul_namespace=settings.consul_namespace or DEFAULT_NAMESPACE,
            )
        )
        self._virtual: dict[str, dict[str, frozenset[str]]] = {}
        self._owners: dict[str, set[str]] = {}
        self._known_default: bool | None = None
        self._is_default_missing = False

    def queries(self, api: ConsulApi) -> Iterable[tuple[str, PooledQuery, str]]:
        """The queries, with their names and the kinds of entries they are for; empty: for intentions."""
        for kind in KINDS:
            what = entries_of(kind)
            yield what, AllowedQuery(partial(api.entries, kind)), kind
        yield INTENTIONS, AllowedQuery(partial(self._intentions, api)), ""

    async def _intentions(self, api: ConsulApi, index: int, wait_seconds: float) -> Answer:
        answer = await api.intentions(index, wait_seconds)
        return attrs.evolve(answer, data=IntentionsAnswer(answer.data, await self._default_allow(api, answer.data)))

    async def _default_allow(self, api: ConsulApi, intentions: object) -> bool | None:
        """True if connections that no intention is about are allowed; None if Consul does not say."""
        if self._settings.intention_default is not IntentionDefault.AUTO:
            return self._settings.intention_default is IntentionDefault.ALLOW
        try:
            if not any(_is_for_all(each) for each in as_objects(intentions)):
                answer = await api.is_allowed(_NOBODY, _NOBODY)
                return answer.get("Allowed") is True if isinstance(answer, Mapping) else None
            return default_of_agent(await api.agent.self())
        except ConsulError:
            return None

    # -- answers

    def loses_intentions(self, answer: IntentionsAnswer) -> bool:
        """True if an answer lacks all intentions that are known."""
        return not answer.intentions and self.mesh.has_intentions

    def lacks_entries(self, kind: str, data: object) -> bool:
        """True if an answer lacks entries that are known."""
        return bool(self.mesh.names(kind) - entries_by_name(data).keys())

    def take_entries(self, kind: str, data: object, *, keeps: bool) -> Iterable[str] | None:
        """Take the entries of a kind; those that the answer lacks stay if it `keeps` them.

        Returns the services whose protocol may be another one; None: all services.
        """
        found = entries_by_name(data)
        changed = [name for name, entry in sorted(found.items()) if self.mesh.put_entry(kind, name, entry)]
        for name in () if keeps else sorted(self.mesh.names(kind) - found.keys()):
            self.mesh.put_entry(kind, name, None)
            changed.append(name)
        if kind == GLOBAL.kind:
            return None if changed else ()
        return changed if kind == "service-defaults" else ()

    def take_intentions(self, answer: IntentionsAnswer) -> None:
        if answer.default_allow is not None:
            self._known_default = answer.default_allow
        is_missing = self._known_default is None
        if is_missing and not self._is_default_missing:
            log.warning(
                "intentions have no effect: Consul does not say its default policy",
                source=self._source,
                do="give the token agent:read, or say --consul-intention-default",
            )
        self._is_default_missing = is_missing
        self.mesh.set_default_allow(self._known_default is not False)
        self.mesh.put_intentions([] if is_missing else answer.intentions)

    # -- services

    def take_proxies(self, name: str, instances: Sequence[ConsulInstance]) -> set[str]:
        """Take the instances of a service: those of which its virtual addresses are others now."""
        found: dict[str, set[str]] = {}
        for instance in instances:
            owner = instance.proxied or (name if instance.is_served else "")
            if owner and CONSUL_VIRTUAL in instance.tagged:
                found.setdefault(owner, set()).add(instance.tagged[CONSUL_VIRTUAL][0])
        changed = set()
        for owner in found.keys() | self._owners.get(name, set()):
            said = self._virtual.setdefault(owner, {})
            before = said.pop(name, frozenset())
            if owner in found:
                said[name] = frozenset(found[owner])
            if before != said.get(name, frozenset()):
                changed.add(owner)
            if not said:
                del self._virtual[owner]
        self._owners.pop(name, None)
        if found:
            self._owners[name] = set(found)
        return changed

    def virtual_addresses(self, service: str) -> frozenset[str]:
        """The addresses of a service in Consul's own mesh."""
        return frozenset().union(*self._virtual.get(service, {}).values())

    def settings_for(self, service: str) -> ConsulSettings:
        """The settings for reading a service: entries say a protocol where instances say none."""
        said = self.mesh.protocol(service)
        protocol = Protocol.parse(said)
        return self._settings if protocol is Protocol.AUTO else attrs.evolve(self._settings, default_protocol=protocol)

    def take_service(self, name: str, reading: MappedService | None, instances: Sequence[ConsulInstance]) -> None:
        """Take what is served of a service, or None: it is gone."""
        if reading is None or reading.service is None or reading.endpoints is None:
            self.mesh.put_service(name, None)
            return
        if not self.mesh.settings.datacenter and instances:
            self.mesh.set_datacenter(instances[0].datacenter)
        endpoints = reading.endpoints.endpoints
        accounts = tuple(sorted({e.service_account for e in endpoints if e.service_account}))
        ports = tuple(sorted({e.port for e in endpoints if e.port and e.tls_mode != CONNECT_TLS_MODE}))
        clients = tuple(ClientPort(port.number, port.name) for port in reading.service.ports)
        has_http = any(port.protocol.is_http or port.protocol is Protocol.AUTO for port in reading.service.ports)
        self.mesh.put_service(name, ServiceFacts(reading.service.namespace, accounts, ports, clients, has_http))

    # -- events

    async def events(self, cause: str, is_users: Callable[[ConfigKey], bool]) -> AsyncIterator[Sequence[Event]]:
        """Convert what has changed, in parts; proxies are served between two of them."""
        for changes in self.mesh.flush():
            for change in changes:
                yield self._put(change, cause, is_users)
            await trio.lowlevel.checkpoint()

    def _put(self, change: LocationChange, cause: str, is_users: Callable[[ConfigKey], bool]) -> Sequence[Event]:
        configs: list[Config] = []
        problems = list(change.problems)
        for made in change.objects:
            try:
                config = made.config(self._source)
            except ConfigError as error:
                names = ", ".join(map(str, made.entries))
                problems += (Problem(names, f"is not a valid {made.kind}: {problem}") for problem in error.problems)
                continue
            if not is_users(config.key):
                configs.append(config)
        if not configs and not problems:
            return self._state.drop(change.location, cause=cause)
        return self._state.put(change.location, configs, problems, cause=cause)


def entries_by_name(data: object) -> dict[str, Mapping[str, object]]:
    """The entries of an answer by name; anything else is passed over."""
    found: dict[str, Mapping[str, object]] = {}
    for each in as_objects(data):
        name = each.get("Name")
        if isinstance(name, str) and name:
            found.setdefault(name, each)
    return found


def default_of_agent(answer: object) -> bool | None:
    """The default policy in an agent's own configuration; None if it is not there."""
    debug = as_object(answer, "DebugConfig")
    said = debug.get("DefaultIntentionPolicy")
    if said in ("allow", "deny"):
        return bool(said == "allow")
    resolver = debug.get("ACLResolverSettings")
    policy = resolver.get("ACLDefaultPolicy") if isinstance(resolver, Mapping) else debug.get("ACLDefaultPolicy")
    if debug.get("ACLsEnabled") is False:
        return True
    return bool(policy == "allow") if policy in ("allow", "deny") else None


def _is_for_all(intention: Mapping[str, object]) -> bool:
    return intention.get("SourceName") == intention.get("DestinationName") == "*"
