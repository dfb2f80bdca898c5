"""Which of the objects of several namespaces has a host, for the clients of one.

For services the client's own namespace comes first, as in Istio. Otherwise the owner does (see `world.host_owners`),
however old the objects say that they are. A VirtualService for a host comes before those of other namespaces for a
wildcard that covers it. What the clients' own namespace keeps private or routes for itself stays where it is, and so
does what owns nothing: a service of a registry, an object that the plane made.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence

import attrs

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
    ranks = [(rank(order, service.namespace, namespace), service) for service in services]
    if ranks[0][0] is None:
        return first
    return min(((place, s) for place, s in ranks if place is not None), key=lambda ranked: ranked[0])[1]


def by_owner(
    view: View, gateway: str, namespace: str, metas: tuple[VirtualServiceMeta, ...]
) -> tuple[VirtualServiceMeta, ...]:
    """The VirtualServices of a gateway that a namespace may see, the owner's before others; ``metas`` are by age.

    Where two namespaces each own a host of the other's object, a VirtualService is without the hosts that it loses.
    """
    sequences = {
        host: sequence
        for host, numbers in _of_several_namespaces(metas).items()
        if (sequence := _sequence(view.host_owners(gateway, host), namespace, metas, numbers)) != numbers
    }
    covered = _covered(metas, namespace)
    if not sequences and not covered:
        return metas
    order = _arranged(metas, sequences, covered)
    return tuple(_without_lost(metas, order, sequences))


def _of_several_namespaces(metas: Sequence[VirtualServiceMeta]) -> dict[str, list[int]]:
    """The hosts that objects of several namespaces have, with the numbers of these."""
    first: dict[str, str] = {}
    found: dict[str, list[int]] = {}
    for meta in metas:
        for host in meta.hosts:
            if first.setdefault(host, meta.key.namespace) != meta.key.namespace:
                found[host] = []
    if found:
        for number, meta in enumerate(metas):
            for host in meta.hosts:
                if host in found:
                    found[host].append(number)
    return found


def _sequence(
    order: Sequence[tuple[str, str]], namespace: str, metas: Sequence[VirtualServiceMeta], numbers: Sequence[int]
) -> list[int]:
    """The objects for a host, the owner's before others; what owns nothing keeps its place."""
    places = {n: rank(order, metas[n].key.namespace, namespace) for n in numbers if not _is_own(metas[n], namespace)}
    ranked = iter(sorted((n for n, place in places.items() if place is not None), key=lambda n: (places[n], n)))
    return [n if places.get(n) is None else next(ranked) for n in numbers]


def _is_own(meta: VirtualServiceMeta, namespace: str) -> bool:
    """True for what a namespace has for its own clients alone."""
    return meta.key.namespace == namespace and (PUBLIC not in meta.export_to or meta.is_route)


def _covered(metas: Sequence[VirtualServiceMeta], namespace: str) -> dict[str, dict[str, deque[int]]]:
    """By wildcard: the objects by namespace with a host that it covers, which come after one with the wildcard."""
    wildcards: dict[str, int] = {}
    for number, meta in enumerate(metas):
        for host in meta.hosts:
            if host.startswith("*") and not _is_own(meta, namespace):
                wildcards.setdefault(host, number)
    found: dict[str, dict[str, deque[int]]] = {}
    if not wildcards:
        return found
    for number, meta in enumerate(metas):
        for host in meta.hosts:
            for pattern in _wildcards_over(host):
                if wildcards.get(pattern, number) < number:
                    found.setdefault(pattern, defaultdict(deque))[meta.key.namespace].append(number)
    return found


def _wildcards_over(host: str) -> Iterator[str]:
    """The wildcards that cover a host, without itself."""
    if host == "*":
        return
    yield "*"
    rest = host.removeprefix("*.")
    while "." in rest:
        rest = rest.partition(".")[2]
        yield f"*.{rest}"


def _arranged(
    metas: Sequence[VirtualServiceMeta],
    sequences: dict[str, list[int]],
    covered: dict[str, dict[str, deque[int]]],
) -> list[int]:
    """The numbers of all objects, each behind those that it has to follow; what has to follow nothing stays."""
    taken = dict.fromkeys(sequences, 0)

    def followed(number: int) -> Iterator[int]:
        meta = metas[number]
        for host in meta.hosts:
            if host in sequences:
                end = sequences[host].index(number)
                while taken[host] < end:
                    taken[host] += 1
                    yield sequences[host][taken[host] - 1]
            for namespace, waiting in covered.get(host, {}).items():
                while waiting and namespace != meta.key.namespace:
                    yield waiting.popleft()

    order: list[int] = []
    begun: set[int] = set()
    for root in range(len(metas)):
        stack: list[tuple[int, Iterator[int]]] = []
        if root not in begun:
            begun.add(root)
            stack.append((root, followed(root)))
        while stack:
            number, first = stack[-1]
            following = next((each for each in first if each not in begun), None)
            if following is None:
                order.append(number)
                stack.pop()
            else:
                begun.add(following)
                stack.append((following, followed(following)))
    return order


def _without_lost(
    metas: Sequence[VirtualServiceMeta], order: Sequence[int], sequences: dict[str, list[int]]
) -> Iterator[VirtualServiceMeta]:
    position = {number: place for place, number in enumerate(order)}
    lost: dict[int, set[str]] = {}
    for host, sequence in sequences.items():
        latest = -1
        for number in sequence:
            if position[number] < latest:
                lost.setdefault(number, set()).add(host)
            latest = max(latest, position[number])
    for number in order:
        meta = metas[number]
        yield (
            attrs.evolve(meta, hosts=tuple(host for host in meta.hosts if host not in lost[number]))
            if number in lost
            else meta
        )
