"""Debug pages by istiod's names and in its shapes, as far as they have a meaning for Envoys on VMs.

istioctl and people's scripts read them, so their paths and shapes are istiod's and do not follow the API. A page that
has no meaning here answers 404 with the reason: ``ABSENT``. Each is a function from the plane to the rest of its work,
which uses only immutable values and runs in a thread: a dump of a large mesh takes seconds, in which proxies are
served.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from starlette.requests import Request

from mesh_pilot.explain.truth.facts import of_types
from mesh_pilot.explain.truth.states import SYNC_WORDS, Truth
from mesh_pilot.istio.kinds import KINDS
from mesh_pilot.istio.reading.encode_json import to_json
from mesh_pilot.mesh.settings.networks import network_gateways
from mesh_pilot.model.config import Config
from mesh_pilot.model.json import Json, as_json
from mesh_pilot.model.log_levels import NAMES, SCOPES, SWITCH
from mesh_pilot.model.net import is_ip
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.resource import ENDPOINT, ENVOY_TYPES, EXTENSION, RESOURCE_TYPES, Resource
from mesh_pilot.model.service import Endpoint, NetworkGateway, ServiceKey
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.ops.values import configs, objects, proxies
from mesh_pilot.ops.values.clusters import clusters
from mesh_pilot.ops.values.proxies import ProxyRefusal, WarmingState
from mesh_pilot.ops.values.services import endpoints_json, service_json
from mesh_pilot.ops.web.responses import NotFound
from mesh_pilot.xds.ads.config_dump import resource_json
from mesh_pilot.xds.ads.status import ConnectionStatus, TypeDump, TypeStatus

ORDERS = ("adsz?push=true", "force_disconnect")
"""Pages of istiod that are orders: they need the role operate."""

ABSENT: Mapping[str, str] = {
    "ndsz": "names are answered by the agent: its status port has /debug/ndsz",
    "cachez?clear=true": "nothing to clear: a derived value is dropped when what it was made of changes",
    "sidecarz": "there is no SidecarScope: /debug/config_dump has what a proxy gets, mesh-pilot describe proxy why",
    "ambientz": "ambient mode is absent",
    "krtz": "there are no krt collections: /debug/derived has the derived values",
    "push_status": "there is no push context: /debug/rejections has conflicts, mesh-pilot history the latest revisions",
    "inject": "templates and values of injection are files: --injection-template names them",
    "mcsz": "multi-cluster services are among the others: /debug/registryz has their hosts in clusterset.local",
    "pprof/": "this is not a Go program: mesh-pilot admin profile",
    "pprof/cmdline": "this is not a Go program: mesh-pilot version",
    "pprof/profile": "this is not a Go program: mesh-pilot admin profile cpu",
    "pprof/symbol": "this is not a Go program",
    "pprof/trace": "this is not a Go program",
}
"""Pages of istiod that have no meaning here, and the reason."""

Work = Callable[[], Json]

Page = Callable[[PlaneState, Request], Work]


def page_names() -> list[str]:
    """The pages of istiod that there are, as ``/debug/list`` has them."""
    return sorted([*PAGES, *ORDERS, "cachez?sizes=true"])


def absent(name: str, query: Mapping[str, str]) -> str:
    """The reason why a page of istiod is not there; empty for one that istiod has not either."""
    if name in ("adsz", "force_disconnect"):
        return f"/debug/{name} gives an order here, which needs the role operate: ask the web port or the admin socket"
    return ABSENT.get(name, "")


def _listed(_: PlaneState, request: Request) -> Work:
    return page_names


def _connections(state: PlaneState, _: Request) -> Work:
    found = state.xds.status.connections()
    return lambda: {
        "totalClients": len(found),
        "clients": [
            {
                "connectionId": f"{each.proxy.id if each.proxy else ''}-{each.id}",
                "connectedAt": each.connected_at.isoformat(),
                "address": each.peer,
            }
            for each in found
        ],
    }


def _synced(state: PlaneState, _: Request) -> Work:
    found = list(proxies.proxy_states(state, state.facts(), state.xds.status.connections()))
    return lambda: [as_json(each) for each in found]


def _streams(state: PlaneState, _: Request) -> Work:
    found = [_stream(connection) for connection in state.xds.status.connections()]
    return lambda: found


def _stream(connection: ConnectionStatus) -> Json:
    """A stream in full: node, subscriptions, counters, and the responses that it waits for."""
    proxy = connection.proxy
    waiting = connection.waiting
    types = of_types(connection)
    return {
        "stream": connection.id,
        "peer": connection.peer,
        "xds": connection.variant.value,
        "connected_at": connection.connected_at.isoformat(),
        "node": _node(proxy) if proxy else None,
        "types": {RESOURCE_TYPES[t.type_url].short: _stream_type(t, types[t.type_url]) for t in connection.types},
        "waiting_for": {
            "node": waiting.node,
            "acks": [RESOURCE_TYPES[t].short for t in waiting.acks],
            "endpoints": sorted(waiting.endpoints),
        },
        "warming": [as_json(WarmingState.of(each)) for each in connection.warming],
        "refused": [as_json(ProxyRefusal.of(record)) for record in connection.nacks],
    }


def _node(proxy: Proxy) -> Json:
    return {
        "id": proxy.id,
        "addresses": list(proxy.ip_addresses),
        "labels": dict(proxy.labels),
        "locality": str(proxy.locality),
        "version": proxy.version,
        "agent": proxy.agent,
    }


def _stream_type(status: TypeStatus, truth: Truth) -> Json:
    own = status.subscription
    return {
        "state": SYNC_WORDS[truth.state],
        "wildcard": own.wildcard,
        "names": own.names,
        "held": own.resources,
        "in_doubt": own.nacked,
        "version": own.version,
        "acked_version": own.acked_version,
        "sent_at": status.sent_at.isoformat() if status.sent_at else None,
        "acked_at": status.acked_at.isoformat() if status.acked_at else None,
        "pushes": status.pushes,
        "rejects": status.rejects,
        "bytes_sent": status.bytes_sent,
    }


def _config_dump(state: PlaneState, request: Request) -> Work:
    return partial(objects.explained_dump, state.world, _dumps(state, request))


def _configs(state: PlaneState, request: Request) -> Work:
    kind, namespace = request.query_params.get("kind", "").lower(), request.query_params.get("namespace", "")
    everything = (config for _, config in state.world.config.items() if config is not None)
    wanted = [c for c in everything if kind in ("", c.key.kind.lower()) and namespace in ("", c.key.namespace)]
    return lambda: [_config(config) for config in sorted(wanted, key=lambda config: config.key)]


def _config(config: Config) -> Json:
    """A config, or an error in its place if it cannot be shown."""
    try:
        return configs.show_config(config)
    except Exception as error:
        return {"object": str(config.key), "error": f"cannot be shown: {type(error).__name__}: {error}"}


def _services(state: PlaneState, _: Request) -> Work:
    found = [service for _, service in state.world.services.items() if service is not None]
    return lambda: [service_json(service) for service in sorted(found, key=lambda each: each.key)]


def _endpoints(state: PlaneState, _: Request) -> Work:
    found = sorted(state.world.endpoints.items())
    return lambda: [endpoints_json(key, endpoints) for key, endpoints in found]


def _dumps(state: PlaneState, request: Request) -> tuple[TypeDump, ...]:
    """The dump of the proxy that a request names. Raises NotFound and SeveralProxies."""
    proxy_id = request.query_params.get("proxyID", "")
    proxy = proxies.find_proxy(state, proxy_id)
    if proxy is None:
        raise NotFound(proxies.not_connected(state, proxy_id))
    return state.xds.status.config_dump(proxy)


def _of_type(type_url: str) -> Page:
    def page(state: PlaneState, request: Request) -> Work:
        dumps = _dumps(state, request)
        resources = [resource for dump in dumps if dump.type_url == type_url for resource in dump.resources]
        return lambda: {"configs": [resource_json(resource) for resource in resources]}

    return page


def _shards(state: PlaneState, _: Request) -> Work:
    services, endpoints = dict(state.world.services.items()), [*state.world.endpoints.items()]

    def work() -> Json:
        found: defaultdict[str, dict[str, Json]] = defaultdict(dict)
        for key, each in endpoints:
            service = services.get(key)
            registry = service.registry if service is not None else ""
            shards: defaultdict[str, list[Json]] = defaultdict(list)
            for endpoint in each:
                shard = f"{registry}/{endpoint.cluster_id}" if endpoint.cluster_id else registry
                shards[shard].append(_endpoint(endpoint))
            found[key.host][key.namespace] = {
                "Shards": dict(shards),
                "ServiceAccounts": sorted({endpoint.service_account for endpoint in each} - {""}),
            }
        return dict(sorted(found.items()))

    return work


def _endpoint(endpoint: Endpoint) -> Json:
    return {
        "Addresses": list(endpoint.addresses),
        "EndpointPort": endpoint.port,
        "ServicePortName": endpoint.service_port,
        "Labels": dict(endpoint.labels),
        "Locality": {"Label": str(endpoint.locality), "ClusterID": endpoint.cluster_id},
        "Network": endpoint.network,
        "LbWeight": endpoint.weight,
        "ServiceAccount": endpoint.service_account,
        "HealthStatus": endpoint.health.value,
    }


def _cache(state: PlaneState, request: Request) -> Work:
    if request.query_params.get("clear"):
        raise NotFound(f"{ABSENT['cachez?clear=true']}\n")
    held = [(url, resources) for url in ENVOY_TYPES for _, resources in state.xds.status.accepted(url)]
    if request.query_params.get("sizes"):
        return lambda: _sizes(held)

    def work() -> Json:
        found: defaultdict[str, set[str]] = defaultdict(set)
        for resource in _distinct(held):
            found[resource.type_url].add(resource.name)
        return {url: sorted(names) for url, names in sorted(found.items())}

    return work


def _sizes(held: Iterable[tuple[str, Mapping[str, Resource]]]) -> Json:
    found: defaultdict[str, int] = defaultdict(int)
    for resource in _distinct(held):
        found[resource.type_url] += len(resource.body)
    return {name: f"{size}B" for name, size in [*sorted(found.items()), ("total", sum(found.values()))]}


def _distinct(held: Iterable[tuple[str, Mapping[str, Resource]]]) -> Iterable[Resource]:
    """The resources that proxies hold; what they share is there once."""
    mappings = {id(resources): resources for _, resources in held}
    return {id(resource): resource for each in mappings.values() for resource in each.values()}.values()


def _kinds(_: PlaneState, request: Request) -> Work:
    return lambda: [
        {"group": kind.group, "version": kind.versions[-1], "kind": kind.written}
        for kind in KINDS.values()
        if not kind.legacy
    ]


def _instances(state: PlaneState, _: Request) -> Work:
    found: dict[str, list[tuple[ServiceKey, Endpoint]]] = {}
    for connection in state.xds.status.proxies():
        proxy = connection.proxy
        if proxy is not None:
            at = [each for address in proxy.ip_addresses for each in state.world.endpoints_at.peek(address)]
            found[proxy.id] = [(key, endpoint) for key, endpoints in at for endpoint in endpoints]
    return lambda: {proxy: [_target(*each) for each in targets] for proxy, targets in found.items()}


def _target(key: ServiceKey, endpoint: Endpoint) -> Json:
    port: Json = {"ServicePort": {"name": endpoint.service_port}, "TargetPort": endpoint.port}
    return {"Service": {"hostname": key.host, "Attributes": {"Namespace": key.namespace}}, "Port": port}


def _policies(state: PlaneState) -> Callable[[], dict[str, Json]]:
    root, found = state.world.mesh.peek(()).root_namespace, state.world.configs_of.peek("AuthorizationPolicy")
    return lambda: {"namespace_to_policies": _by_namespace(found), "root_namespace": root}


def _authorization(state: PlaneState, _: Request) -> Work:
    policies = _policies(state)
    return lambda: {"authorization_policies": policies()}


def _telemetry(state: PlaneState, _: Request) -> Work:
    root, found = state.world.mesh.peek(()).root_namespace, state.world.configs_of.peek("Telemetry")
    return lambda: {"telemetries": {"namespace_to_telemetries": _by_namespace(found), "root_namespace": root}}


def _by_namespace(configs: Iterable[Config]) -> Json:
    found: defaultdict[str, list[Json]] = defaultdict(list)
    for config in sorted(configs, key=lambda config: config.key):
        shown: dict[str, Json] = {"name": config.name, "namespace": config.namespace, "spec": to_json(config.spec)}
        if config.annotations:
            shown["annotations"] = dict(config.annotations)
        found[config.namespace].append(shown)
    return dict(found)


def _push_context(state: PlaneState, _: Request) -> Work:
    policies, gateways = _policies(state), network_gateways(state.world.view)
    resolved = [gateway for gateway in gateways if is_ip(gateway.address)]
    return lambda: {
        "AuthorizationPolicies": policies(),
        "NetworkGateways": [_gateway(each) for each in resolved],
        "UnresolvedGateways": [_gateway(each) for each in gateways],
    }


def _networks(state: PlaneState, _: Request) -> Work:
    gateways = network_gateways(state.world.view)
    return lambda: [_gateway(each) for each in gateways]


def _gateway(gateway: NetworkGateway) -> Json:
    return {
        "Network": gateway.network,
        "Cluster": gateway.cluster_id,
        "Addr": gateway.address,
        "Port": gateway.port,
        "HBONEPort": 0,
    }


def _clusters(state: PlaneState, _: Request) -> Work:
    found = clusters(state)
    return lambda: [{"id": each.id, "secretName": each.origin, "syncStatus": each.status} for each in found]


def _mesh(state: PlaneState, _: Request) -> Work:
    mesh = state.world.mesh.peek(())
    return lambda: to_json(mesh)


PAGES: Mapping[str, Page] = {
    "syncz": _synced,
    "adsz": _streams,
    "config_dump": _config_dump,
    "configz": _configs,
    "registryz": _services,
    "endpointz": _endpoints,
    "list": _listed,
    "connections": _connections,
    "edsz": _of_type(ENDPOINT),
    "ecdsz": _of_type(EXTENSION),
    "endpointShardz": _shards,
    "cachez": _cache,
    "resourcesz": _kinds,
    "instancesz": _instances,
    "authorizationz": _authorization,
    "telemetryz": _telemetry,
    "pushcontext": _push_context,
    "networkz": _networks,
    "clusterz": _clusters,
    "mesh": _mesh,
}
"""Pages by their names below ``/debug/``."""


def scopes() -> list[Json]:
    """``/scopez``: the scopes of the log, as ControlZ of istiod has them."""
    return [
        {"name": name, "description": what, "output_level": NAMES[SWITCH.levels.of(name)]}
        for name, what in SCOPES.items()
    ]


def change_scope(asked: Mapping[str, Any]) -> str:
    """The levels in the words of ``--log-level`` that a PUT at ``/scopez`` asks for. Raises ValueError."""
    name, level = asked.get("name"), asked.get("output_level")
    if not (isinstance(name, str) and isinstance(level, str)) or set(name + level) & {",", ":"}:
        raise ValueError('the body must be {"name": "xds", "output_level": "debug"}')
    return f"{name}:{level}"
