"""Writes the indexes of configs: by key, by kind and namespace, by gateway or host."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from mesh_pilot.api.istio.extensions.v1alpha1 import TrafficExtension, WasmPlugin
from mesh_pilot.api.istio.mesh.v1alpha1 import MeshConfig
from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.api.istio.telemetry.v1alpha1 import Telemetry
from mesh_pilot.istio.gateway_api.values import ROUTE_SEMANTICS_GATEWAY, route_semantics
from mesh_pilot.model.config import Config, ConfigKey
from mesh_pilot.world.copying import Copied
from mesh_pilot.world.indexes import Indexes, VirtualServiceMeta
from mesh_pilot.world.names import GATEWAY_NAME, MESH_GATEWAY, export_namespaces, full_gateway
from mesh_pilot.world.reverse_index import ReverseIndex
from mesh_pilot.world.services import ServiceTable
from mesh_pilot.world.shards import ASKING, WILDCARD_HOSTS, shard_of

UNLISTED_KINDS = frozenset(
    {"HTTPRoute", "GRPCRoute", "TLSRoute", "TCPRoute", "UDPRoute", "Ingress", "Namespace"}
    | {"VirtualService", "DestinationRule", "ServiceEntry", "WorkloadEntry"}
)
"""Kinds of which there may be many, and which no part reads as a list."""


class ConfigTable(Copied):
    """Takes configs one by one; ``flush`` writes the indexes that those made stale."""

    def __init__(self, indexes: Indexes, services: ServiceTable) -> None:
        self._indexes = indexes
        self._services = services
        self._by_kind: dict[str, dict[ConfigKey, Config]] = defaultdict(dict)
        self._stale_kinds: set[tuple[str, str]] = set()
        self._metas: dict[ConfigKey, VirtualServiceMeta] = {}
        self._metas_at: dict[str, list[VirtualServiceMeta]] = defaultdict(list)
        self._keeping_sessions: Counter[str] = Counter()
        """The number of VirtualServices at a gateway that keep sessions."""
        self._stale_gateways: set[str] = set()
        self._mesh_metas: dict[int, dict[ConfigKey, VirtualServiceMeta]] = defaultdict(dict)
        """VirtualServices for sidecars, by the shards of their hosts."""
        self._stale_shards: set[int] = set()
        self._rules_for: dict[str, list[Config]] = defaultdict(list)
        self._stale_hosts: set[str] = set()
        self._zone_aware: set[ConfigKey] = set()
        self._selecting: ReverseIndex[str, ConfigKey, None] = ReverseIndex()
        """The configs for outbound traffic by the label by which they select proxies."""
        self._partial: set[ConfigKey] = set()
        """Configs that an internal error left between two states."""

    def put(self, key: ConfigKey, config: Config | None) -> bool:
        """Add, replace or (None) remove a config. True if anything changed."""
        before = self._indexes.config.peek(key)
        if before == config and key not in self._partial:
            return False
        self._partial.add(key)
        self._indexes.config[key] = config
        configs = self._by_kind[key.kind]
        if config is None:
            configs.pop(key, None)
        else:
            configs[key] = config
        match key.kind:
            case "VirtualService":
                self._put_meta(key, meta_of(config, self._indexes) if config else None)
            case "DestinationRule":
                self._put_rule(before, config)
            case "ServiceEntry":
                self._services.entries.put(key, config)
            case "WorkloadEntry":
                self._services.workloads.put(key, config)
            case "Namespace":
                self._services.namespace_changed(key.name)
            case kind if kind not in UNLISTED_KINDS:
                self._stale_kinds.add((kind, key.namespace))
        if key.kind == "WorkloadGroup":
            self._services.workloads.put_group(key, config)
        labels = _SELECTED_LABELS.get(key.kind, lambda spec: ())
        self._selecting.put(key, dict.fromkeys(labels(config.spec)) if config is not None else {})
        self._partial.discard(key)
        return True

    def mesh_changed(self, before: MeshConfig, mesh: MeshConfig) -> None:
        """Recompute the visibility of VirtualServices if its default changed."""
        if before.default_virtual_service_export_to != mesh.default_virtual_service_export_to:
            for key, config in self._by_kind["VirtualService"].items():
                self._put_meta(key, meta_of(config, self._indexes))

    def flush(self) -> None:
        indexes = self._indexes
        for kind, namespace in self._stale_kinds:
            configs = sorted(self._by_kind[kind].values(), key=_order)
            indexes.configs_of[kind] = tuple(configs)
            indexes.configs_in[(kind, namespace)] = tuple(c for c in configs if c.namespace == namespace)
        for gateway in self._stale_gateways:
            indexes.virtual_services[gateway] = tuple(self._metas_at[gateway])
            indexes.keeps_sessions[gateway] = self._keeping_sessions[gateway] > 0
        for shard in self._stale_shards:
            indexes.mesh_virtual_services[shard] = tuple(sorted(self._mesh_metas[shard].values(), key=_order))
            if not self._mesh_metas[shard]:
                del self._mesh_metas[shard]
        wildcards = False
        for host in self._stale_hosts:
            rules = tuple(self._rules_for[host])
            wildcards |= host.startswith("*") and bool(rules) != bool(indexes.destination_rules.peek(host))
            indexes.destination_rules[host] = rules
            if not rules:
                del self._rules_for[host]
        if wildcards:
            hosts = (h for h in self._rules_for if h.startswith("*"))
            indexes.wildcard_rule_hosts[()] = tuple(sorted(hosts, key=lambda h: (-len(h), h)))
        indexes.zone_aware_rules[()] = tuple(sorted(self._zone_aware))
        indexes.selected_labels[()] = frozenset(self._selecting)
        self._stale_kinds.clear()
        self._stale_gateways.clear()
        self._stale_shards.clear()
        self._stale_hosts.clear()

    def counts(self) -> dict[str, int]:
        return {kind: len(configs) for kind, configs in sorted(self._by_kind.items()) if configs}

    def virtual_services(self, gateway: str) -> Sequence[VirtualServiceMeta]:
        """The VirtualServices at a gateway, or (``mesh``) for sidecars, visible or not."""
        return self._metas_at.get(gateway, ())

    def gateways(self) -> Iterable[str]:
        """The gateways with VirtualServices, and ``mesh``."""
        return [gateway for gateway, metas in self._metas_at.items() if metas]

    def count_virtual_services(self) -> int:
        return len(self._metas)

    def reshard(self) -> None:
        """Distribute VirtualServices over a new number of shards."""
        self._stale_shards |= self._mesh_metas.keys()
        self._mesh_metas.clear()
        for key, meta in self._metas.items():
            for shard in self._shards(meta):
                self._mesh_metas[shard][key] = meta
                self._stale_shards.add(shard)

    def _shards(self, meta: VirtualServiceMeta) -> Iterable[int]:
        if MESH_GATEWAY not in meta.gateways:
            return ()
        bits = self._indexes.shard_bits.peek(())
        found = dict.fromkeys(shard_of(host, bits) for host in meta.hosts)
        if any(host.startswith("*") for host in meta.hosts):
            found[WILDCARD_HOSTS] = None
        if meta.asks:
            found[ASKING] = None
        return found

    def _put_meta(self, key: ConfigKey, meta: VirtualServiceMeta | None) -> None:
        before = self._metas.get(key)
        if before == meta:
            return
        if before is not None:
            for gateway in before.gateways:
                metas = self._metas_at[gateway]
                del metas[bisect_left(metas, _order(before), key=_order)]
                self._keeping_sessions[gateway] -= before.has_sessions
                self._stale_gateways.add(gateway)
            for shard in self._shards(before):
                del self._mesh_metas[shard][key]
                self._stale_shards.add(shard)
            del self._metas[key]
        if meta is not None:
            for gateway in meta.gateways:
                insort(self._metas_at[gateway], meta, key=_order)
                self._keeping_sessions[gateway] += meta.has_sessions
                self._stale_gateways.add(gateway)
            for shard in self._shards(meta):
                self._mesh_metas[shard][key] = meta
                self._stale_shards.add(shard)
            self._metas[key] = meta

    def _put_rule(self, before: Config | None, rule: Config | None) -> None:
        if before is not None:
            host = self._rule_host(before)
            self._rules_for[host] = [r for r in self._rules_for[host] if r.key != before.key]
            self._stale_hosts.add(host)
            self._zone_aware.discard(before.key)
        if rule is not None:
            if _is_zone_aware(rule.spec):
                self._zone_aware.add(rule.key)
            host = self._rule_host(rule)
            insort(self._rules_for[host], rule, key=_order)
            self._stale_hosts.add(host)

    def _rule_host(self, rule: Config) -> str:
        spec: api.DestinationRule = rule.spec
        return self._indexes.full_host(spec.host, rule.namespace)


def _order(item: Config | VirtualServiceMeta) -> tuple[object, str, str]:
    return item.order


def meta_of(config: Config, indexes: Indexes) -> VirtualServiceMeta:
    """The fields of a VirtualService that decide where it applies."""
    spec: api.VirtualService = config.spec
    namespace = config.namespace
    default = indexes.mesh.peek(()).default_virtual_service_export_to
    is_route = route_semantics(config) == ROUTE_SEMANTICS_GATEWAY
    return VirtualServiceMeta(
        key=config.key,
        created=config.created,
        hosts=tuple(indexes.full_host(h, namespace) for h in spec.hosts),
        gateways=frozenset(full_gateway(g, namespace, indexes.domain) for g in spec.gateways or [MESH_GATEWAY]),
        export_to=export_namespaces(spec.export_to, default, namespace),
        is_route=is_route,
        is_made=bool(config.made_from) and not is_route,
        has_sessions=is_route and any(rule.session is not None for rule in spec.http),
        asks=any(rule.external_auth for rule in spec.http),
    )


def _of_matches(spec: api.VirtualService) -> Iterator[str]:
    rules: tuple[api.HttpRoute | api.TlsRoute | api.TcpRoute, ...] = (*spec.http, *spec.tls, *spec.tcp)
    for rule in rules:
        for match in rule.match:
            yield from match.source_labels


def _of_rule(spec: api.DestinationRule) -> Iterator[str]:
    if spec.workload_selector is not None:
        yield from spec.workload_selector.match_labels
    for balancer in _load_balancers(spec):  # `failoverPriority` compares labels of clients and endpoints
        for setting in (balancer.locality_lb_setting, balancer.zone_aware_lb_setting):
            yield from (label.partition("=")[0] for label in (setting.failover_priority if setting else ()))


def _of_selector(spec: Telemetry | WasmPlugin | TrafficExtension) -> Iterator[str]:
    if spec.selector is not None:
        yield from spec.selector.match_labels
    if spec.target_refs or getattr(spec, "target_ref", None) is not None:
        yield GATEWAY_NAME


_SELECTED_LABELS: Mapping[str, Callable[[Any], Iterable[str]]] = {
    "VirtualService": _of_matches,
    "DestinationRule": _of_rule,
    "Telemetry": _of_selector,
    "WasmPlugin": _of_selector,
    "TrafficExtension": _of_selector,
}
"""The label keys by which a config selects proxies, by kind, for kinds that apply to outbound traffic."""


def _is_zone_aware(rule: api.DestinationRule) -> bool:
    settings = (balancer.zone_aware_lb_setting for balancer in _load_balancers(rule))
    return any(setting is not None and setting.enabled is not False for setting in settings)


def _load_balancers(rule: api.DestinationRule) -> Iterator[api.LoadBalancerSettings]:
    """The load balancers of a rule, its subsets and their ports."""
    for policy in (rule.traffic_policy, *(subset.traffic_policy for subset in rule.subsets)):
        if policy is not None:
            for balancer in (policy.load_balancer, *(port.load_balancer for port in policy.port_level_settings)):
                if balancer is not None:
                    yield balancer
