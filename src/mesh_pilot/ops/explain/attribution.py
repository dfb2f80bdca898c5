"""Which objects decide the steps of a request: the meaning (``mesh``) is asked again, now that somebody wants to know.

Resources do not carry the fields that they were made of: a push to ten thousand proxies would pay, in memory and time,
for a question that is asked of one. A resource names its objects only; the field is found by planning the same virtual
host, listener or rule again, through the memo table, and by finding its place in the plan (the n-th route is the n-th
of the plan). Where an EnvoyFilter has changed the routes, or an object has changed since, the numbers do not agree:
then the objects are told without a field, as a wrong line would be worse than none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mesh_pilot.envoy.catalog.diagnostics import listener_conflicts
from mesh_pilot.explain.inspection.why.answer import Step, WhyAnswer
from mesh_pilot.explain.inspection.why.clusters import cluster_parts
from mesh_pilot.explain.inspection.why.request import is_address
from mesh_pilot.mesh.clusters.destination_rules import destination_rule_ref
from mesh_pilot.mesh.listeners.datagrams import datagram_routes
from mesh_pilot.mesh.listeners.gateway_servers import GatewayServer, ServerKind, merged_servers, target_ports
from mesh_pilot.mesh.names.resources import listener_name
from mesh_pilot.mesh.proxy.keys import ProxyKeys
from mesh_pilot.mesh.reach.sidecar_scope import egress_listeners, visible_virtual_services
from mesh_pilot.mesh.reach.visibility import scope_service
from mesh_pilot.mesh.routing.l4 import MatchContext
from mesh_pilot.mesh.routing.origins import FieldOfObject, route_origins
from mesh_pilot.mesh.selection.workloads import oldest_general
from mesh_pilot.mesh.virtual_hosts.gateway_tables import planned_gateway_hosts
from mesh_pilot.mesh.virtual_hosts.host_candidates import SidecarTable, table_shard_of
from mesh_pilot.mesh.virtual_hosts.planned import PlannedHost, ServiceRoutes
from mesh_pilot.mesh.virtual_hosts.sidecar_tables import (
    TableName,
    egress_for,
    parse_table,
    planned_hosts,
    shard_hosts,
    table_shards,
)
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.proxy import NodeType
from mesh_pilot.model.resource import plain_table_name, table_of
from mesh_pilot.model.service import UNSPECIFIED, Service
from mesh_pilot.ops.explain.fields import Decider, decider, deciders, service_decider
from mesh_pilot.ops.explain.l4_fields import l4_field
from mesh_pilot.ops.explain.owners import behind_text, routes_behind
from mesh_pilot.ops.explain.precedence import virtual_services_for
from mesh_pilot.world import View
from mesh_pilot.world.names import MESH_GATEWAY
from mesh_pilot.world.shards import CROSS_SHARD

CATCH_ALL = ("allow_any", "allow_any_dynamic_dns", "block_all")


class Attribution:
    """The objects that decide for one proxy. To be used on Trio's thread: it reads the World."""

    def __init__(self, view: View, keys: ProxyKeys) -> None:
        self._view = view
        self._keys = keys
        self._scope = keys.scope
        self._planned: dict[tuple[str, str], PlannedHost | None] = {}

    def steps(self, answer: WhyAnswer) -> Iterator[tuple[Step, list[Decider]]]:
        """Each step with the objects that decide it, the most important first."""
        for step in (*answer.steps, *answer.nearly):
            found = list(self._of(step, answer))
            if found:
                yield step, found

    def conflicts(self, answer: WhyAnswer) -> Iterator[str]:
        """Why a connection that no route looks at does not reach the service that the client means."""
        request, steps = answer.request, {step.step: step for step in answer.steps}
        if request.inbound or self._scope.type is NodeType.ROUTER or "listener" not in steps or "route" in steps:
            return
        details = steps["listener"].details
        listener = listener_name(details["address"], details["port"])
        host = service_host(self._view, self._keys, request.host)
        for conflict in listener_conflicts(self._view, self._keys):
            if (conflict.listener, conflict.dropped) == (listener, host):
                kept = f", where {conflict.kept} came first" if conflict.kept else ""
                yield f"{host} has a conflict at the listener {listener}{kept}: {conflict.reason}"

    def _of(self, step: Step, answer: WhyAnswer) -> Iterator[Decider]:
        details = step.details
        match step.step:
            case "listener":
                yield from self._listener(step, answer)
            case "filter chain":
                yield from self._chain(details, answer)
            case "route table":
                yield from self._servers(self._servers_of_table(str(details["table"])))
            case "virtual host":
                yield from self._virtual_host(str(details["table"]), step.name)
            case "route":
                yield from self._route(details)
            case "cluster" | "mirror":
                yield from self._cluster(step.name)
            case "endpoints":
                yield from self._endpoints(step.name)
            case "policy":
                yield from self._policies(details["policies"])

    # -- listeners

    def _listener(self, step: Step, answer: WhyAnswer) -> Iterator[Decider]:
        # A router's listener is of servers, a sidecar's of its egress listener, if it has any, and of the service.
        if self._scope.type is NodeType.ROUTER:
            port, is_udp = int(step.details["port"]), answer.request.scheme == "udp"
            found = [s for s in self._all_servers() if s.bound == port and (s.kind is ServerKind.UDP) == is_udp]
            yield from self._servers(found)
            for server in found if is_udp else ():
                for route in datagram_routes(self._view, self._scope, server.gateway, server.port)[:1]:
                    yield decider(self._view, FieldOfObject(route.virtual_service, "spec.tcp[0]"))
            return
        request = answer.request
        if request.inbound:
            return
        egress = egress_for(egress_listeners(self._view, self._scope), TableName(request.port))
        if egress is not None and egress.index >= 0 and self._scope.sidecar is not None:
            field = FieldOfObject(self._scope.sidecar, f"spec.egress[{egress.index}]")
            yield decider(self._view, field, "the egress listener for this port")
        service = scope_service(self._view, self._scope, service_host(self._view, self._keys, request.host))
        if service is not None:
            behind = behind_text(self._view, service, self._scope.namespace)
            numbers = [port.number for port in service.ports]
            declared = f"declares port {request.port}"
            if request.port not in numbers:
                declared = f"has {', '.join(map(str, numbers)) or 'no ports'}, not {request.port}"
            yield service_decider(self._view, service, f"{declared}{behind}")

    def _chain(self, details: dict[str, Any], answer: WhyAnswer) -> Iterator[Decider]:
        """The rule for connections; none where routes look at requests."""
        # A chain does not say which rule made it. Where routes look at requests no rule did, and an inbound chain is
        # the proxy's own; else the rule is the one whose match the chain has, and whose hosts it leads to.
        hosts = [
            parts[0] for c in answer.result.get("clusters", ()) if (parts := cluster_parts(c["name"])) and parts[0]
        ]
        request = answer.request
        if request.inbound or not hosts or any(step.step == "route" for step in answer.steps):
            return
        view, scope = self._view, self._scope
        if scope.type is NodeType.ROUTER:
            port = next(int(step.details["port"]) for step in answer.steps if step.step == "listener")
            served = [server for server in self._all_servers() if server.bound == port]
            names = {server.gateway_name for server in served}
            heads = [h for name in names for h in visible_virtual_services(view, scope.namespace, name)]
            ports = {server.port for server in served}
        else:
            names, ports = {MESH_GATEWAY}, {request.port}
            host = service_host(view, self._keys, request.host)
            heads = list(virtual_services_for(view, host, scope.namespace))
        configs = [config for config in (view.config(head.key) for head in heads) if config is not None]
        for port in ports:
            conditions = MatchContext(frozenset(names), port, scope.namespace, scope.labels)
            field = l4_field(view, configs, conditions, details, hosts)
            if field is not None:
                yield decider(view, field)
                return

    def _all_servers(self) -> list[GatewayServer]:
        merged = merged_servers(self._view, self._scope, target_ports(self._view, self._keys.workload))
        return [server for listener in merged.listeners for server in listener.servers]

    def _servers_of_table(self, table: str) -> list[GatewayServer]:
        if self._scope.type is not NodeType.ROUTER:
            return []
        return [server for server in self._all_servers() if server.route_name == plain_table_name(table)]

    def _servers(self, servers: list[GatewayServer]) -> Iterator[Decider]:
        for server in servers:
            yield decider(self._view, FieldOfObject(server.gateway, f"spec.servers[{server.index}]"))

    # -- routes

    def _planned_host(self, table: str, name: str) -> PlannedHost | None:
        if (table, name) not in self._planned:
            plain = name.removeprefix(f"{table}/") if table_of(name) == table else name
            self._planned[(table, name)] = next((h for h in self._hosts(table, plain) if h.name == plain), None)
        return self._planned[(table, name)]

    def _hosts(self, table: str, name: str) -> Iterator[PlannedHost]:
        """The virtual hosts of a table among which one is; in a sidecar's table only those of its shard."""
        view, scope = self._view, self._scope
        if scope.type is NodeType.ROUTER:
            tables = merged_servers(view, scope, target_ports(view, self._keys.workload)).tables
            servers = tables.get(plain_table_name(table), ())
            yield from planned_gateway_hosts(view, scope, servers) if servers else ()
            return
        parsed = parse_table(plain_table_name(table))
        if parsed is None:
            return
        if parsed.sniffed:
            yield from planned_hosts(view, scope, parsed)
            return
        egress = egress_for(egress_listeners(view, scope), parsed)
        if egress is None:
            return
        host = name.rpartition(":")[0].removeprefix("[").removesuffix("]")
        own = table_shard_of(view, SidecarTable(scope, egress, parsed.port), host)
        for shard in table_shards(view, scope, parsed):
            if shard.shard in (own, CROSS_SHARD):
                yield from shard_hosts(view, shard)

    def _virtual_host(self, table: str, name: str) -> Iterator[Decider]:
        planned = self._planned_host(table, name)
        if planned is not None:
            yield from deciders(self._view, planned.configs)
            if self._scope.type is not NodeType.ROUTER:
                host = planned.name.rpartition(":")[0].removeprefix("[").removesuffix("]")
                yield from routes_behind(self._view, host, self._scope.namespace, planned.configs)
        elif name.rpartition("/")[2] in CATCH_ALL:
            yield from self._unknown_hosts()

    def _unknown_hosts(self) -> Iterator[Decider]:
        sidecar = self._view.config(self._scope.sidecar) if self._scope.sidecar is not None else None
        if sidecar is not None and sidecar.spec.outbound_traffic_policy is not None:
            yield decider(self._view, FieldOfObject(sidecar.key, "spec.outboundTrafficPolicy"))
        else:
            yield Decider("MeshConfig", "outboundTrafficPolicy", text="undeclared hosts")

    def _route(self, details: Mapping[str, Any]) -> Iterator[Decider]:
        table, name = str(details["table"]), str(details["virtual_host"])
        planned = self._planned_host(table, name)
        if planned is None:
            if name.rpartition("/")[2] in CATCH_ALL:
                yield from self._unknown_hosts()
            return
        origins = self.origins(planned)
        if len(origins) == details["routes"]:
            yield from origins[details["index"]]
            return
        # EnvoyFilters have changed its routes, or it was sent before an object changed: an index would mislead.
        yield from deciders(self._view, planned.configs, text="the routes are not those of the objects alone")

    def origins(self, planned: PlannedHost) -> list[list[Decider]]:
        """The deciders of each route of a virtual host, in the order of ``envoy.routes.virtual_host.encode_host``."""
        found: list[tuple[bool, list[Decider]]] = []
        for source in planned.routes:
            if isinstance(source, ServiceRoutes):
                service = scope_service(self._view, self._scope, source.host)
                text = "no VirtualService applies to it"
                found.append((True, [service_decider(self._view, service, text)] if service is not None else []))
                continue
            key = source.virtual_service
            for origin in route_origins(self._view, key, source.client, source.port):
                shown = [decider(self._view, field) for field in origin.fields]
                found.append((origin.takes_all, shown))
        if len(planned.routes) > 1:
            found.sort(key=lambda item: item[0])
        redirecting = [key for key in planned.configs if key.kind == "Gateway"]
        https = [[*deciders(self._view, redirecting, text="httpsRedirect")]] * 2 if planned.https_only else []
        asked = (f"a certificate for {each.host} is ordered" for each in planned.answers)
        acme = [[Decider("MeshConfig", "acme", text=text)] for text in asked]
        return [*acme, *https, *(shown for _, shown in found)]

    # -- clusters

    def _cluster(self, name: str) -> Iterator[Decider]:
        parts = cluster_parts(name)
        if parts is None or not parts[0]:
            return
        host, port, subset = parts[0], int(parts[1]), parts[2]
        service = scope_service(self._view, self._scope, host)
        if service is None:
            return
        ref = destination_rule_ref(self._view, self._scope.namespace, self._scope.labels, service.key)
        has_subset = False
        for key in ref:
            for field, text in rule_fields(self._view, key, port, "" if has_subset else subset):
                has_subset |= ".subsets[" in field.path
                yield decider(self._view, field, text)
        if subset and not has_subset:
            yield Decider(f"subset {subset}", text=f"no DestinationRule that applies to {host} declares it")
        behind = behind_text(self._view, service, self._scope.namespace)
        yield service_decider(self._view, service, f"the service{behind}")

    def _endpoints(self, name: str) -> Iterator[Decider]:
        parts = cluster_parts(name)
        service = scope_service(self._view, self._scope, parts[0]) if parts is not None and parts[0] else None
        if service is None or service.external:
            return
        for namespace in dict.fromkeys((service.namespace, self._view.root_namespace)):
            config = oldest_general(self._view, "PeerAuthentication", namespace)
            if config is not None:
                yield decider(self._view, FieldOfObject(config.key, "spec.mtls"), "the mTLS that clients expect")
                return

    def _policies(self, names: list[str]) -> Iterator[Decider]:
        for name in names:
            key, rule = policy_of(name)
            if key is not None:
                yield decider(self._view, FieldOfObject(key, f"spec.rules[{rule}]"))


def rule_fields(view: View, key: ConfigKey, port: int, subset: str) -> Iterator[tuple[FieldOfObject, str]]:
    """The fields of a DestinationRule that count for a port and subset."""
    config = view.config(key)
    if config is None:
        return
    spec = config.spec
    for index, each in enumerate(spec.subsets):
        if subset and each.name == subset:
            yield FieldOfObject(key, f"spec.subsets[{index}]"), f"subset {subset}"
            if each.traffic_policy is not None:
                yield FieldOfObject(key, f"spec.subsets[{index}].trafficPolicy"), "the subset's traffic policy"
    policy = spec.traffic_policy
    if policy is None:
        return
    for index, settings in enumerate(policy.port_level_settings):
        if settings.port is not None and settings.port.number == port:
            yield FieldOfObject(key, f"spec.trafficPolicy.portLevelSettings[{index}]"), f"settings for port {port}"
            return
    yield FieldOfObject(key, "spec.trafficPolicy"), "traffic policy"


def policy_of(name: str) -> tuple[ConfigKey | None, int]:
    """The AuthorizationPolicy and rule of an RBAC policy's name, ``ns[shop]-policy[p]-rule[0]``."""
    parts = name.split("[")
    if len(parts) != 4 or not name.startswith("ns["):
        return None, 0
    namespace, policy, rule = (part.partition("]")[0] for part in parts[1:])
    return ConfigKey("AuthorizationPolicy", namespace, policy), int(rule) if rule.isdigit() else 0


def service_host(view: View, keys: ProxyKeys, host: str) -> str:
    """The full name of the service that a client means by a name: itself, or one of its short forms."""
    scope = keys.scope
    domain = scope.dns_domain
    candidates = [host, view.full_host(host, scope.namespace), f"{host}.{domain}"]
    rest = domain
    while "." in rest:
        rest = rest.partition(".")[2]
        candidates.append(f"{host}.{rest}")
    labels = host.split(".")
    candidates += ["*." + ".".join(labels[i:]) for i in range(1, len(labels))]
    found = (name for name in dict.fromkeys(candidates) if scope_service(view, scope, name) is not None)
    return next(found, host)


def client_address(view: View, keys: ProxyKeys, host: str) -> str:
    """The address that a client finds for a host; empty for one that any address may stand for."""
    service: Service | None = scope_service(view, keys.scope, service_host(view, keys, host))
    if service is None:
        return ""
    if service.headless:
        return next((e.address for e in view.endpoints(service.key) if is_address(e.address)), "")
    own = [address for address in keys.scope.addresses(service) if address != UNSPECIFIED and is_address(address)]
    return next(iter(own), "") or next(iter(keys.scope.auto_addresses(service)), "")
