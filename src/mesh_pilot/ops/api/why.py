"""Why a request of a proxy goes where it goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice

import attrs
import structlog
import trio
from starlette.requests import Request

from mesh_pilot.explain.inspection.why.answer import Step, WhyAnswer, WhyOutcome
from mesh_pilot.explain.inspection.why.clusters import MESH_MTLS, PLAINTEXT, cluster_parts
from mesh_pilot.explain.inspection.why.request import WhyRequest, WrongRequest, is_address, parse_request
from mesh_pilot.explain.inspection.why.story import NEARLY, explain
from mesh_pilot.mesh.listeners.gateway_servers import ServerKind, merged_servers, target_ports
from mesh_pilot.mesh.listeners.inbound import workload_instances
from mesh_pilot.mesh.proxy.keys import ProxyKeys
from mesh_pilot.mesh.reach.visibility import scope_service
from mesh_pilot.model.config import Config
from mesh_pilot.model.json import SPREAD, as_json
from mesh_pilot.model.proxy import NodeType, Proxy
from mesh_pilot.model.traffic import RowKind
from mesh_pilot.ops.api.route import ApiError, ApiTopic, Found, Parameter, first_found
from mesh_pilot.ops.api.visitors import Scope, sees
from mesh_pilot.ops.explain.attribution import Attribution, client_address, service_host
from mesh_pilot.ops.explain.fields import Decider
from mesh_pilot.ops.explain.kept_back import kept_back_lines
from mesh_pilot.ops.explain.plane_evidence import PlaneEvidence
from mesh_pilot.ops.explain.traffic_words import took_this_way
from mesh_pilot.ops.explain.unbound import holders, is_unbound
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.ops.values.left_out import left_out
from mesh_pilot.ops.values.proxies import find_proxy, names
from mesh_pilot.ops.values.traffic import NOTHING, TrafficCounts, traffic_seen
from mesh_pilot.traffic.table import WINDOW_SECONDS
from mesh_pilot.world import View

log = structlog.get_logger(scope="ops")

DESTINATIONS = 3
"""Clusters whose endpoints' own proxies are asked."""

ASKED_ENDPOINTS = 3
"""Endpoints of a cluster whose own proxies are asked."""

LEFT_OUT = 5
"""Instances without traffic that are told of a cluster."""

MAX_HOPS = 4
"""Proxies that a request is followed through."""

MAX_TARGET = 8192
"""Characters of a request that is asked about."""

PARAMETERS = (
    Parameter("proxy", "The proxy: NAME.NAMESPACE, a node id or an address.", is_required=True, is_proxy=True),
    Parameter("to", "The request: HOST[:PORT]/PATH or a URL.", is_required=True),
    Parameter("method", "The request's method; GET by default."),
    Parameter("header", "A header, NAME=VALUE.", is_repeated=True),
    Parameter("address", "The address that the client connects to, instead of the host's."),
    Parameter("source", "The address that it connects from."),
    Parameter("sni", "The server name of its TLS, instead of the host."),
    Parameter("inbound", "true: a request to the proxy's own application; the port is the workload's or a service's."),
    Parameter("plaintext", "true: an inbound request does not come by the mesh's mTLS."),
    Parameter("principal", "The identity of the client of an inbound request, spiffe://..."),
)


@attrs.frozen
class WhyResult:
    """The way of a request through a proxy, and through those of its destinations."""

    answer: WhyAnswer = attrs.field(metadata=SPREAD)
    destinations: Sequence[WhyDestination]


@attrs.frozen
class WhyDestination:
    """The way of a request through the proxy of an endpoint."""

    proxy: str
    endpoint: str
    result: WhyResult = attrs.field(metadata=SPREAD)


@attrs.frozen
class _Explained:
    """An answer with the objects that decide its steps, and the answers of its destinations' proxies."""

    answer: WhyAnswer
    deciders: list[tuple[Step, list[Decider]]]
    destinations: list[tuple[str, str, _Explained]]
    """Each with the proxy and the endpoint that it has."""

    def shown(self) -> WhyResult:
        """Reads the files of the objects, for the lines of fields."""
        for step, deciders in self.deciders:
            step.decided_by = [each.placed() for each in deciders]
        found = [WhyDestination(proxy, endpoint, each.shown()) for proxy, endpoint, each in self.destinations]
        return WhyResult(self.answer, found)


routes = ApiTopic()


@routes.declare(
    "/why",
    "The listener, route, cluster and endpoints that a request meets, and the line of YAML that decides each.",
    parameters=PARAMETERS,
    merge=first_found,
    answers=WhyResult,
    scope=Scope.PROXY,
)
async def why(state: PlaneState, request: Request) -> Found:
    asked = _asked(request)
    name = request.query_params.get("proxy", "")
    is_seen = sees(request)
    explained = await _explained(state, name, asked, is_seen)
    source = find_proxy(state, name)
    if source is not None and not asked.inbound:
        explained = await _followed(state, source, explained, explained.answer.request, (source.id,), is_seen)
    return explained.shown


async def _followed(
    state: PlaneState,
    source: Proxy,
    explained: _Explained,
    asked: WhyRequest,
    passed: tuple[str, ...],
    is_seen: Callable[[str], bool],
) -> _Explained:
    """The answer with those of the next proxies, where they are connected: sidecars, or gateways and what follows."""
    answer, destinations = explained.answer, []
    for cluster, endpoints in _endpoints(answer):
        proxies = ((proxy, endpoint) for endpoint in endpoints if (proxy := _at_address(state, endpoint.address)))
        reached: list[tuple[float, WhyAnswer, str]] = []
        for proxy, endpoint in islice(proxies, ASKED_ENDPOINTS):
            if not is_seen(proxy.namespace):
                answer.notes.append(f"{endpoint.text} is not followed: that needs view in namespace {proxy.namespace}")
                continue
            next_request = _next_request(answer, asked, source, proxy, endpoint)
            if not next_request.inbound and proxy.id in passed:
                continue
            there = await _explained(state, proxy, next_request, is_seen)
            if not next_request.inbound and len(passed) < MAX_HOPS:
                there = await _followed(state, proxy, there, there.answer.request, (*passed, proxy.id), is_seen)
            if not any(there.answer.outcome == other.outcome for _, other, _ in reached):
                destinations.append((proxy.name, endpoint.text, there))
            reached.append((endpoint.share, there.answer, proxy.name))
        answer.conclude(_with_refusals(answer.outcomes, cluster, reached))
    return attrs.evolve(explained, destinations=[*explained.destinations, *destinations])


def _with_refusals(
    outcomes: Sequence[WhyOutcome], cluster: str, reached: Sequence[tuple[float, WhyAnswer, str]]
) -> Iterator[WhyOutcome]:
    """Outcomes, where proxies of a cluster's endpoints refuse a share of its requests; those asked stand for all."""
    total = sum(share for share, _, _ in reached)
    for outcome in outcomes:
        if outcome.cluster != cluster or outcome.fails or not total:
            yield outcome
            continue
        left, refused = outcome.share, dict[str, float]()
        for share, answer, proxy in reached:
            for failed in (each for each in answer.outcomes if each.fails):
                what, colon, why_there = failed.text.partition(": ")
                by = f" by {proxy}" if " by " not in what else ""
                part = outcome.share * share / total * failed.share / 100
                text = f"{what}{by}{colon}{why_there}"
                refused[text] = refused.get(text, 0.0) + part
                left -= part
        yield from (WhyOutcome(part, text, True, cluster) for text, part in refused.items())
        if left > 0.001:
            yield attrs.evolve(outcome, share=left)


def _next_request(
    answer: WhyAnswer, asked: WhyRequest, source: Proxy, proxy: Proxy, endpoint: _NextEndpoint
) -> WhyRequest:
    """The request as the next proxy gets it: a sidecar for its application, a gateway to pass it on."""
    route = next((step.details for step in answer.steps if step.step == "route"), {})
    headers = asked.headers
    if host := route.get("host"):
        headers = (*((name, value) for name, value in headers if name not in ("host", ":authority")), ("host", host))
    is_gateway = proxy.type is NodeType.ROUTER
    scheme = asked.scheme
    if is_gateway and endpoint.tls != PLAINTEXT:
        scheme = "https" if asked.is_http else "tls"
    return attrs.evolve(
        asked,
        inbound=not is_gateway,
        scheme=scheme,
        port=endpoint.port,
        address=endpoint.address,
        sni=endpoint.sni if is_gateway else asked.sni,
        headers=headers if host or not is_gateway else (*headers, ("host", asked.authority)),
        mtls=endpoint.tls == MESH_MTLS,
        principal=source.identity,
        path=route.get("path") or asked.path,
        source=source.ip_addresses[0],
        is_port_given=True,
    )


def _asked(request: Request) -> WhyRequest:
    query = request.query_params
    target = query.get("to", "")
    if not target or len(target) > MAX_TARGET:
        raise ApiError(400, "say which request: to=HOST[:PORT]/PATH")
    for name in ("address", "source"):
        if query.get(name) and not is_address(query[name]):
            raise ApiError(400, f"{name} {query[name]!r} is not an IP address")
    try:
        return parse_request(
            target,
            query.getlist("header"),
            method=query.get("method", ""),
            address=query.get("address", ""),
            source=query.get("source", ""),
            sni=query.get("sni", ""),
            inbound=query.get("inbound") == "true",
            mtls=query.get("plaintext") != "true",
            principal=query.get("principal", ""),
        )
    except WrongRequest as error:
        raise ApiError(400, str(error)) from None


async def _explained(
    state: PlaneState, name: str | Proxy, asked: WhyRequest, is_seen: Callable[[str], bool]
) -> _Explained:
    """The answer for one proxy. Files are not read yet."""
    proxy = find_proxy(state, name)
    dumps = state.xds.status.config_dump(proxy) if proxy is not None else None
    opened = state.catalog.opened(proxy) if proxy is not None else None
    if dumps is None or opened is None or not opened.is_known:
        known = ", ".join(names(state)[:20]) or "none"
        raise ApiError(404, f"no connected proxy {name!r}; connected: {known}")
    view, keys = opened.view, opened.target
    asked, note = _with_port(view, keys, asked)
    if asked.inbound:
        asked = _at_workload_port(view, keys, asked)
    addresses = {} if asked.inbound else {(asked.host, asked.port): client_address(view, keys, asked.host)}
    evidence = PlaneEvidence(dumps, addresses)
    answer = await trio.to_thread.run_sync(partial(explain, evidence, asked))
    answer.notes += [note] if note else []
    try:
        attribution = Attribution(view, keys)
        found = [*attribution.steps(answer)]
        answer.notes += attribution.conflicts(answer)
        if is_unbound(answer):
            every = (c for key, c in state.world.config.items() if key.kind == "VirtualService" and c)
            virtual_services = [each for each in every if is_seen(each.namespace)]
            found += _tell_holders(view, keys, answer, virtual_services)
    except Exception as error:
        # A translator that fails here is reported elsewhere, too; the answer is worth having without places.
        log.warning("the objects that decide a request cannot be found", proxy=name, exc_info=error)
        answer.notes.append(f"the objects that decide cannot be found: {type(error).__name__}: {error}")
        found = []
    _tell_left_out(state, view, keys, answer)
    if proxy is not None:
        await _tell_traffic(state, proxy, answer)
        answer.notes += await kept_back_lines(state, proxy, asked.host)
    return _Explained(answer, found, [])


def _tell_holders(
    view: View, keys: ProxyKeys, answer: WhyAnswer, virtual_services: Sequence[Config]
) -> Iterator[tuple[Step, list[Decider]]]:
    """Add the objects that have the host, and are not bound here, to what was nearly chosen, and to a failure."""
    for number, (text, about) in enumerate(islice(holders(view, keys, answer.request, virtual_services), NEARLY)):
        step = Step("host", about.object, text)
        answer.nearly.append(step)
        if not number:
            first = f"; {about.object} {text}"
            answer.conclude(
                [attrs.evolve(each, text=each.text + first) if each.fails else each for each in answer.outcomes]
            )
        yield step, [about]


def _with_port(view: View, keys: ProxyKeys, asked: WhyRequest) -> tuple[WhyRequest, str]:
    """The request at the only port that it can mean, where it names none, and a note that says so.

    Raises ApiError if there are several, and none is the scheme's own.
    """
    # The port of the scheme is meant if the service or the gateway has it; else the only one that can take the request.
    # An invented one would send people after a listener that nobody declared.
    if asked.is_port_given:
        return asked, ""
    host = service_host(view, keys, asked.host)
    if keys.scope.type is NodeType.ROUTER and not asked.inbound:
        merged = merged_servers(view, keys.scope, target_ports(view, keys.workload))
        servers = [server for listener in merged.listeners for server in listener.servers]
        has, numbers = "the gateway listens at", {server.bound for server in servers}
        usable = {
            server.bound
            for server in servers
            if (not server.kind.is_plain if asked.is_tls else server.kind is ServerKind.HTTP)
        }
    else:
        services = view.services_named(host)
        has, numbers = f"{host} has", {port.number for service in services for port in service.ports}
        usable = {p.number for service in services for p in service.ports if p.protocol.is_http and not asked.is_tls}
    if asked.port in numbers or not numbers:
        return asked, ""
    listed = ", ".join(map(str, sorted(numbers)))
    if len(usable) != 1:
        raise ApiError(400, f"no port given: {has} {listed}")
    (port,) = usable
    return attrs.evolve(asked, port=port, names_port=True, is_port_given=True), f"no port given: {has} {listed}"


def _tell_left_out(state: PlaneState, view: View, keys: ProxyKeys, answer: WhyAnswer) -> None:
    """Add the instances that get no traffic to the endpoints of the answer, and to an outcome that none remedies."""
    for step in answer.steps:
        parts = cluster_parts(step.name) if step.step == "endpoints" else None
        service = scope_service(view, keys.scope, parts[0]) if parts is not None and parts[0] else None
        lines = [*islice(left_out(state, service), LEFT_OUT)] if service is not None else []
        if lines:
            step.details["left_out"] = lines
            told = (
                attrs.evolve(each, text=f"{each.text}; left out: {lines[0]}")
                if each.fails and each.cluster == step.name
                else each
                for each in answer.outcomes
            )
            answer.conclude(told)


async def _tell_traffic(state: PlaneState, proxy: Proxy, answer: WhyAnswer) -> None:
    """Add to each cluster what the proxy counted of it in ten minutes, or that this is unknown."""
    if state.traffic is None:
        return
    seen = await traffic_seen(state, WINDOW_SECONDS)
    own = {row.name: row.now for row in seen.rows if row.proxy.node == proxy.id and row.kind is RowKind.CLUSTER}
    reports = any(each.proxy_id == proxy.id and each.reports != "nothing" for each in seen.part.reporters)
    for step in answer.steps:
        if step.step == "cluster" and not step.details.get("missing"):
            if not reports or not seen.seconds.now:
                step.details["traffic"] = {"text": "traffic is unknown: the proxy reports none"}
                continue
            counts = TrafficCounts.of(own.get(step.name, NOTHING), seen.seconds.now)
            step.details["traffic"] = {
                "text": took_this_way(counts),
                "seconds": seen.seconds.now,
                "counts": as_json(counts),
            }


def _at_address(state: PlaneState, address: str) -> Proxy | None:
    proxies = (connection.proxy for connection in state.xds.status.proxies() if connection.proxy is not None)
    return next((proxy for proxy in proxies if address in proxy.ip_addresses), None)


def _at_workload_port(view: View, keys: ProxyKeys, asked: WhyRequest) -> WhyRequest:
    """The request at the workload's port, where it names a service's."""
    host = service_host(view, keys, asked.host)
    for instance in workload_instances(view, keys.workload):
        if instance.service.host == host and instance.port.number == asked.port:
            address = asked.address or instance.endpoint.address
            return attrs.evolve(asked, port=instance.endpoint.port, address=address if is_address(address) else "")
    return asked


@attrs.frozen
class _NextEndpoint:
    """An endpoint that has a share of a cluster's requests."""

    address: str
    port: int
    tls: str
    sni: str
    share: float
    text: str


def _endpoints(answer: WhyAnswer) -> Iterator[tuple[str, list[_NextEndpoint]]]:
    """The clusters that requests are forwarded to, each with its endpoints, the largest share first."""
    chosen = [step for step in answer.steps if step.step == "endpoints" and step.details.get("endpoints")]
    for step in chosen[:DESTINATIONS]:
        found = []
        for each in sorted(step.details["endpoints"], key=lambda endpoint: -endpoint["share"]):
            address, _, port = each["address"].rpartition(":")
            address = address.removeprefix("[").removesuffix("]")
            if each["share"] and is_address(address) and port.isdigit():
                text = f"{address}:{port}"
                found.append(_NextEndpoint(address, int(port), each["tls"], each["sni"], each["share"], text))
        yield step.details["cluster"], found
