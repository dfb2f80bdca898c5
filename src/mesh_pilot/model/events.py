"""Items, the objects that sources report, and the events by which they do so.

An event is whole on its own: `Upsert` and `Delete` carry a key, `Replace` a source's full state, and nothing refers to
what was sent before. So events of several sources may mix in any order, an overflowing channel needs no replay, and
workers get the same values by another way. The key of an item is unique within its source alone; precedence between
sources is the World's affair, and an event never says whether it takes effect.

Equality is what makes an edit cheap: an item equal to the one before it changes nothing. Where an object was read, and
its warnings, are left out of it (``eq=False``), as a comment moved by a line is not a news to a proxy.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Protocol

import attrs

from mesh_pilot.model.config import Config, ConfigKey, Origin, Problem
from mesh_pilot.model.modules import ModuleRef
from mesh_pilot.model.service import Endpoint, Service, ServiceKey


@attrs.frozen
class Endpoints:
    """All endpoints of one service in one registry."""

    service: ServiceKey
    endpoints: tuple[Endpoint, ...] = ()


@attrs.frozen
class MeshConfigValue:
    """The mesh-wide configuration (Istio's MeshConfig, decoded and merged over the defaults)."""

    config: Any
    origin: Origin = attrs.field(default=Origin("memory"), eq=False)
    warnings: tuple[Problem, ...] = attrs.field(default=(), eq=False)
    passed: tuple[str, ...] = ()
    """Marks of the control planes that it came through."""


@attrs.frozen
class MeshNetworksValue:
    """The networks of the mesh (Istio's MeshNetworks)."""

    networks: Any
    origin: Origin = attrs.field(default=Origin("memory"), eq=False)
    warnings: tuple[Problem, ...] = attrs.field(default=(), eq=False)
    passed: tuple[str, ...] = ()
    """Marks of the control planes that it came through."""


@attrs.frozen
class Grant:
    """A permission to have a credential."""

    namespace: str
    """The namespace whose gateways may have it."""
    service_account: str = ""
    """The service account, if there is one, whose proxies in the namespace may all have it."""


@attrs.frozen
class Secret:
    """A TLS credential by name, as gateways' ``credentialName`` refers to it. PEM bytes; empty where absent."""

    name: str
    namespace: str = ""
    """Empty: the mesh's root namespace."""
    certificate_chain: bytes = b""
    private_key: bytes = attrs.field(default=b"", repr=False)
    ca_certificates: bytes = b""
    crl: bytes = b""
    grants: tuple[Grant, ...] = ()
    """Permissions beyond those of the gateways of its namespace."""
    is_guarded: bool = False
    """True if the key is not for every gateway of its namespace: only by grants, and by Gateways that refer to it."""
    is_outdated: bool = False
    """True if its present version was refused, and this is the last good one. Istio's kinds use that; for the Gateway
    API it is not a valid reference. Only the World says so, never a source."""
    docker_config: bytes = attrs.field(default=b"", repr=False)
    """The credentials of registries of images (``.dockerconfigjson``), in place of the rest; for this server alone."""

    @property
    def is_private(self) -> bool:
        """True if it has what only its own proxies may see."""
        return bool(self.private_key or self.docker_config)


@attrs.frozen
class KeySet:
    """The public keys by which tokens of an issuer are checked, found by its name or at a URL; the other is empty."""

    issuer: str
    url: str
    keys: str = ""
    """A JSON Web Key Set; empty while it cannot be fetched."""


@attrs.frozen
class WasmModule:
    """A WebAssembly module that was fetched for objects, or could not be."""

    ref: ModuleRef
    path: str = ""
    """The file that it lies in, named by its checksum; empty while it never could be fetched."""
    sha256: str = ""
    """The checksum of the file."""
    trouble: str = ""
    """Why it can't be fetched, or fetched again; empty while all is well."""

    @property
    def is_there(self) -> bool:
        """True if there are bytes to run."""
        return bool(self.sha256)


@attrs.frozen
class ExtensionInForce:
    """The settings that an object with a module had when its module was last there.

    They are kept while another module that it asks for is fetched, and if that is not available.
    """

    key: ConfigKey
    spec: bytes = attrs.field(repr=False)
    """An encoded WasmConfig of Istio's."""
    module: WasmModule


@attrs.frozen
class WorkloadHealth:
    """The health of a workload as it was reported, by the name of its WorkloadEntry."""

    namespace: str
    name: str
    is_healthy: bool
    reason: str = ""
    """Why it is not."""


@attrs.frozen
class ResolvedHost:
    """The IP addresses of a host name that proxies are to be given addresses for, such as that of a load balancer."""

    host: str
    addresses: tuple[str, ...] = ()


def key_set_of(issuer: str, jwks_uri: str) -> tuple[str, str]:
    """Issuer and URL of the KeySet for a rule of a RequestAuthentication without inline keys; one of them is empty."""
    return ("", jwks_uri) if jwks_uri else (issuer, "")


@attrs.frozen
class Refusal:
    """A client's refusal of resources (a NACK), as the reason why something is withheld."""

    proxy: str
    """Name of the client, ``web-1.shop``."""
    build: str
    """See ``Proxy.build``."""
    type_url: str
    resources: tuple[str, ...]
    """Names of the refused resources."""
    words: str
    """The client's reason."""
    at: datetime


@attrs.frozen
class Withheld:
    """An item that clients refuse, and the value that they get in its place while it stays as it is."""

    key: tuple[str, ...]
    """See ``item_key``."""
    refused: tuple[Item, ...]
    """The refused value: the item as all sources have it, the one that wins first."""
    served: tuple[Item, ...]
    """The last accepted value; empty: the item is left out."""
    refusal: Refusal = attrs.field(eq=False)
    fields: tuple[str, ...] = attrs.field(default=(), eq=False)
    """The paths of fields whose texts are in the client's reason, for people."""

    @property
    def origin(self) -> str:
        """The location of the refused object for people; empty if it has none."""
        return next((str(item.origin) for item in self.refused if isinstance(item, Config)), "")

    @property
    def in_its_place(self) -> str:
        """Text: what clients get in its place."""
        return "the last accepted version" if self.served else "nothing, it is left out"


@attrs.frozen
class Quarantine:
    """The items that are withheld from the clients of a domain; without any it is an exception from wider domains."""

    domain: str
    """See ``Proxy.domains``."""
    withheld: tuple[Withheld, ...]
    is_trial: bool = False
    """True while it is being found out which of them a client refuses."""
    within: tuple[str, ...] = ()
    """The wider domains that this one is a part of, the narrowest first."""


@attrs.frozen
class RolloutPlan:
    """The way of a change from the first proxies to all."""

    steps: tuple[float, ...] = (5.0, 25.0, 50.0, 100.0)
    """Shares of the connected proxies in percent, the last one 100; 0: those that are selected, and no others."""
    interval: float = 120.0
    """Seconds that a step takes at least."""
    within: float | None = None
    """Seconds in which the change has to come; None: it may come at any time."""
    labels: tuple[tuple[str, str], ...] = ()
    """Labels of the proxies that are first,"""
    names: tuple[str, ...] = ()
    """or patterns of their names."""
    judged_by: str = "not worse"
    """The condition under which it continues; ``safety.rollout.conditions`` has the grammar."""
    by_weights: bool = False
    """True if a change of weights goes to all proxies, in steps of its way: shares are of that then."""

    @property
    def selects(self) -> bool:
        """True if it says which proxies are first."""
        return bool(self.labels or self.names)


@attrs.frozen
class NewValue:
    """A changed object of which some proxies still get the old value."""

    key: tuple[str, ...]
    """See ``item_key``."""
    new: tuple[Item, ...]
    """The item as all sources have it now, the one that wins first; empty if none has it."""
    old: tuple[Item, ...]
    is_held: bool = False
    """True if it was taken back: all proxies get the old value."""
    start: tuple[Item, ...] = ()
    """The value before, where ``old`` has weights between that one's and the new one's; else empty."""

    @property
    def before(self) -> tuple[Item, ...]:
        """The value before the change."""
        return self.start or self.old

    @property
    def origin(self) -> str:
        """The location of the object for people, or that where it was; empty if it has none."""
        return next((str(item.origin) for item in (*self.new, *self.old) if isinstance(item, Config)), "")


@attrs.frozen
class RolloutState:
    """Changed objects that go to a share of the proxies first. Without any it is armed: the next change is the one."""

    plan: RolloutPlan
    changes: tuple[NewValue, ...] = ()
    step: int = 0
    """The place in the steps of the plan."""
    canary: tuple[str, ...] = ()
    """The node ids of the proxies that get the new values, in the order in which they were chosen."""
    is_paused: bool = False
    reason: str = ""
    """Why changes are held; empty if none is."""

    @property
    def share(self) -> float:
        """The present step, in percent."""
        return self.plan.steps[self.step]

    @property
    def held(self) -> tuple[NewValue, ...]:
        """The changes that were taken back."""
        return tuple(each for each in self.changes if each.is_held)

    @property
    def is_running(self) -> bool:
        """True if there are changes that some proxies have, or are to have."""
        return any(not each.is_held for each in self.changes)


@attrs.frozen
class HostClaim:
    """The claim of a namespace to a host, towards the clients that it exports its objects to."""

    namespace: str
    to: str = "*"
    """The namespace of the clients; ``*``: any."""
    left: datetime | None = None
    """When the namespace ceased to have an object for the host; None: it has one."""


@attrs.frozen
class HostOwners:
    """The owners of a host that several namespaces claim: the first of ``order`` that concerns a client has it."""

    gateway: str
    """The gateway of VirtualServices: ``namespace/name``, or ``mesh`` for sidecars; empty: services."""
    host: str
    """A full host name or wildcard."""
    order: tuple[HostClaim, ...]


@attrs.frozen
class ChallengeAnswer:
    """The answer to an issuer's question whether a host is ours (RFC 8555, http-01). It is public."""

    host: str
    token: str = attrs.field(repr=False)
    text: str

    @property
    def path(self) -> str:
        """Where the issuer asks, on port 80 of the host."""
        return f"/.well-known/acme-challenge/{self.token}"


@attrs.frozen
class Challenges:
    """The answers that gateways give while certificates are ordered."""

    answers: tuple[ChallengeAnswer, ...] = ()
    """Sorted by host and token."""


Item = (
    Config
    | Service
    | Endpoints
    | MeshConfigValue
    | MeshNetworksValue
    | Secret
    | KeySet
    | ResolvedHost
    | WasmModule
    | ExtensionInForce
    | WorkloadHealth
    | Quarantine
    | RolloutState
    | HostOwners
    | Challenges
)
"""An object of a source."""


def item_key(item: Item) -> tuple[str, ...]:
    """The key of an item within its source: its collection first, so that collections never collide."""
    match item:  # not a method of each: the keys of all kinds must be seen to differ, and the state stores them
        case Config():
            return ("config", *item.key)
        case Service():
            return ("service", *item.key)
        case Endpoints():
            return ("endpoints", *item.service)
        case MeshConfigValue():
            return ("mesh",)
        case MeshNetworksValue():
            return ("networks",)
        case Secret():
            return ("secret", item.namespace, item.name)
        case KeySet():
            return ("keys", item.issuer, item.url)
        case ResolvedHost():
            return ("addresses", item.host)
        case WasmModule():
            return ("module", item.ref.url, item.ref.sha256, *item.ref.pull_secret)
        case ExtensionInForce():
            return ("extension", *item.key)
        case WorkloadHealth():
            return ("health", item.namespace, item.name)
        case Quarantine():
            return ("quarantine", item.domain)
        case RolloutState():
            return ("rollout",)
        case HostOwners():
            return ("owners", item.gateway, item.host)
        case Challenges():
            return ("challenges",)


@attrs.frozen
class Upsert:
    """An item is new or changed."""

    source: str
    item: Item
    cause: str = attrs.field(default="", eq=False)
    """The reason for the source to say so, where it is more than the item's origin: ``Consul index 1234``."""


@attrs.frozen
class Delete:
    """An item is gone. ``key`` is what ``item_key`` gives for it."""

    source: str
    key: tuple[str, ...]
    cause: str = attrs.field(default="", eq=False)
    """As of an Upsert."""
    is_explicit: bool = attrs.field(default=False, eq=False)
    """True if somebody deleted it and the source heard so; False if the source only sees it no more (`world.guard`)."""


@attrs.frozen
class Replace:
    """All objects of a collection of this source; objects not in it are deleted, and its rejections are over.

    ``collection`` is a prefix of item keys: ``("config", "VirtualService")``, ``("service",)``, or ``()`` for
    everything from the source.
    """

    source: str
    collection: tuple[str, ...]
    items: tuple[Item, ...]
    cause: str = attrs.field(default="", eq=False)
    """As of an Upsert."""


@attrs.frozen
class Synced:
    """The source's first full picture is in."""

    source: str


@attrs.frozen
class Rejected:
    """An object was refused; its last good version is kept.

    ``key`` is the item key if the object could be identified, so that its recovery clears the rejection; otherwise the
    origin's location identifies the rejection.
    """

    source: str
    origin: Origin
    problems: tuple[Problem, ...]
    key: tuple[str, ...] | None = None


@attrs.frozen
class Accepted:
    """Everything at this location is accepted: earlier rejections of it are over."""

    source: str
    location: str


@attrs.frozen
class Confirmed:
    """An operator says that what a source has lost is gone for good (see `world.intake`)."""

    source: str


@attrs.frozen
class SourceAdded:
    """A source comes while others run, such as that of another cluster. No part waits for its first full picture."""

    source: str
    after: tuple[str, ...] = ()
    """It ranks behind these sources where two have the same object; empty: behind all."""
    picture: tuple[Item, ...] = ()
    """The source's picture in an earlier run, which is in force until it has told what it has now."""
    confirmed_at: datetime | None = None
    """When that picture was last confirmed; None: there is none."""


@attrs.frozen
class SourceRemoved:
    """A source is no more: all that it has goes."""

    source: str


Event = Upsert | Delete | Replace | Synced | Rejected | Accepted | Confirmed | SourceAdded | SourceRemoved


class EventSender(Protocol):
    """The end of a channel that a source sends its events into."""

    async def send(self, value: Event, /) -> None:
        """Wait until the event is taken. Cancelled, it is not sent."""
