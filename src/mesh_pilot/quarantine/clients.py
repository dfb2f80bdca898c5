"""Connected clients as quarantine sees them: which state of the World they were served, accepted and refused."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Container, Hashable, Mapping
from functools import lru_cache
from typing import Protocol

import attrs

from mesh_pilot.model.events import NewValue, Withheld
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.resource import Resource
from mesh_pilot.xds.messages import Nack


class ClientStream(Protocol):
    """The part of an xDS stream that quarantine reads."""

    def client_state(self, type_url: str) -> Mapping[str, Resource]: ...

    def has_doubts(self, type_url: str) -> bool: ...

    def is_refused(self, type_url: str, but: Container[Resource] = ()) -> bool: ...


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
    stream: ClientStream
    release: Callable[[], None]
    """Ends its pause after refusals: there is something new for it."""
    sent: dict[str, Served] = attrs.field(factory=dict)
    """By type, what the last response was made from."""
    accepted: dict[str, Served] = attrs.field(factory=dict)
    """By type, what the last response was made from after which it had accepted everything."""
    refused: dict[str, Nack] = attrs.field(factory=dict)
    """By type, its last refusal, until it accepts the type."""
    withdrawn: dict[str, Nack] = attrs.field(factory=dict)
    """By type, its last refusal, of something that it is not meant to have for now: it is not sent that again, and so
    will not refuse it again, should it come back."""
    held: dict[str, str] = attrs.field(factory=dict)
    """By type, why nothing is done about its refusal."""
    trial_of: str = ""
    """The type of its last case."""
    given_up: dict[Resource, str] = attrs.field(factory=dict)
    """Resources that it refused and about which nothing was done, and why."""

    @property
    def trial_domain(self) -> str:
        return self.proxy.domains[0]

    @property
    def scope_domain(self) -> str:
        return self.proxy.domains[1]

    @property
    def build_domain(self) -> str:
        return self.proxy.domains[2]

    def forgive(self, type_url: str) -> None:
        """It no longer refuses anything of a type."""
        self.refused.pop(type_url, None)
        self.withdrawn.pop(type_url, None)
        self.held.pop(type_url, None)

    def review(self) -> None:
        """Look at each type anew: what it has refused is no longer there, or is back."""
        for type_url in [*self.refused, *self.withdrawn]:
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


def domains_of(proxy: Proxy, client: int, scope: Hashable) -> tuple[str, str, str]:
    """The domains of a client, the narrowest first: itself, clients of its build in its scope, and of its build."""
    build = proxy.build or proxy.version or "unknown build"
    return (f"client {client}", f"{build}, {proxy.type} in {proxy.namespace} {_digest(scope)}", build)


@lru_cache(maxsize=1024)
def _digest(scope: Hashable) -> str:
    """Of all clients of a scope the same, and a large part of what a client that connects again would cost."""
    return hashlib.blake2b(_canonical(scope).encode(), digest_size=4).hexdigest()


def _canonical(value: object) -> str:
    """Text that is the same for equal values in every process."""
    kind: type = type(value)
    if attrs.has(kind):
        return _canonical(tuple(getattr(value, field.name) for field in attrs.fields(kind)))
    if isinstance(value, frozenset):
        return f"{{{','.join(sorted(map(_canonical, value)))}}}"
    if isinstance(value, tuple):
        return f"({','.join(map(_canonical, value))})"
    return repr(value)
