"""One proxy. Its name may have slashes, so this route comes after all others that begin with a name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
from starlette.requests import Request

from mesh_pilot.model.json import Json
from mesh_pilot.ops.api.proxies import NAME, proxy_rows, workers_rows
from mesh_pilot.ops.api.route import ApiError, ApiTopic, Found
from mesh_pilot.ops.api.visitors import Scope, sees
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.ops.values.proxies import ProxyState


@attrs.frozen
class ProxyStreams:
    """All that is known of a proxy: a state for each of its streams, or that in which it left."""

    name: str
    streams: Sequence[ProxyState]


def workers_streams(answers: Mapping[int, Any]) -> Json:
    """The streams of one proxy at all workers."""
    first = next(iter(answers.values()))
    return {**first, "streams": workers_rows({number: each["streams"] for number, each in answers.items()})}


routes = ApiTopic()


@routes.declare(
    "/proxies/{name:path}",
    "A proxy, by its name or node id: a state for each of its streams, or that in which it left.",
    parameters=(NAME,),
    merge=workers_streams,
    answers=ProxyStreams,
    scope=Scope.PROXY,
)
async def one(state: PlaneState, request: Request) -> Found:
    name, is_seen = request.path_params["name"], sees(request)
    found = await proxy_rows(state, lambda proxy: name in (proxy.name, proxy.id) and is_seen(proxy.namespace))
    if not found:
        raise ApiError(404, f"no proxy {name!r} is connected, or was lately")
    return ProxyStreams(found[0].proxy, found)
