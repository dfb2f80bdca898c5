"""Gateways and what they expose: ports, hosts, paths, the services behind them, certificates, and their proxies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import attrs
from starlette.requests import Request

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.base.in_turns import in_turns
from mesh_pilot.identity.trust.validity import leaf_validity
from mesh_pilot.mesh.virtual_hosts.gateway_tables import common_hosts
from mesh_pilot.model.config import Config, ConfigKey
from mesh_pilot.model.json import SPREAD, Json
from mesh_pilot.ops.api.host_routes import HostVirtualService, verdicts_on, virtual_service_shown
from mesh_pilot.ops.api.object_services import NamedService, destinations_named
from mesh_pilot.ops.api.paging import PAGING, SEARCH, Paging, Piece, matches
from mesh_pilot.ops.api.route import ApiError, ApiTopic, Found, Parameter
from mesh_pilot.ops.api.visitors import Scope, sees
from mesh_pilot.ops.causes.objects import FAULTY
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.ops.values.assessments import Assessment, Gravity
from mesh_pilot.world import World

NAMESPACE = Parameter("namespace", "A namespace.")
IN_PATH = (Parameter("namespace", "The namespace."), Parameter("name", "The name."))

NAMED = 5
"""Proxies that are named."""

MOST = 50
"""VirtualServices of a server that are shown."""

MOST_SERVICES = 10
"""Services that a server leads to, in a list."""


@attrs.frozen
class GatewayCertificate:
    """The certificate that a server shows."""

    name: str
    """The ``credentialName``, or the file next to the proxy."""
    expires: datetime | None
    """Null where the control plane does not have it."""
    problem: str
    """Why it cannot be used; empty if it can, or is a file that only the proxy sees."""


@attrs.frozen(kw_only=True)
class GatewayServerState:
    """A server of a gateway."""

    port: int
    protocol: str
    hosts: Sequence[str]
    tls: str
    """The mode, such as SIMPLE; empty for plaintext."""
    redirects: bool
    """True if plaintext requests are sent to HTTPS."""
    certificates: Sequence[GatewayCertificate]
    routes: int
    """VirtualServices that have one of its hosts."""
    leads_to: Sequence[NamedService]
    """The first services that their rules lead to."""


@attrs.frozen
class GatewayProxies:
    """The connected proxies that serve a gateway."""

    count: int
    names: Sequence[str]


@attrs.frozen(kw_only=True)
class GatewaySummary:
    """A gateway in a list."""

    namespace: str
    name: str
    object: str
    origin: str
    assessment: Assessment = attrs.field(metadata=SPREAD)
    """That of the object unless it is well; then ``serves``, ``faulty``, ``no proxy`` or ``no route``."""
    proxies: GatewayProxies
    servers: Sequence[GatewayServerState]


@attrs.frozen
class ServerRoutes:
    """The routes behind a server of a gateway."""

    server: GatewayServerState
    virtual_services: Sequence[HostVirtualService]
    """With those of their hosts that the server has."""
    more: int
    """VirtualServices that are left out."""


@attrs.frozen
class GatewayState:
    """A gateway with the routes behind each server."""

    gateway: GatewaySummary
    servers: Sequence[ServerRoutes]


def _summed(answers: Mapping[int, Any]) -> Json:
    """A list of gateways, each with the proxies of all workers."""
    first, *others = answers.values()
    for answer in others:
        of_object = {each["object"]: each for each in answer["items"]}
        for known in first["items"]:
            if known["object"] in of_object:
                _add(known["proxies"], of_object[known["object"]]["proxies"])
    found: Json = first
    return found


def _one_summed(answers: Mapping[int, Any]) -> Json:
    """One gateway, with the proxies of all workers."""
    first, *others = answers.values()
    for answer in others:
        _add(first["gateway"]["proxies"], answer["gateway"]["proxies"])
    found: Json = first
    return found


def _add(known: dict[str, Any], more: dict[str, Any]) -> None:
    known["count"] += more["count"]
    known["names"] = [*known["names"], *more["names"]][:NAMED]


routes = ApiTopic()


@routes.declare(
    "/gateways",
    "The gateways: ports, hosts, certificates, and the connected proxies that serve them; what is wrong comes first.",
    parameters=(NAMESPACE, SEARCH, *PAGING),
    answers=Piece[GatewaySummary],
    merge=_summed,
    scope=Scope.ANY,
)
async def listed(state: PlaneState, request: Request) -> Found:
    paging, namespace = Paging.of(request), request.query_params.get("namespace", "")
    search = request.query_params.get("q", "")
    served, is_seen = _served(state), sees(request)
    chosen = [
        config
        for config in state.world.view.all_configs("Gateway")
        if namespace in ("", config.namespace)
        and is_seen(config.namespace)
        and matches(search, str(config.key), *(host for server in config.spec.servers for host in server.hosts))
    ]
    verdicts = await verdicts_on(state, [config.key for config in chosen])
    shown = await in_turns(
        _summary(state.world, config, verdicts[config.key], served.get(config.key, ())) for config in chosen
    )
    found = [
        (f"{Gravity.ERROR.rank - each.assessment.severity.rank}{each.namespace}/{each.name}", each) for each in shown
    ]
    return lambda: paging.piece(found, lambda each: each)


@routes.declare(
    "/gateways/{namespace}/{name}",
    "A gateway: of each server the hosts, paths, and the services that requests go to.",
    parameters=IN_PATH,
    answers=GatewayState,
    merge=_one_summed,
    scope=Scope.NAMESPACE,
)
async def one(state: PlaneState, request: Request) -> Found:
    world, path = state.world, request.path_params
    key = ConfigKey("Gateway", path["namespace"], path["name"])
    config = world.config.peek(key)
    if config is None:
        raise ApiError(404, f"no gateway {key.name} in namespace {key.namespace}")
    bound = [[*_bound(world, config, server)] for server in _servers(config)]
    keys = dict.fromkeys((key, *(each.key for some in bound for each, _ in some[:MOST])))
    verdicts = await verdicts_on(state, [*keys])
    summary = _summary(world, config, verdicts[key], _served(state).get(key, ()))

    def tree(found: Config, hosts: Sequence[str]) -> HostVirtualService:
        return virtual_service_shown(world, found, key.namespace, verdicts[found.key], hosts)

    servers = [
        ServerRoutes(shown, [tree(*each) for each in some[:MOST]], max(0, len(some) - MOST))
        for shown, some in zip(summary.servers, bound, strict=True)
    ]
    return GatewayState(summary, servers)


def _served(state: PlaneState) -> dict[ConfigKey, list[str]]:
    """The connected proxies of each gateway, by name."""
    found: dict[ConfigKey, list[str]] = {}
    for connection in state.xds.status.proxies():
        proxy = connection.proxy
        opened = state.catalog.opened(proxy) if proxy is not None else None
        if proxy is not None and opened is not None and opened.is_known:
            for key in opened.target.scope.gateways:
                found.setdefault(key, []).append(proxy.name)
    return {key: sorted(names) for key, names in found.items()}


def _servers(config: Config) -> list[api.Server]:
    spec: api.Gateway = config.spec
    return [server for server in spec.servers if server.port is not None]


def _summary(world: World, config: Config, verdict: Assessment, proxies: Sequence[str]) -> GatewaySummary:
    servers = [_server(world, config, server) for server in _servers(config)]
    return GatewaySummary(
        namespace=config.namespace,
        name=config.name,
        object=str(config.key),
        origin=str(config.origin),
        assessment=verdict if verdict.severity is not Gravity.OK else _assessed(servers, proxies),
        proxies=GatewayProxies(len(proxies), proxies[:NAMED]),
        servers=servers,
    )


def _assessed(servers: Sequence[GatewayServerState], proxies: Sequence[str]) -> Assessment:
    """The assessment of a gateway whose object is well: what is worst."""
    for server in servers:
        for certificate in server.certificates:
            if certificate.problem:
                return Assessment(FAULTY, Gravity.ERROR, f"port {server.port}: {certificate.problem}")
    if not proxies:
        return Assessment("no proxy", Gravity.WARNING, "no connected proxy serves it")
    if not any(server.routes for server in servers):
        return Assessment("no route", Gravity.WARNING, "no VirtualService is bound to it: requests are answered 404")
    return Assessment("serves")


def _server(world: World, config: Config, server: api.Server) -> GatewayServerState:
    assert server.port is not None
    bound = [each for each, _ in _bound(world, config, server)]
    found = dict.fromkeys(service for each in bound for service in destinations_named(world, each))
    return GatewayServerState(
        port=server.port.number,
        protocol=server.port.protocol.upper(),
        hosts=server.hosts,
        tls=str(server.tls.mode.name) if server.tls is not None and not server.tls.https_redirect else "",
        redirects=server.tls is not None and server.tls.https_redirect,
        certificates=[*_certificates(world, config.namespace, server.tls)],
        routes=len(bound),
        leads_to=[*islice(found, MOST_SERVICES)],
    )


def _certificates(world: World, namespace: str, tls: api.ServerTlsSettings | None) -> Iterator[GatewayCertificate]:
    if tls is None:
        return
    for name in tls.credential_names or ([tls.credential_name] if tls.credential_name else ()):
        short = name.rpartition("://")[2]
        owner, _, last = short.rpartition("/")
        secret = world.view.secret(owner or namespace, last)
        if secret is None or not secret.certificate_chain:
            yield GatewayCertificate(
                name, None, f"the credential {short} is not known in namespace {owner or namespace}"
            )
            continue
        try:
            period = leaf_validity(secret.certificate_chain)
        except ValueError:
            yield GatewayCertificate(name, None, f"the credential {short} does not hold a certificate")
            continue
        fault = period.fault(datetime.now(UTC))
        yield GatewayCertificate(name, period.ends, f"the certificate of {short} {fault}" if fault else "")
    if tls.server_certificate:
        yield GatewayCertificate(tls.server_certificate, None, "")


def _bound(world: World, config: Config, server: api.Server) -> Iterator[tuple[Config, list[str]]]:
    """The VirtualServices of a gateway with the hosts that they share with one of its servers, the oldest first."""
    view, key = world.view, config.key
    for meta in sorted(view.virtual_services(f"{key.namespace}/{key.name}"), key=lambda meta: meta.order):
        names = [
            host
            for scope, _, host in (each.lower().rpartition("/") for each in server.hosts)
            if scope in ("", "*", meta.key.namespace) or (scope == "." and meta.key.namespace == key.namespace)
        ]
        hosts = [*common_hosts(names, meta.hosts)]
        found = view.config(meta.key)
        if hosts and found is not None and meta.visible_to(key.namespace):
            yield found, hosts
