"""Search over all that has a name: services, objects, proxies."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence

import attrs
from starlette.requests import Request

from mesh_pilot.ops.api.route import ApiTopic, Found, Parameter
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.ops.values.proxies import names

SHOWN = 20
"""Entries of each kind."""

QUERY = Parameter("q", "A part of a name, in any case.", is_required=True)

Entry = tuple[str, ...]
"""The parts of a name."""


@attrs.frozen
class FoundNames:
    """The best of the names that have a text in them."""

    items: Sequence[Sequence[str]]
    """The parts of each name."""
    total: int


@attrs.frozen
class SearchResult:
    """Names that have a text in them."""

    services: FoundNames
    """Namespace and host."""
    objects: FoundNames
    """Kind, namespace and name."""
    proxies: FoundNames


routes = ApiTopic()


@routes.declare(
    "/search",
    f"Services, objects and proxies with a text in their names: of each the best {SHOWN}, and the number.",
    parameters=(QUERY,),
    answers=SearchResult,
)
async def search(state: PlaneState, request: Request) -> Found:
    wanted = request.query_params.get("q", "").lower()
    services = [key for key, service in state.world.services.items() if service is not None]
    objects = [key for key, config in state.world.config.items() if config is not None]
    proxies = [(name,) for name in names(state)]
    return lambda: SearchResult(
        _found(wanted, ((key.namespace, key.host) for key in services)),
        _found(wanted, objects),
        _found(wanted, proxies),
    )


def _found(wanted: str, entries: Iterable[Entry]) -> FoundNames:
    """The best entries: those whose last part begins with the text, then the short ones."""
    total = 0

    def ranked() -> Iterator[tuple[bool, int, Entry]]:
        nonlocal total
        for entry in entries:
            name = "/".join(entry).lower()
            if wanted in name:
                total += 1
                yield not entry[-1].lower().startswith(wanted), len(name), entry

    best = heapq.nsmallest(SHOWN, ranked())
    return FoundNames([entry for _, _, entry in best], total)
