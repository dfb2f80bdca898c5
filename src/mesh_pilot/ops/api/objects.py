"""Objects in force: where they were read, what is wrong with them, and which resources they produce."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence

from starlette.requests import Request

from mesh_pilot.base.in_turns import in_turns
from mesh_pilot.explain.analysis.object_problems import rejected_lines, warning_lines
from mesh_pilot.istio.kinds import KINDS, Api, kind_named
from mesh_pilot.model.config import Config, ConfigKey
from mesh_pilot.model.json import Json
from mesh_pilot.model.resource import ENVOY_TYPES, Resource
from mesh_pilot.ops.api.paging import PAGING, SEARCH, SORT, STATE, AssessedEntry, AssessedPiece, Paging
from mesh_pilot.ops.api.route import ApiError, ApiTopic, Found, Parameter
from mesh_pilot.ops.api.visitors import Scope, sees
from mesh_pilot.ops.causes.now import PlaneNow
from mesh_pilot.ops.causes.objects import assess_object, by_object
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.ops.values.assessments import Assessment
from mesh_pilot.ops.values.conditions import connected_gateways, status_now
from mesh_pilot.ops.values.configs import show_config
from mesh_pilot.ops.values.objects import ObjectProblem, ObjectState, ObjectSummary, Product
from mesh_pilot.ops.values.proxies import find_proxy
from mesh_pilot.ops.values.truth import ObjectTruth, truth_at, truth_now

KIND = Parameter("kind", "A kind: VirtualService, virtualservices or vs, in any case.")
NAMESPACE = Parameter("namespace", "A namespace.")
IN_PATH = (
    Parameter("kind", "The kind, such as VirtualService."),
    Parameter("namespace", "The namespace."),
    Parameter("name", "The name."),
)

AT_PROXY = Parameter("proxy", "A connected proxy, NAME.NAMESPACE: `truth` is then the one at this proxy.")

MOST_RESOURCES = 200
"""Resources named as the product of an object."""


def _one_of_all(answers: Mapping[int, object]) -> Json:
    """Resources of all workers' proxies; the rest is the same at each, or what the first one has asked the others. Of
    the truth at one proxy all others know nothing."""
    found: dict[tuple[str, str], dict[str, Json]] = {}
    first: dict[str, Json] = {}
    for answer in answers.values():
        assert isinstance(answer, dict)
        first = first or answer
        for each in answer["produces"]:
            known = found.setdefault((each["type"], each["name"]), {**each, "proxies": 0})
            known["proxies"] += each["proxies"]
    return {**first, "produces": [*found.values()]}


routes = ApiTopic()


@routes.declare(
    "/objects",
    "The objects in force, by kind, namespace and name.",
    parameters=(KIND, NAMESPACE, SEARCH, STATE, SORT, *PAGING),
    answers=AssessedPiece[ObjectSummary],
    scope=Scope.ANY,
)
async def listed(state: PlaneState, request: Request) -> Found:
    query, paging = dict(request.query_params), Paging.of(request)
    asked = query.get("kind", "")
    known = kind_named(asked)
    kind = (known.name if known is not None else asked).lower()
    everything = [*state.world.config.items()]
    refused = {each.key for each in state.world.rejections()}
    truth, is_seen = await truth_now(state), sees(request)

    errors = by_object(PlaneNow.of(state).errors)

    def entries() -> Iterator[AssessedEntry[tuple[Config, Assessment]]]:
        for key, config in everything:
            if config is None or kind not in ("", key.kind.lower()) or not is_seen(key.namespace):
                continue
            found = assess_object(state, truth.of(("config", *key)), errors.get(key, ()))
            texts = (str(key), str(config.origin))
            yield AssessedEntry(str(key), (config, found), texts, key.namespace, found.state, found.severity)

    def summary(row: tuple[Config, Assessment]) -> ObjectSummary:
        config, found = row
        is_refused, warnings = ("config", *config.key) in refused, len(config.warnings)
        return ObjectSummary(*config.key, config.api_version, str(config.origin), warnings, is_refused, found)

    return lambda: paging.assessed(entries(), query, summary)


@routes.declare(
    "/objects/{kind}/{namespace}/{name}",
    "An object as it was read, and its problems; also the resources of connected proxies that were made from it.",
    parameters=(*IN_PATH, AT_PROXY),
    answers=ObjectState,
    merge=_one_of_all,
    scope=Scope.NAMESPACE,
)
async def one(state: PlaneState, request: Request) -> Found:
    path = request.path_params
    key = ConfigKey(path["kind"], path["namespace"], path["name"])
    config = state.world.config.peek(key)
    rejected = [each for each in state.world.rejections() if each.key == ("config", *key)]
    if config is None and not rejected:
        raise ApiError(404, f"no object {key}")
    held, truth = await held_by_proxies(state), await _truth_of(state, key, request.query_params.get("proxy", ""))
    found = assess_object(state, truth, by_object(PlaneNow.of(state).errors).get(key, ()))
    status, becomes = status_now(state.world, key, connected_gateways(state)), made_of(state, key)

    def answer() -> ObjectState:
        lines = [line for each in rejected for line in rejected_lines(each)]
        problems = [ObjectProblem(**line, severity="error") for line in lines]
        if config is not None:
            problems += [ObjectProblem(**line, severity="warning") for line in warning_lines(config)]
        return ObjectState(
            show_config(config) if config is not None else None,
            status or {},
            [str(each) for each in becomes],
            problems,
            produced_by((key, *becomes), held),
            truth,
            found,
        )

    return answer


async def _truth_of(state: PlaneState, key: ConfigKey, at: str) -> ObjectTruth:
    """Over all proxies, or at one. Raises ApiError for a proxy that is not connected here."""
    if not at:
        return (await truth_now(state, [("config", *key)])).of(("config", *key))
    proxy = find_proxy(state, at)
    if proxy is None:
        raise ApiError(404, f"no connected proxy {at!r}")
    return truth_at(state.facts(), ("config", *key), proxy, state.xds.status)


Held = Sequence[tuple[str, str, Mapping[str, Resource]]]
"""Proxies' names, types, and the resources that they hold of these."""


async def held_by_proxies(state: PlaneState) -> Held:
    """The resources that the connected proxies have accepted. Made in turns, between which proxies are served."""
    return [each for of_stream in await in_turns(_held(state)) for each in of_stream]


def _held(state: PlaneState) -> Iterator[Held]:
    """The resources that each stream of a proxy has accepted."""
    seen: dict[Hashable, Mapping[str, Resource]] = {}
    for connection in [*state.xds.status.proxies()]:
        proxy, stream = connection.proxy, connection.stream
        if proxy is not None and stream is not None:
            yield [
                (proxy.name, each.type_url, stream.explained(each.type_url, seen))
                for each in stream.statistics()
                if each.type_url in ENVOY_TYPES and each.nonce == each.acked_nonce
            ]


def made_of(state: PlaneState, key: ConfigKey) -> list[ConfigKey]:
    """The configs of Istio's kinds that an object of the Gateway API became."""
    return state.world.made_of(key) if key.kind in KINDS and KINDS[key.kind].api is not Api.ISTIO else []


def produced_by(keys: Collection[ConfigKey], held: Held) -> list[Product]:
    """The resources that were made from any of these objects, with the number of proxies that hold each."""
    found: dict[tuple[str, str], tuple[str, int]] = {}
    of_mapping: dict[int, list[str]] = {}  # proxies that see the same world may share one
    for proxy, type_url, resources in held:
        names = of_mapping.get(id(resources))
        if names is None:
            names = [name for name, resource in resources.items() if any(key in resource.configs for key in keys)]
            of_mapping[id(resources)] = names
        for name in names:
            first, count = found.get((type_url, name), (proxy, 0))
            found[type_url, name] = (first, count + 1)
    return [
        Product(ENVOY_TYPES[type_url].short, name, count, first)
        for (type_url, name), (first, count) in sorted(found.items())[:MOST_RESOURCES]
    ]
