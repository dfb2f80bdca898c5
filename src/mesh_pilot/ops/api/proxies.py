"""Proxies: their state, and what each was sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import attrs
from starlette.requests import Request

from mesh_pilot.base.in_turns import in_turns
from mesh_pilot.model.json import Json, as_json
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.ops.api.paging import PAGING, SEARCH, SORT, STATE
from mesh_pilot.ops.api.route import ApiError, ApiTopic, Found, Parameter, first_found
from mesh_pilot.ops.api.visitors import Scope, sees
from mesh_pilot.ops.causes.proxies import IN_SYNC, assess_gone, assess_proxies, gone_proxies
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.ops.values.objects import explained_dump
from mesh_pilot.ops.values.proxies import ProxyState, find_proxy, gone_state, names, proxy_states
from mesh_pilot.ops.values.truth import kept_from, unused_resources
from mesh_pilot.safety.quarantine.verdicts import name_of

NAME = Parameter("name", "A proxy: NAME.NAMESPACE, a node id or an address.", is_required=True, is_proxy=True)
NAMESPACE = Parameter("namespace", "A namespace.")
GONE = Parameter("gone", "`true`: with those that have left and are not back; so does `state=gone`.")


def workers_rows(answers: Mapping[int, Any]) -> Json:
    """The rows of all workers: a proxy that has left one may be at another by now."""
    rows = [row for answer in answers.values() for row in answer]
    here = {row["proxy"] for row in rows if not row["gone"]}
    gone: dict[str, Any] = {}
    for row in sorted((row for row in rows if row["gone"]), key=lambda row: str(row["last_seen"])):
        gone[row["proxy_id"]] = row
    return [
        *(row for row in rows if not row["gone"]),
        *(row for row in gone.values() if row["proxy"] not in here),
    ]


NAMED = 20
"""Names in an error of those that there are."""

routes = ApiTopic()


@routes.declare(
    "/proxies",
    "The connected proxies, with the state of each type: a list, or with `limit` a piece of it.",
    parameters=(SEARCH, NAMESPACE, STATE, GONE, SORT, *PAGING),
    sorted_by="proxy",
    merge=workers_rows,
    answers=list[ProxyState],
    scope=Scope.ANY,
)
async def listed(state: PlaneState, request: Request) -> Found:
    is_seen = sees(request)
    return await proxy_rows(state, lambda proxy: is_seen(proxy.namespace))


async def proxy_rows(state: PlaneState, wanted: Callable[[Proxy], bool] = lambda proxy: True) -> list[ProxyState]:
    """The state of each stream of a proxy that is wanted, and of those that have left."""
    facts = state.facts()
    found = await in_turns(assess_proxies(state, facts, wanted))
    streams = [each for each in state.xds.status.streams() if each.proxy is not None and wanted(each.proxy)]
    connections = await in_turns(stream.status() for stream in streams)
    assessments = {each.connection.id: each.assessment for each in found}
    rows = await in_turns(proxy_states(state, facts, connections, assessments))
    gone = (each for each in gone_proxies(state) if wanted(each.proxy))
    return [*rows, *(gone_state(each, assess_gone(each)) for each in gone)]


@attrs.frozen
class ProxyGroup:
    """Proxies that are in sync and alike."""

    namespace: str
    proxy_type: str
    proxy_version: str
    count: int


def workers_groups(answers: Mapping[int, Any]) -> Json:
    """The groups of all workers as one list, the largest first."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for row in (row for answer in answers.values() for row in answer):
        counts[row["namespace"], row["proxy_type"], row["proxy_version"]] += row["count"]
    return [as_json(ProxyGroup(*key, count)) for key, count in counts.most_common()]


@routes.declare(
    "/proxy-groups",
    "The proxies in sync, counted by namespace, type and version of Envoy; the largest group first.",
    merge=workers_groups,
    answers=list[ProxyGroup],
    scope=Scope.ANY,
)
async def groups(state: PlaneState, request: Request) -> Found:
    is_seen = sees(request)
    every = await in_turns(assess_proxies(state, state.facts()))
    well = (each.proxy for each in every if each.assessment.state == IN_SYNC.state and is_seen(each.proxy.namespace))
    counts = Counter((each.namespace, each.type.value, each.version) for each in well)
    return [ProxyGroup(*key, count) for key, count in counts.most_common()]


@routes.declare(
    "/proxies/{name:path}/config_dump",
    "What a proxy was sent, as Envoy's /config_dump shows it; also the objects it came from and what is not in use.",
    parameters=(NAME,),
    merge=first_found,
    scope=Scope.PROXY,
)
async def dump(state: PlaneState, request: Request) -> Found:
    name = request.path_params["name"]
    proxy = find_proxy(state, name)
    if proxy is None:
        raise ApiError(404, f"no connected proxy {name!r}; connected: {', '.join(names(state)[:NAMED]) or 'none'}")
    dumps, unused = state.xds.status.config_dump(proxy), unused_resources(state, proxy)
    kept_back = {name_of(key): truth.text for key, truth in await kept_from(state, proxy)}

    def shown() -> Json:
        found = explained_dump(state.world, dumps)
        assert isinstance(found, dict)
        return {**found, "states": unused, "kept_back": kept_back}

    return shown
