"""The reach of a verdict: which clients a refusal is about, and who has accepted what another one refuses."""

from __future__ import annotations

from collections.abc import Iterable

from mesh_pilot.model.events import Withheld
from mesh_pilot.safety.quarantine.clients import Client
from mesh_pilot.safety.quarantine.hints import may_be_the_machine
from mesh_pilot.safety.quarantine.suspects import items_of, made_from, value_served
from mesh_pilot.world import World
from mesh_pilot.xds.ads.messages import Nack


def domain_for(client: Client, nack: Nack, clients: Iterable[Client]) -> str:
    """The domain for a verdict: of the client alone if the reason may be with its machine, or if another one in its
    place has accepted the very resources; else, the proxies of its identity."""
    if may_be_the_machine(nack.reason):
        return client.own_domain
    for other in clients:
        if other is not client and other.place == client.place and all(map(other.has_accepted, nack.resources)):
            return client.own_domain
    return client.domain


def keepers_of(world: World, withheld: Withheld, client: Client, nack: Nack, clients: Iterable[Client]) -> list[Client]:
    """The other clients of the build that have accepted something, of any type, made of the refused version.

    Not of the refused type alone: a caller may have accepted a service in clusters and routes, and have no listener of
    it, while a sidecar at the service's port refuses a listener.
    """
    is_hidden = withheld.key not in made_from(world, nack)
    return [
        other
        for other in clients
        if other.build_domain == client.build_domain
        and other is not client
        and any(_has_accepted(world, other, type_url, withheld, is_hidden=is_hidden) for type_url in other.accepted)
    ]


def _has_accepted(world: World, client: Client, type_url: str, withheld: Withheld, *, is_hidden: bool) -> bool:
    """True if a client has accepted something of a type that was made of the refused version.

    Of what resources do not show (``is_hidden``), such as the mesh's settings, everything counts as made.
    """
    key, accepted, nack = withheld.key, client.accepted[type_url], client.refused.get(type_url)
    if value_served(world, key, accepted, world.history.since(accepted.revision)) != withheld.refused:
        return False
    if nack is not None and key in made_from(world, nack):
        return False
    resources = client.stream.explained(type_url).values()
    return any(is_hidden or key in items_of(world, resource) for resource in resources)
