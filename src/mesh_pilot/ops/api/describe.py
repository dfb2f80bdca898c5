"""Services, proxies and objects in plain words: what applies to them, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs
import trio
from starlette.requests import Request

from mesh_pilot.envoy.catalog.diagnostics import REFERRING_KINDS, object_problems
from mesh_pilot.explain.analysis.hosts import NearNames
from mesh_pilot.explain.analysis.input import picture_of
from mesh_pilot.istio.kinds import KINDS
from mesh_pilot.mesh.listeners.inbound import workload_instances
from mesh_pilot.model.config import Config, ConfigKey
from mesh_pilot.model.json import as_json
from mesh_pilot.model.proxy import NodeType, Proxy
from mesh_pilot.model.service import Service
from mesh_pilot.ops.api.objects import held_by_proxies, made_of, produced_by
from mesh_pilot.ops.api.route import ApiError, ApiTopic, Found, Parameter, first_found
from mesh_pilot.ops.api.visitors import Role, Scope, needed, sees
from mesh_pilot.ops.explain.description import DescribedLine, Description, DescriptionShown
from mesh_pilot.ops.explain.object_description import (
    ProxyLabels,
    describe_object,
    describe_refused,
    status_lines,
)
from mesh_pilot.ops.explain.proxy_description import describe_proxy
from mesh_pilot.ops.explain.service_description import ConnectedWorkloads, Workloads, describe_service
from mesh_pilot.ops.explain.traffic_words import service_lines
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.ops.values.conditions import connected_gateways, status_now, statuses_now
from mesh_pilot.ops.values.left_out import left_out
from mesh_pilot.ops.values.proxies import find_proxy, names
from mesh_pilot.ops.values.service_traffic import edges_seen, services_seen
from mesh_pilot.ops.values.traffic import USUAL_SECONDS, GroupBy, traffic_seen, traffic_window
from mesh_pilot.ops.values.traffic_ends import TrafficEnd
from mesh_pilot.ops.values.truth import kept_from, truth_now
from mesh_pilot.sources.acme.source import AcmeSource

NAMED = 20
"""Names in an error of those that there are."""


routes = ApiTopic()


@routes.declare(
    "/describe/service/{host}",
    "A service in words: ports, endpoints, routing, mTLS, who may reach it, what is wrong with it.",
    parameters=(
        Parameter("host", "The service's full host name."),
        Parameter("namespace", "The service's namespace, where several services have the host."),
        Parameter("from", "The namespace of the clients that routing is told for. By default the service's."),
    ),
    answers=DescriptionShown,
    scope=Scope.ANY,
)
async def service(state: PlaneState, request: Request) -> Found:
    chosen = _service(state, request.path_params["host"], request.query_params.get("namespace", ""), sees(request))
    needed(request, Role.VIEW, chosen.namespace)
    client = request.query_params.get("from", "") or chosen.namespace
    described = describe_service(state.world.view, chosen, client, _workloads_of(state, chosen))
    await _tell_traffic(state, chosen, described)
    truth = await truth_now(state)
    keys = [("service", *chosen.key), *(("config", *key) for key in sorted(described.concerned))]
    described.kept_back(state.world.view, [(key, truth.of(key)) for key in keys])
    if lines := [DescribedLine(line) for line in left_out(state, chosen)]:
        described.summary += f", {len(lines)} left out"
        described.section("Left out by the registry", lines[:NAMED])
    return answered(state, described)


async def _tell_traffic(state: PlaneState, chosen: Service, described: Description) -> None:
    """Add the calls of the last minute; what to do, where they are unknown."""
    seen = await traffic_seen(state, USUAL_SECONDS)
    if advice := traffic_window(state, seen).advice:
        described.section("Traffic", [DescribedLine(f"unknown: {advice}")])
        return
    services = await services_seen(state, seen)
    end = TrafficEnd("service", chosen.host, chosen.namespace)
    own = next((each for each in services.services if each.service == end), None)
    title = f"Traffic of the last {seen.seconds.now:g} s"
    if own is None:
        described.section(title, [DescribedLine("no calls, as far as proxies report")])
        return
    edges = [each.edge for each in await edges_seen(state, seen, GroupBy.WORKLOAD)]
    callers = [each for each in edges if attrs.evolve(each.called, port=None, subset="") == end]
    described.facts["traffic"] = {"service": as_json(own), "callers": [as_json(each) for each in callers]}
    described.section(title, [*map(DescribedLine, service_lines(own, callers))])


@routes.declare(
    "/describe/proxy/{name:path}",
    "A connected proxy in words: what it serves and sees, and which objects apply to it.",
    parameters=(Parameter("name", "A proxy: NAME.NAMESPACE, a node id or an address.", is_proxy=True),),
    merge=first_found,
    answers=DescriptionShown,
    scope=Scope.PROXY,
)
async def proxy(state: PlaneState, request: Request) -> Found:
    name = request.path_params["name"]
    chosen = find_proxy(state, name)
    opened = state.catalog.opened(chosen) if chosen is not None else None
    if chosen is None or opened is None or not opened.is_known:
        known = ", ".join(names(state)[:NAMED]) or "none"
        raise ApiError(404, f"no connected proxy {name!r}; connected: {known}")
    described = describe_proxy(opened.view, chosen, opened.target)
    described.kept_back(state.world.view, await kept_from(state, chosen))
    return answered(state, described)


@routes.declare(
    "/describe/object/{kind}/{namespace}/{name}",
    "An object in words: whom it applies to, what it says and produces, what is wrong with it.",
    parameters=(
        Parameter("kind", "The kind, in any case."),
        Parameter("namespace", "The namespace."),
        Parameter("name", "The name."),
    ),
    answers=DescriptionShown,
    scope=Scope.NAMESPACE,
)
async def one_object(state: PlaneState, request: Request) -> Found:
    path = request.path_params
    kind = next((kind for kind in KINDS if kind.lower() == path["kind"].lower()), path["kind"])
    key = ConfigKey(kind, path["namespace"], path["name"])
    truth = (await truth_now(state, [("config", *key)])).of(("config", *key))
    config = state.world.config.peek(key) or state.facts().before(key)
    if config is None:
        refused = [each for each in state.world.rejections() if each.key == ("config", *key)]
        if not refused:
            raise ApiError(404, f"no object {key} is in force or refused")
        return answered(state, describe_refused(key, refused))
    held, labels = await held_by_proxies(state), _labels(state)
    becomes = made_of(state, key)
    produced = await trio.to_thread.run_sync(produced_by, (key, *becomes), held)
    described = describe_object(state.world.view, config, labels, produced, truth)
    if (status := status_now(state.world, key, connected_gateways(state))) is not None:
        described.facts["status"] = status
        described.section("Status", [*status_lines(status)])
    described.section("Certificates", list(_ordered(state, config)))
    described.section("Becomes", [DescribedLine(str(each)) for each in becomes])
    return answered(state, described)


def _ordered(state: PlaneState, config: Config) -> Iterator[DescribedLine]:
    """The credentials of a Gateway that are ordered."""
    sources = [each.source for each in state.supervisors if isinstance(each.source, AcmeSource)]
    servers = config.spec.servers if config.key.kind == "Gateway" else ()
    settings = [server.tls for server in servers if server.tls is not None]
    names = [name for tls in settings for name in (tls.credential_name, *tls.credential_names) if name]
    for name in dict.fromkeys(names):
        yield from (DescribedLine(text) for each in sources if (text := each.in_words(config.namespace, name)))


def answered(state: PlaneState, found: Description) -> Found:
    world = state.world
    concerned = [
        world.config.peek(key) for key in sorted(found.concerned) if key.kind in ("EnvoyFilter", *REFERRING_KINDS)
    ]
    standing = [(each, problem) for each in concerned if each for problem in object_problems(world.view, each.key)]
    picture = picture_of(world, _proxies(state), statuses_now(state), standing=tuple(standing))
    return lambda: found.shown(picture)


def _service(state: PlaneState, host: str, namespace: str, is_seen: Callable[[str], bool]) -> Service:
    host = host.lower()
    every = [s for s in state.world.view.services_named(host) if namespace in ("", s.namespace)]
    found = [s for s in every if is_seen(s.namespace)] or every[:1]
    if len(found) == 1:
        return found[0]
    if found:
        namespaces = ", ".join(sorted(s.namespace for s in found))
        raise ApiError(409, f"several services are called {host}: say which namespace, of {namespaces}")
    named = ((key, each) for key, each in state.world.services.items() if is_seen(key.namespace))
    hosts = sorted({key.host for key, each in named if each is not None})
    near = [each for each in hosts if host in each][:NAMED] or list(filter(None, [NearNames(hosts).nearest(host)]))
    where = f" in namespace {namespace}" if namespace else ""
    raise ApiError(404, f"no service {host}{where}; " + (f"there is {', '.join(near)}" if near else "none is like it"))


def _proxies(state: PlaneState) -> list[Proxy]:
    return [connection.proxy for connection in state.xds.status.proxies() if connection.proxy is not None]


def _workloads_of(state: PlaneState, service: Service) -> ConnectedWorkloads:
    """The connected proxies that serve a service, by address and port of its endpoints."""
    addresses = {a for endpoint in state.world.view.endpoints(service.key) for a in endpoint.addresses}
    found: dict[tuple[str, int], list[Workloads]] = {}
    for proxy in _proxies(state):
        opened = state.catalog.opened(proxy)
        if opened is None or not opened.is_known:
            continue
        workload = opened.target.workload
        # A proxy behind NAT names its registration, which has another address.
        if not workload.claim.ids and addresses.isdisjoint(proxy.ip_addresses):
            continue
        for instance in workload_instances(opened.view, workload):
            if instance.service.key == service.key:
                at = instance.endpoint.address, instance.endpoint.port
                found.setdefault(at, []).append((proxy.namespace, workload.labels))
    return found


def _labels(state: PlaneState) -> list[ProxyLabels]:
    found: dict[str, ProxyLabels] = {}
    for proxy in _proxies(state):
        opened = state.catalog.opened(proxy)
        labels = opened.target.workload.labels if opened is not None and opened.is_known else None
        own = frozenset(proxy.labels.items()) if labels is None else labels
        found[proxy.name] = (proxy.name, proxy.namespace, own, proxy.type is NodeType.ROUTER)
    return [*found.values()]
