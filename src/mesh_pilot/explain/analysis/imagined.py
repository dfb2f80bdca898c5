"""Patches of EnvoyFilters at the proxies that files show: gateways by their selectors, sidecars by their workloads.

Files do not say which proxies there are, so what is found here is found for those that they imply. Versions and
metadata of proxies are unknown: a patch with ``match.proxy`` is not judged. Nor are the ports that gateways listen on,
where a service maps a server's port to another one: a match on them is never said to match nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from envoy.config.listener.v3.listener_pb2 import Listener

from mesh_pilot.envoy.catalog.catalog import WorldCatalog
from mesh_pilot.envoy.catalog.diagnostics import PatchFailure
from mesh_pilot.envoy.envoy_filter.bootstrap import RESOURCE as BOOTSTRAP
from mesh_pilot.envoy.envoy_filter.outcome import NOTHING_MATCHES
from mesh_pilot.envoy.envoy_filter.patch import Context
from mesh_pilot.envoy.refusals.waits import waits
from mesh_pilot.mesh.proxy.keys import proxy_facts, proxy_keys
from mesh_pilot.model.config import Config, Problem
from mesh_pilot.model.net import is_ip
from mesh_pilot.model.proxy import Interception, NodeType, Proxy
from mesh_pilot.model.resource import LISTENER, ROUTE
from mesh_pilot.model.spiffe import Identity
from mesh_pilot.world import World

MOST = 50
"""Proxies of each type that patches are tried on. Of more, some are not tried, and what matches nothing is not told."""

_ADDRESS = "192.0.2.1"
"""The address of a proxy whose address is unknown: one for documentation (RFC 5737)."""


def patch_problems_in_files(world: World) -> Iterator[tuple[Config, Problem]]:
    """The patches of a World's EnvoyFilters that are left out, or match nothing, at the proxies that it implies."""
    filters = {str(config.key): config for config in world.configs_of.peek("EnvoyFilter")}
    if not filters:
        return
    catalog = WorldCatalog(world)
    are_all = True
    for proxies in (_gateways(world), _sidecars(world)):
        selected = (proxy for proxy in proxies if proxy_keys(world.view, proxy_facts(proxy)).filters)
        tried = list(islice(selected, MOST + 1))
        are_all = are_all and len(tried) <= MOST
        for proxy in tried[:MOST]:
            _open(catalog, proxy)
    told: set[tuple[str, str]] = set()
    for failure in catalog.diagnostics().patches():
        where = (failure.object, failure.field)
        # Whether an agent starts the Envoys is not in files.
        if failure.resource in ("", BOOTSTRAP) or failure.object not in filters:
            continue
        may_match = not are_all or _may_match_elsewhere(filters[failure.object], failure.patch)
        if failure.reason.startswith(NOTHING_MATCHES) and may_match:
            continue
        if where not in told:
            told.add(where)
            yield filters[failure.object], _problem(failure)


def _may_match_elsewhere(config: Config, index: int) -> bool:
    """True if a patch matches by what files do not say: the ports that gateways listen on."""
    match = config.spec.config_patches[index].match
    if match is None or match.context not in (Context.ANY, Context.GATEWAY):
        return False
    listener, table = match.listener, match.route_configuration
    by_port = listener is not None and bool(listener.name or listener.port_number)
    return by_port or (table is not None and bool(table.name))


def _problem(failure: PatchFailure) -> Problem:
    is_nowhere = failure.reason.startswith(NOTHING_MATCHES)
    return Problem(
        failure.field, failure.reason if is_nowhere else f"{failure.resource}: {failure.reason}", failure.severity
    )


def _open(catalog: WorldCatalog, proxy: Proxy) -> None:
    """Open a proxy that requests the route tables that its listeners name, as an Envoy does."""
    asked: dict[str, frozenset[str]] = {}
    resources = catalog.open(proxy, requested=lambda kind: asked.get(kind, frozenset()))
    listeners, tables = resources.set(LISTENER), resources.set(ROUTE)
    if listeners is None or tables is None:
        return
    bodies = (listeners.get(name) for name in listeners.snapshot().entries)
    named = (wait for body in bodies if body is not None for wait in waits(Listener.FromString(body.body)))
    asked[ROUTE] = frozenset(wait.name for wait in named if wait.type_url == ROUTE)
    for name in asked[ROUTE]:
        tables.get(name)


def _gateways(world: World) -> Iterator[Proxy]:
    seen: set[tuple[str, frozenset[tuple[str, str]]]] = set()
    for config in world.configs_of.peek("Gateway"):
        who = (config.namespace, frozenset(config.spec.selector.items()))
        if who not in seen:
            seen.add(who)
            yield _proxy(NodeType.ROUTER, _ADDRESS, config.namespace, dict(config.spec.selector), world)


def _sidecars(world: World) -> Iterator[Proxy]:
    """A sidecar for each set of labels, with and without interception: their listeners differ."""
    seen: set[tuple[str, frozenset[tuple[str, str]]]] = set()
    for key, endpoints in world.endpoints.snapshot().items():
        for endpoint in endpoints or ():
            namespace = endpoint.namespace or key.namespace
            who = (namespace, frozenset(endpoint.labels.items()))
            if endpoint.labels and who not in seen:
                seen.add(who)
                address = endpoint.address if is_ip(endpoint.address) else _ADDRESS
                for mode in (Interception.REDIRECT, Interception.NONE):
                    yield _proxy(NodeType.SIDECAR, address, namespace, dict(endpoint.labels), world, mode)


def _proxy(
    kind: NodeType,
    address: str,
    namespace: str,
    labels: dict[str, str],
    world: World,
    mode: Interception = Interception.REDIRECT,
) -> Proxy:
    name = f"{kind.value}.{namespace}"
    domain = f"{namespace}.svc.{world.domain}"
    return Proxy(
        id=f"{kind.value}~{address}~{name}~{domain}",
        type=kind,
        ip_addresses=(address,),
        name=name,
        namespace=namespace,
        dns_domain=domain,
        labels=labels,
        metadata={"INTERCEPTION_MODE": mode.value},
        identity=str(Identity("cluster.local", namespace, "default")),
    )
