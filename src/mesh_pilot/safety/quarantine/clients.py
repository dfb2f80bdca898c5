"""Connected clients as quarantine sees them: which state of the World they were served, accepted and refused."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import attrs

from mesh_pilot.model.events import NewValue, Withheld
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.resource import Resource
from mesh_pilot.xds.ads.messages import Nack
from mesh_pilot.xds.ads.stream import Stream
from mesh_pilot.xds.ads.warming import WARMING_SECONDS


@attrs.frozen
class Served:
    """The state of the World that a response was made from."""

    revision: int
    withheld: tuple[Withheld, ...] = ()
    """The items withheld from the client then."""
    old: tuple[NewValue, ...] = ()
    """The changed objects of which it had the old value then, because of a rollout."""


@attrs.define(eq=False)
class Client:
    """One stream of a client. Mutable."""

    id: int
    proxy: Proxy
    stream: Stream
    release: Callable[[], None]
    """Ends its pause after refusals: there is something new for it."""
    place: Hashable = None
    """Clients of one place have one build, party and scope: what one has accepted tells what another one had."""
    sent: dict[str, Served] = attrs.field(factory=dict)
    """Contents by type that the last response was made from."""
    accepted: dict[str, Served] = attrs.field(factory=dict)
    """Contents by type of the last response after which it had accepted everything."""
    accepted_at: dict[str, float] = attrs.field(factory=dict)
    """The times, by type, at which it accepted that."""
    used: dict[str, Served] = attrs.field(factory=dict)
    """The last such states before, by type, that the client had the time to bring into use."""
    refused: dict[str, Nack] = attrs.field(factory=dict)
    """The client's last refusal by type, until it accepts the type, or uses what it has accepted."""
    withdrawn: dict[str, Nack] = attrs.field(factory=dict)
    """The client's last refusal by type, of something that it is not meant to have for now: it is not sent that again,
    and so will not refuse it again, should it come back."""
    held: dict[str, str] = attrs.field(factory=dict)
    """Reasons by type for which nothing is done about its refusal."""
    trial_of: str = ""
    """The type of its last case."""
    given_up: dict[Resource, str] = attrs.field(factory=dict)
    """Resources that it refused and about which nothing was done, and why."""

    @property
    def trial_domain(self) -> str:
        return self.proxy.domains[0]

    @property
    def own_domain(self) -> str:
        return self.proxy.domains[1]

    @property
    def domain(self) -> str:
        """The domain that its refusals are about: the proxies of its identity, or it alone where nothing proves one."""
        return self.proxy.domains[-2]

    @property
    def build_domain(self) -> str:
        return self.proxy.domains[-1]

    @property
    def party(self) -> str:
        return party_of(self.proxy)

    def accept(self, type_url: str, now: float) -> None:
        """It has accepted everything of a type."""
        if (used := self.in_use(type_url, now)) is not None:
            self.used[type_url] = used
        self.accepted[type_url], self.accepted_at[type_url] = self.sent[type_url], now
        if (self.refused or self.withdrawn or self.held) and not self.is_warming(type_url):
            self.forgive(type_url)

    def is_warming(self, type_url: str) -> bool:
        """True if what it refuses of a type is something that it accepts and does not use."""
        return type_url in self.refused and self.refused[type_url].is_warming

    def in_use(self, type_url: str, now: float) -> Served | None:
        """The state of the World that it is likely to use of a type; None if that is not known."""
        if not self.is_warming(type_url) and now - self.accepted_at.get(type_url, now) >= WARMING_SECONDS:
            return self.accepted.get(type_url)
        return self.used.get(type_url)

    def forgive(self, type_url: str) -> None:
        """It no longer refuses anything of a type."""
        self.refused.pop(type_url, None)
        self.withdrawn.pop(type_url, None)
        self.held.pop(type_url, None)

    def review(self) -> None:
        """Look at each type again: what it has refused is no longer there, or is back."""
        for type_url in [*self.refused, *self.withdrawn]:
            if self.is_warming(type_url):
                if not self.stream.warms(type_url):
                    self.forgive(type_url)
                continue
            is_refused = self.stream.is_refused(type_url)
            if is_refused and type_url in self.withdrawn:
                self.refused[type_url] = self.withdrawn.pop(type_url)
            elif not is_refused and type_url in self.refused:
                nack = self.refused[type_url]
                self.forgive(type_url)
                self.withdrawn[type_url] = nack

    def has_accepted(self, resource: Resource) -> bool:
        """True if it has a resource in this version, and has accepted it."""
        type_url = resource.type_url
        return self.stream.client_state(type_url).get(resource.name) == resource and not self.stream.has_doubts(
            type_url
        )


def party_of(proxy: Proxy) -> str:
    """The one that answers for what a proxy refuses: its identity; where nothing proves one, its source address."""
    return (proxy.identity or proxy.peer or "unknown").replace(" ", "")


def domains_of(proxy: Proxy, client: int) -> tuple[str, ...]:
    """The domains of a client, the narrowest first: the stream, the proxy, the proxies of its identity if that is
    proven, and those of its build.

    Node ids and builds are whatever a client says, so that they stand behind what it cannot choose: no client can name
    a domain of another one's.
    """
    build, party = proxy.build or proxy.version or "unknown build", party_of(proxy)
    own = f"proxy {party} {proxy.id} {build}"
    identity = (f"identity {party} {build}",) if proxy.identity else ()
    return (f"client {client}", own, *identity, f"build {build}")


def party_in(domain: str) -> str | None:
    """The party of a domain; empty for a build's, None for a domain without verdicts."""
    sort, _, rest = domain.partition(" ")
    if sort in ("proxy", "identity"):
        return rest.partition(" ")[0]
    return "" if sort == "build" else None


def is_unproven(domain: str) -> bool:
    """True for the domain of a proxy whose identity nothing proves."""
    return domain.startswith("proxy ") and not domain.startswith("proxy spiffe://")


def in_words(domain: str) -> str:
    """A domain for people: ``all proxies of envoy 1.40.0``."""
    sort, _, rest = domain.partition(" ")
    match sort:
        case "build":
            return f"all proxies of {rest}"
        case "identity":
            identity, _, build = rest.partition(" ")
            return f"proxies of {identity} with {build}"
        case "proxy":
            party, _, node = rest.partition(" ")
            return f"{node.split(' ')[0]} at {party} alone"
        case _:
            return domain
