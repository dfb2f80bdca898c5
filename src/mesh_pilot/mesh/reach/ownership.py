"""Which of the objects of several namespaces has a host, for the clients of one.

For services the client's own namespace comes first, as in Istio. Otherwise the owner does (see `world.host_owners`),
however old the objects say that they are. A service of a registry owns nothing and keeps its place by age.

VirtualServices are ordered for each host apart, as one object may own a host and not another. One that the clients'
namespace keeps to itself comes first; then, as in Istio 1.29, the one that names the host most precisely. What the
plane made of an entry of Consul or of an Ingress comes last.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mesh_pilot.model.hosts import host_covers
from mesh_pilot.model.service import Service
from mesh_pilot.world.host_owners import rank
from mesh_pilot.world.indexes import VirtualServiceMeta
from mesh_pilot.world.names import PUBLIC
from mesh_pilot.world.view import View


def first_service(view: View, namespace: str, services: Sequence[Service]) -> Service:
    """The service that a namespace means by a host, of those that it may see; ``services`` are by age."""
    first = services[0]
    if len(services) == 1:
        return first
    own = next((service for service in services if service.namespace == namespace), None)
    if own is not None:
        return own
    order = view.host_owners("", first.host)
    places = [rank(order, service.namespace, namespace) for service in services]
    if places[0] is None:
        return first
    return services[min((place, number) for number, place in enumerate(places) if place is not None)[1]]


def for_host(view: View, gateway: str, namespace: str, host: str, metas: Sequence[VirtualServiceMeta]) -> Sequence[int]:
    """The numbers of VirtualServices for a host, as they count for clients of a namespace; ``metas`` are by age."""
    if len(metas) < 2:
        return range(len(metas))
    patterns: dict[tuple[bool, bool, bool, int, str], list[int]] = {}
    for number, meta in enumerate(metas):
        pattern = _pattern(meta.hosts, host.lower())
        is_private = meta.key.namespace == namespace and PUBLIC not in meta.export_to
        patterns.setdefault((not is_private, meta.is_made, pattern != host.lower(), -len(pattern), pattern), []).append(
            number
        )
    found: list[int] = []
    for (is_shared, *_, pattern), numbers in sorted(patterns.items()):
        if is_shared and len({metas[number].key.namespace for number in numbers}) > 1:
            numbers = _owners_first(view.host_owners(gateway, pattern), namespace, metas, numbers)
        found += numbers
    return found


def _pattern(hosts: Iterable[str], host: str) -> str:
    """The most precise of an object's hosts that covers a host, in lower case."""
    lower = (each.lower() for each in hosts)
    return max((each for each in lower if each == host or host_covers(each, host)), key=len, default="*")


def _owners_first(
    order: Sequence[tuple[str, str]], namespace: str, metas: Sequence[VirtualServiceMeta], numbers: Sequence[int]
) -> list[int]:
    """The objects with one pattern, the owner's before others; what owns nothing keeps its place."""
    places = {
        number: place
        for number in numbers
        if not (metas[number].is_route and metas[number].key.namespace == namespace)
        and (place := rank(order, metas[number].key.namespace, namespace)) is not None
    }
    ranked = iter(sorted(places, key=lambda number: (places[number], number)))
    return [next(ranked) if number in places else number for number in numbers]
