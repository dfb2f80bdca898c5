"""Search over all that has a name: services, objects, proxies."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator

from starlette.requests import Request

from mesh_pilot.model.json import Json
from mesh_pilot.ops.api.route import ApiRoute, Found, Parameter
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.ops.values import proxies as proxy_pages

SHOWN = 20
"""Entries of each kind."""

QUERY = Parameter("q", "A part of a name, in any case.", is_required=True)

Entry = tuple[str, ...]
"""The parts of a name."""


def routes(state: PlaneState) -> list[ApiRoute]:
    async def search(request: Request) -> Found:
        wanted = request.query_params.get("q", "").lower()
        services = [key for key, service in state.world.services.items() if service is not None]
        objects = [key for key, config in state.world.config.items() if config is not None]
        proxies = [(name,) for name in proxy_pages.names(state)]
        return lambda: {
            "services": _found(wanted, ((key.namespace, key.host) for key in services)),
            "objects": _found(wanted, ((key.kind, key.namespace, key.name) for key in objects)),
            "proxies": _found(wanted, proxies),
        }

    return [
        ApiRoute(
            "/search",
            f"Services, objects and proxies with a text in their names: of each the best {SHOWN}, and the number.",
            search,
            parameters=(QUERY,),
        )
    ]


def _found(wanted: str, entries: Iterable[Entry]) -> Json:
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
    return {"items": [list(entry) for _, _, entry in best], "total": total}
