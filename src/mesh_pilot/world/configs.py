"""The indexes over configs: by key, by kind and namespace, VirtualServices by gateway, DestinationRules by host."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from mesh_pilot.api.istio.extensions.v1alpha1 import WasmPlugin
from mesh_pilot.api.istio.mesh.v1alpha1 import MeshConfig
from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.api.istio.telemetry.v1alpha1 import Telemetry
from mesh_pilot.model.config import Config, ConfigKey
from mesh_pilot.world.buckets import bucket_of
from mesh_pilot.world.credentials import CredentialUses
from mesh_pilot.world.names import GATEWAY_NAME, MESH_GATEWAY, full_gateway
from mesh_pilot.world.services import ServiceTable
from mesh_pilot.world.view import VirtualServiceHead

if TYPE_CHECKING:
    from mesh_pilot.world.world import World

WILD = 0
"""Stands for a bucket: where VirtualServices with a wildcard for a host are listed besides."""


class ConfigTable:
    """Takes configs one by one; ``flush`` writes the indexes that those made stale."""

    def __init__(self, world: World, services: ServiceTable) -> None:
        self._world = world
        self._services = services
        self._by_kind: dict[str, dict[ConfigKey, Config]] = defaultdict(dict)
        self._stale_kinds: set[tuple[str, str]] = set()
        self._heads: dict[ConfigKey, VirtualServiceHead] = {}
        self._heads_at: dict[str, list[VirtualServiceHead]] = defaultdict(list)
        self._stale_gateways: set[str] = set()
        self._mesh_heads: dict[int, dict[ConfigKey, VirtualServiceHead]] = defaultdict(dict)
        """Those for sidecars, by the buckets of their hosts."""
        self._stale_buckets: set[int] = set()
        self._rules_for: dict[str, list[Config]] = defaultdict(list)
        self._stale_hosts: set[str] = set()
        self._selecting: dict[ConfigKey, frozenset[str]] = {}
        self._selected: Counter[str] = Counter()
        self._credential_uses = CredentialUses(world.credentials_named)

    def put(self, key: ConfigKey, config: Config | None) -> bool:
        """Write or (with None) remove one config; returns whether anything changed."""
        before = self._world.config.peek(key)
        if before == config:
            return False
        self._world.config[key] = config
        held = self._by_kind[key.kind]
        if config is None:
            held.pop(key, None)
        else:
            held[key] = config
        match key.kind:
            case "VirtualService":
                self._put_head(key, _head(config, self._world) if config else None)
            case "DestinationRule":
                self._put_rule(before, config)
            case "ServiceEntry":
                self._services.put_entry(key, config)
            case "WorkloadEntry":
                self._services.put_workload(key, config)
            case _:
                self._stale_kinds.add((key.kind, key.namespace))
        if key.kind == "WorkloadGroup":
            self._services.put_group(key, config)
        self._count_selected(key, _labels_selected(config))
        self._credential_uses.put(key, config)
        return True

    def mesh_changed(self, before: MeshConfig, mesh: MeshConfig) -> None:
        """The default visibility may have changed: make heads again."""
        if before.default_virtual_service_export_to != mesh.default_virtual_service_export_to:
            for key, config in self._by_kind["VirtualService"].items():
                self._put_head(key, _head(config, self._world))

    def flush(self) -> None:
        world = self._world
        for kind, namespace in self._stale_kinds:
            configs = sorted(self._by_kind[kind].values(), key=_order)
            world.configs_of[kind] = tuple(configs)
            world.configs_in[(kind, namespace)] = tuple(c for c in configs if c.namespace == namespace)
        for gateway in self._stale_gateways:
            world.virtual_services[gateway] = tuple(self._heads_at[gateway])
        for bucket in self._stale_buckets:
            world.mesh_virtual_services[bucket] = tuple(sorted(self._mesh_heads[bucket].values(), key=_order))
            if not self._mesh_heads[bucket]:
                del self._mesh_heads[bucket]
        wildcards = False
        for host in self._stale_hosts:
            rules = tuple(self._rules_for[host])
            wildcards |= host.startswith("*") and bool(rules) != bool(world.destination_rules.peek(host))
            world.destination_rules[host] = rules
            if not rules:
                del self._rules_for[host]
        if wildcards:
            hosts = (h for h in self._rules_for if h.startswith("*"))
            world.wildcard_rule_hosts[()] = tuple(sorted(hosts, key=lambda h: (-len(h), h)))
        world.selected_labels[()] = frozenset(self._selected)
        self._stale_kinds.clear()
        self._stale_gateways.clear()
        self._stale_buckets.clear()
        self._stale_hosts.clear()

    def counts(self) -> dict[str, int]:
        return {kind: len(configs) for kind, configs in sorted(self._by_kind.items()) if configs}

    def count_virtual_services(self) -> int:
        return len(self._heads)

    def part_anew(self) -> None:
        """The World has another number of buckets."""
        self._stale_buckets |= self._mesh_heads.keys()
        self._mesh_heads.clear()
        for key, head in self._heads.items():
            for bucket in self._buckets(head):
                self._mesh_heads[bucket][key] = head
                self._stale_buckets.add(bucket)

    def _buckets(self, head: VirtualServiceHead) -> Iterable[int]:
        if MESH_GATEWAY not in head.gateways:
            return ()
        bits = self._world.bits.peek(())
        found = dict.fromkeys(bucket_of(host, bits) for host in head.hosts)
        if any(host.startswith("*") for host in head.hosts):
            found[WILD] = None
        return found

    def _put_head(self, key: ConfigKey, head: VirtualServiceHead | None) -> None:
        before = self._heads.get(key)
        if before == head:
            return
        if before is not None:
            for gateway in before.gateways:
                held = self._heads_at[gateway]
                del held[bisect_left(held, _order(before), key=_order)]
                self._stale_gateways.add(gateway)
            for bucket in self._buckets(before):
                del self._mesh_heads[bucket][key]
                self._stale_buckets.add(bucket)
            del self._heads[key]
        if head is not None:
            for gateway in head.gateways:
                insort(self._heads_at[gateway], head, key=_order)
                self._stale_gateways.add(gateway)
            for bucket in self._buckets(head):
                self._mesh_heads[bucket][key] = head
                self._stale_buckets.add(bucket)
            self._heads[key] = head

    def _put_rule(self, before: Config | None, rule: Config | None) -> None:
        if before is not None:
            host = self._rule_host(before)
            self._rules_for[host] = [r for r in self._rules_for[host] if r.key != before.key]
            self._stale_hosts.add(host)
        if rule is not None:
            host = self._rule_host(rule)
            insort(self._rules_for[host], rule, key=_order)
            self._stale_hosts.add(host)

    def _rule_host(self, rule: Config) -> str:
        spec: api.DestinationRule = rule.spec
        return self._world.full_host(spec.host, rule.namespace)

    def _count_selected(self, key: ConfigKey, labels: frozenset[str]) -> None:
        before = self._selecting.get(key, frozenset())
        for label in labels - before:
            self._selected[label] += 1
        for label in before - labels:
            self._selected[label] -= 1
            if not self._selected[label]:
                del self._selected[label]
        if labels:
            self._selecting[key] = labels
        else:
            self._selecting.pop(key, None)


def _order(item: Config | VirtualServiceHead) -> tuple[object, str, str]:
    return item.order


def _head(config: Config, world: World) -> VirtualServiceHead:
    spec: api.VirtualService = config.spec
    namespace = config.namespace
    export = spec.export_to or world.mesh.peek(()).default_virtual_service_export_to or ["*"]
    return VirtualServiceHead(
        key=config.key,
        created=config.created,
        hosts=tuple(world.full_host(h, namespace) for h in spec.hosts),
        gateways=frozenset(full_gateway(g, namespace, world.domain) for g in spec.gateways or [MESH_GATEWAY]),
        export_to=frozenset(namespace if e == "." else e for e in export),
    )


def _labels_selected(config: Config | None) -> frozenset[str]:
    """The label keys by which a config that shapes outbound traffic picks the proxies it is for."""
    if config is None:
        return frozenset()
    match config.spec:
        case api.VirtualService() as service:
            matches = [m for http in service.http for m in http.match]
            labels = {k for m in matches for k in m.source_labels}
            labels |= {k for tls in service.tls for m in tls.match for k in m.source_labels}
            labels |= {k for tcp in service.tcp for m in tcp.match for k in m.source_labels}
            return frozenset(labels)
        case api.DestinationRule() as rule:
            labels = set(rule.workload_selector.match_labels) if rule.workload_selector else set()
            policies = [rule.traffic_policy, *(s.traffic_policy for s in rule.subsets)]
            labels |= {k for policy in policies if policy for k in _labels_compared(policy)}
            return frozenset(labels)
        case Telemetry() | WasmPlugin() as spec:
            labels = set(spec.selector.match_labels) if spec.selector else set()
            if spec.target_ref is not None or spec.target_refs:
                labels.add(GATEWAY_NAME)
            return frozenset(labels)
        case _:
            return frozenset()


def _labels_compared(policy: api.TrafficPolicy) -> Iterator[str]:
    """The label keys that ``failoverPriority`` compares between clients and endpoints."""
    for balancer in (policy.load_balancer, *(p.load_balancer for p in policy.port_level_settings)):
        for setting in (balancer.locality_lb_setting, balancer.zone_aware_lb_setting) if balancer else ():
            yield from (label.partition("=")[0] for label in (setting.failover_priority if setting else ()))
