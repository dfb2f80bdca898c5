"""Suspects: items whose values differ between what a client has accepted and what it refuses."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from mesh_pilot.model.events import Item, Refusal, Withheld
from mesh_pilot.model.resource import Resource
from mesh_pilot.safety.quarantine.clients import Served
from mesh_pilot.safety.quarantine.hints import is_named
from mesh_pilot.world import World
from mesh_pilot.world.overlays import served_value, value_before
from mesh_pilot.xds.ads.messages import Nack

Key = tuple[str, ...]

MAX_LOOKED_AT = 100
"""Suspects among which a client's words are looked for; among more the search finds the guilty soon enough."""

_FOUNDATIONS = frozenset(
    (
        "Gateway",
        "ServiceEntry",
        "WorkloadEntry",
        "WorkloadGroup",
        "Sidecar",
        "GatewayClass",
        "KubernetesGateway",
        "ListenerSet",
        "ReferenceGrant",
        "Namespace",
        "IngressClass",
    )
)
"""Kinds without whose objects a resource may not exist."""

_ROUTES = frozenset(
    (
        "VirtualService",
        "DestinationRule",
        "HTTPRoute",
        "GRPCRoute",
        "TLSRoute",
        "TCPRoute",
        "BackendTLSPolicy",
        "Ingress",
    )
)


def suspects(
    world: World, accepted: Served | None, refused: Served, nack: Nack, refusal: Refusal
) -> dict[Key, Withheld]:
    """The items that a client may refuse, each with its last accepted value.

    ``accepted`` and ``refused`` are the states that it accepted last and refuses now. If what it accepted is not known,
    all objects that the refused resources were made from are suspects, without an accepted value.
    """
    since = world.history.since(refused.revision)
    if accepted is None:
        return {
            key: Withheld(key, value, (), refusal)
            for key in dict.fromkeys(made_from(world, nack))
            if (value := value_served(world, key, refused, since))
        }
    found = {}
    before = world.history.since(accepted.revision)
    withheld = (w.key for w in (*accepted.withheld, *refused.withheld))
    old = (each.key for each in (*accepted.old, *refused.old))
    for key in dict.fromkeys((*before, *withheld, *old)):
        value, last = value_served(world, key, refused, since), value_served(world, key, accepted, before)
        if value != last:
            found[key] = Withheld(key, value, last, refusal)
    return found


def value_served(world: World, key: Key, state: Served, since: Mapping[Key, tuple[Item, ...]]) -> tuple[Item, ...]:
    """The value of an item in an earlier state; ``since`` are the items with another value than then."""
    items = since[key] if key in since else tuple(world.current(key))
    withheld = next((w for w in state.withheld if w.key == key), None)
    new = next((each for each in state.old if each.key == key), None)
    return tuple(served_value(withheld, value_before(new, list(items))))


def made_from(world: World, nack: Nack) -> list[Key]:
    """The keys of the objects that the refused resources were made from, as users wrote them."""
    return [key for resource in nack.resources for key in items_of(world, resource)]


def items_of(world: World, resource: Resource) -> Iterator[Key]:
    """The keys of the items that a resource was made from: of a route of the Gateway API, not what it became."""
    for key in resource.configs:
        config = world.config.peek(key)
        for source in (config.made_from if config is not None else ()) or (key,):
            yield ("config", *source)


def in_order(keys: Iterable[Key], current: Callable[[Key], Iterable[Item]]) -> list[Key]:
    """Suspects in the order in which to release them: first those that others build on, then the oldest.

    Of two that are refused only together the later one is guilty.
    """

    def order(key: Key) -> tuple[int, str, Key]:
        created = [str(item.created) for item in current(key) if hasattr(item, "created")]
        return (rank(key), created[0] if created else "", key)

    return sorted(keys, key=order)


def rank(key: Key) -> int:
    """The place of a suspect among others, by its kind; 0 for those that others build on."""
    if key[0] != "config" or key[1] in _FOUNDATIONS:
        return 0
    return 1 if key[1] in _ROUTES else 2


def hinted(values: Mapping[Key, Withheld], known: Collection[Withheld], words: str) -> list[Key]:
    """The likely ones: those that are withheld elsewhere; without any, those that the client's reason names."""
    guilty = {w.key: w.refused for w in known}
    found = [key for key, withheld in values.items() if guilty.get(key) == withheld.refused]
    if found or len(values) > MAX_LOOKED_AT:
        return found
    return [key for key, withheld in values.items() if is_named(withheld.refused, words)]
