"""Turns the Gateway API's objects into configs of Istio's kinds, and knows the status of each.

Objects are converted when a change touches them: each conversion notes what it asked for (``NotingReader``), and
another answer makes it stale. ``flush`` converts what is stale, the lower ranks first: Gateways, routes, what several
routes or policies have in common, statuses. The results are put into the table of configs as if users had written them,
but never in place of a config that users wrote. Without any object of the Gateway API nothing is noted or computed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable
from contextlib import AbstractContextManager
from enum import IntEnum
from typing import NamedTuple, TypeVar

from mesh_pilot.failures import OBJECT
from mesh_pilot.gateway_api.classes import class_status
from mesh_pilot.gateway_api.converters import CONVERTERS, merged_config
from mesh_pilot.gateway_api.gateway_status import gateway_status, set_status
from mesh_pilot.gateway_api.gateways import GatewayResult, convert_gateway
from mesh_pilot.gateway_api.grants import Permission, permissions
from mesh_pilot.gateway_api.network_gateways import network_gateways
from mesh_pilot.gateway_api.policies import (
    PolicyPart,
    PolicyResult,
    RuleTarget,
    convert_policy,
    destination_rule,
    targets_of,
)
from mesh_pilot.gateway_api.values import (
    KUBERNETES_GATEWAY,
    BackendObject,
    Json,
    ParentListener,
    RouteConfig,
    RouteResult,
)
from mesh_pilot.model.config import Config, ConfigKey
from mesh_pilot.model.service import NetworkGateway
from mesh_pilot.world.copying import copy_containers
from mesh_pilot.world.gateway_reads import Answer, NotingReader
from mesh_pilot.world.indexes import Indexes

POLICIES = frozenset(("BackendTLSPolicy", "XBackendTrafficPolicy"))
KINDS = (
    CONVERTERS.keys() | POLICIES | {KUBERNETES_GATEWAY, "GatewayClass", "ListenerSet", "ReferenceGrant", "Namespace"}
)
"""The kinds, in keys, that this table keeps."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V", bound=Hashable)
T = TypeVar("T")

Isolated = Callable[[Hashable, str, str], AbstractContextManager[None]]


class Rank(IntEnum):
    """The order of conversions: each makes only those after it stale."""

    GATEWAY = 0
    """A Gateway with its ListenerSets."""
    ROUTE = 1
    MERGED = 2
    """VirtualServices with one merge key."""
    POLICY = 3
    """A policy of backends."""
    RULE = 4
    """The DestinationRule of a host."""
    STATUS = 5
    """The status of an object."""


class Conversion(NamedTuple):
    """A conversion. Of those that are stale, the lowest is done first."""

    rank: Rank
    subject: Hashable


class GatewayApiTable:
    """Takes the objects; ``flush`` writes the configs and statuses that the last changes touched."""

    def __init__(self, indexes: Indexes, isolated: Isolated, put: Callable[[ConfigKey, Config | None], None]) -> None:
        """``put`` adds, replaces or removes a config of Istio's kinds."""
        self._indexes = indexes
        self._isolated = isolated
        self._put = put
        self.objects: dict[str, dict[ConfigKey, Config]] = defaultdict(dict)
        """By kind."""
        self._readers: dict[Answer, dict[Conversion, None]] = defaultdict(dict)
        self._reads: dict[Conversion, frozenset[Answer]] = {}
        self._stale: dict[Rank, dict[Conversion, None]] = {rank: {} for rank in Rank}
        """By rank."""
        self.sets_of: dict[ConfigKey, dict[ConfigKey, None]] = defaultdict(dict)
        self.permissions: Counter[Permission] = Counter()
        self.routes_in: Counter[str] = Counter()
        self._gateways: dict[ConfigKey, GatewayResult] = {}
        self._gateway_of: dict[ConfigKey, ConfigKey] = {}
        """By Gateway and ListenerSet with a result, the Gateway."""
        self._between_networks: dict[ConfigKey, tuple[NetworkGateway, ...]] = {}
        """By Gateway, the gateways of a network that it is."""
        self._routes: dict[ConfigKey, RouteResult] = {}
        self._members: dict[str, dict[ConfigKey, tuple[Config, ...]]] = defaultdict(dict)
        """By merge key, the VirtualServices of each route."""
        self._attached: dict[ConfigKey, dict[ConfigKey, Counter[str]]] = defaultdict(dict)
        """By Gateway or ListenerSet and route, how often the route is attached to each listener."""
        self.policies_of: dict[BackendObject, dict[ConfigKey, None]] = defaultdict(dict)
        self.gateways_of: dict[BackendObject, Counter[ConfigKey]] = defaultdict(Counter)
        self._parts: dict[ConfigKey, tuple[PolicyPart, ...]] = {}
        """By policy."""
        self._rules: dict[RuleTarget, dict[ConfigKey, tuple[PolicyPart, ...]]] = defaultdict(dict)
        """By host, the parts of each policy."""
        self._granted: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        """By credential, the namespaces whose Gateways may have it."""
        self._derived: dict[ConfigKey, Config] = {}
        """The configs that were made."""
        self._made: dict[Conversion, dict[ConfigKey, None]] = defaultdict(dict)
        self.statuses: dict[ConfigKey, Json] = {}
        """By object; without those that are for another controller."""
        self._changed_statuses: set[ConfigKey] = set()
        self.conversions = 0
        """Conversions since the start."""

    def copy_to(self, other: GatewayApiTable) -> None:
        """Give another table, of a copy of the indexes, the state of this one."""
        copy_containers(self, other)

    # -- input

    def put_object(self, key: ConfigKey, config: Config | None) -> None:
        """Add, replace or (None) remove an object of ``KINDS``."""
        objects = self.objects[key.kind]
        before = objects.pop(key, None)
        if config is not None:
            objects[key] = config
        if key.kind == KUBERNETES_GATEWAY:
            self._make_stale(Conversion(Rank.GATEWAY, key))
        elif key.kind in CONVERTERS:
            self._make_stale(Conversion(Rank.ROUTE, key))
            self._count_route(key.namespace, (config is not None) - (before is not None))
        elif key.kind == "ListenerSet":
            self._put_set(key, before, config)
        elif key.kind == "ReferenceGrant":
            self._put_grant(before, config)
        elif key.kind in POLICIES:
            self._make_stale(Conversion(Rank.POLICY, key))
            self._put_targets(key, before, config)
        elif key.kind == "GatewayClass":
            self._make_stale(Conversion(Rank.STATUS, key))
        elif key.kind == "Namespace":
            self.touch(("namespaces",))

    def _put_targets(self, key: ConfigKey, before: Config | None, config: Config | None) -> None:
        """Note which backends a policy is about: policies with the same target may win, or not any more."""
        for target in targets_of(before) if before is not None else ():
            _discard(self.policies_of, target, key)
            self.touch(("policies", target))
        for target in targets_of(config) if config is not None else ():
            self.policies_of[target][key] = None
            self.touch(("policies", target))

    def _count_route(self, namespace: str, more: int) -> None:
        if not more:
            return
        if not self.routes_in[namespace]:
            self.touch(("namespaces",))
        self.routes_in[namespace] += more
        if not self.routes_in[namespace]:
            del self.routes_in[namespace]
            self.touch(("namespaces",))

    def _put_set(self, key: ConfigKey, before: Config | None, config: Config | None) -> None:
        for each in (before, config):
            if each is not None and (parent := _parent(each)) is not None:
                if each is config:
                    self.sets_of[parent][key] = None
                else:
                    _discard(self.sets_of, parent, key)
                self.touch(("sets", parent))
        self._make_stale(Conversion(Rank.STATUS, key))

    def _put_grant(self, before: Config | None, config: Config | None) -> None:
        old = Counter(permissions(before)) if before is not None else Counter[Permission]()
        new = Counter(permissions(config)) if config is not None else Counter[Permission]()
        for permission in (old - new) | (new - old):
            self.permissions[permission] += new[permission] - old[permission]
            if not self.permissions[permission]:
                del self.permissions[permission]
            self.touch(("grant", *permission[:4]))

    def touch(self, answer: Answer) -> None:
        """The answer to a question may be another one now."""
        if self._readers and answer in self._readers:
            for step in self._readers[answer]:
                self._make_stale(step)

    def _make_stale(self, step: Conversion) -> None:
        self._stale[step.rank][step] = None

    def count_in_force(self) -> Counter[str]:
        """The number of configs in force that were made, by kind."""
        peek = self._indexes.config.peek
        return Counter(key.kind for key in self._derived if (config := peek(key)) is not None and config.made_from)

    def made_of(self, key: ConfigKey) -> list[ConfigKey]:
        """The configs that an object became, or a part of."""
        return sorted(made for made, config in self._derived.items() if key in config.made_from)

    def derived(self, key: ConfigKey) -> Config | None:
        """The config that was made under a key, which is in force if users wrote none."""
        return self._derived.get(key)

    # -- output

    def take_changed_statuses(self) -> frozenset[ConfigKey]:
        """The objects whose status has changed since the last call."""
        if not self._changed_statuses:
            return frozenset()
        found = frozenset(self._changed_statuses)
        self._changed_statuses.clear()
        return found

    @property
    def is_stale(self) -> bool:
        """True if ``flush`` has something to do."""
        return any(self._stale.values())

    def flush(self) -> None:
        """Convert what is stale. A conversion makes only those of higher ranks stale."""
        for steps in self._stale.values():
            for step in steps:
                with self._isolated(("gateway api", step), OBJECT, str(step.subject)):
                    self._convert(step)
            steps.clear()

    def _convert(self, step: Conversion) -> None:
        self.conversions += 1
        reader = NotingReader(self, self._indexes)
        match step:
            case (Rank.GATEWAY, ConfigKey() as key):
                self._set_gateway(step, key, reader)
            case (Rank.ROUTE, ConfigKey() as key):
                self._set_route(step, key, reader)
            case (Rank.MERGED, str() as merge_key):
                self._set_merged(step, merge_key)
            case (Rank.POLICY, ConfigKey() as key):
                self._set_policy(key, reader)
            case (Rank.RULE, RuleTarget() as target):
                parts = [part for each in self._rules.get(target, {}).values() for part in each]
                rule = destination_rule(target, parts, reader)
                self._write(step, [rule] if rule is not None else [])
            case (Rank.STATUS, ConfigKey() as key):
                self._set_status(key, self._make_status(key, reader))
        self._note(step, frozenset(reader.noted))

    def _note(self, step: Conversion, reads: frozenset[Answer]) -> None:
        before = self._reads.get(step, frozenset())
        for answer in before - reads:
            _discard(self._readers, answer, step)
        for answer in reads - before:
            self._readers[answer][step] = None
        if reads:
            self._reads[step] = reads
        else:
            self._reads.pop(step, None)

    # -- Gateways

    def _set_gateway(self, step: Conversion, key: ConfigKey, reader: NotingReader) -> None:
        config = self.objects[KUBERNETES_GATEWAY].get(key)
        result = convert_gateway(config, reader) if config is not None else GatewayResult()
        before = self._gateways.pop(key, GatewayResult())
        if config is not None:
            self._gateways[key] = result
        for parent in {*before.drafts, *result.drafts, key}:
            if parent in result.drafts:
                self._gateway_of[parent] = key
            elif self._gateway_of.get(parent) == key:
                del self._gateway_of[parent]
            if before.listeners.get(parent) != result.listeners.get(parent):
                self.touch(("listeners", parent))
            self._make_stale(Conversion(Rank.STATUS, parent))
        for credential in before.granted ^ result.granted:
            self._granted[credential][key.namespace] += 1 if credential in result.granted else -1
            found = frozenset(name for name, count in self._granted[credential].items() if count)
            self._indexes.credential_grants[credential] = found
            if not found:
                del self._granted[credential]
        between = network_gateways(config, reader, self._indexes.cluster_id) if config is not None else ()
        if between != self._between_networks.get(key, ()):
            self._between_networks[key] = between
            if not between:
                del self._between_networks[key]
            all_of_them = {each for gateways in self._between_networks.values() for each in gateways}
            self._indexes.gateway_objects[()] = tuple(sorted(all_of_them))
        self._write(step, result.configs)

    def listeners(self, parent: ConfigKey) -> tuple[ParentListener, ...]:
        """See ``Known``."""
        gateway = self._gateway_of.get(parent)
        return self._gateways[gateway].listeners.get(parent, ()) if gateway is not None else ()

    # -- routes

    def _set_route(self, step: Conversion, key: ConfigKey, reader: NotingReader) -> None:
        config = self.objects[key.kind].get(key)
        result = CONVERTERS[key.kind](config, reader) if config is not None else RouteResult((), {})
        before = self._routes.pop(key, None) or RouteResult((), {})
        if config is not None:
            self._routes[key] = result
        self._set_members(key, before.configs, result.configs)
        self._set_attachments(key, before.attachments, result.attachments)
        self._set_backends(before, result)
        self._write(step, [each.config for each in result.configs if not each.merge_key])
        self._set_status(key, result.status or None)

    def _set_members(self, route: ConfigKey, before: Iterable[RouteConfig], configs: Iterable[RouteConfig]) -> None:
        old, new = _by_merge_key(before), _by_merge_key(configs)
        for merge_key in {**old, **new}:
            if old.get(merge_key) == new.get(merge_key):
                continue
            if merge_key in new:
                self._members[merge_key][route] = new[merge_key]
            else:
                _discard(self._members, merge_key, route)
            self._make_stale(Conversion(Rank.MERGED, merge_key))

    def _set_attachments(
        self, route: ConfigKey, before: Iterable[tuple[ConfigKey, str]], attached: Iterable[tuple[ConfigKey, str]]
    ) -> None:
        old, new = _by_parent(before), _by_parent(attached)
        for parent in {**old, **new}:
            if old.get(parent) == new.get(parent):
                continue
            if parent in new:
                self._attached[parent][route] = new[parent]
            else:
                _discard(self._attached, parent, route)
            self._make_stale(Conversion(Rank.STATUS, parent))

    def _set_merged(self, step: Conversion, merge_key: str) -> None:
        members = self._members.get(merge_key, {})
        configs = sorted((config for each in members.values() for config in each), key=_order)
        self._write(step, [merged_config(merge_key, configs)] if configs else [])

    def _set_backends(self, before: RouteResult, result: RouteResult) -> None:
        old = Counter((backend, gateway) for backend in before.backends for gateway in before.gateways)
        new = Counter((backend, gateway) for backend in result.backends for gateway in result.gateways)
        for backend, gateway in (old - new) | (new - old):
            counts = self.gateways_of[backend]
            counts[gateway] += new[backend, gateway] - old[backend, gateway]
            if not counts[gateway]:
                del counts[gateway]
            if not counts:
                del self.gateways_of[backend]
            self.touch(("gateways of", backend))

    # -- policies

    def _set_policy(self, key: ConfigKey, reader: NotingReader) -> None:
        config = self.objects[key.kind].get(key)
        result = convert_policy(config, reader) if config is not None else PolicyResult((), {})
        old, new = _by_target(self._parts.pop(key, ())), _by_target(result.parts)
        if config is not None:
            self._parts[key] = result.parts
        for target in {**old, **new}:
            if old.get(target) == new.get(target):
                continue
            if target in new:
                self._rules[target][key] = new[target]
            else:
                _discard(self._rules, target, key)
            self._make_stale(Conversion(Rank.RULE, target))
        self._set_status(key, result.status if config is not None else None)

    # -- results

    def _write(self, step: Conversion, configs: Iterable[Config]) -> None:
        """Put the configs of a step in force, in place of those that it made before."""
        made = {config.key: config for config in configs}
        for key in [*self._made.get(step, ()), *made]:
            self._write_one(key, made.get(key))
        if made:
            self._made[step] = dict.fromkeys(made)
        else:
            self._made.pop(step, None)

    def _write_one(self, key: ConfigKey, config: Config | None) -> None:
        in_force = self._indexes.config.peek(key)
        if config is None:
            self._derived.pop(key, None)
        else:
            self._derived[key] = config
        if in_force is None or in_force.made_from:
            self._put(key, config)

    def _make_status(self, key: ConfigKey, reader: NotingReader) -> Json | None:
        config = self.objects[key.kind].get(key)
        if config is None:
            return None
        if key.kind == "GatewayClass":
            return class_status(config)
        owner = self._gateway_of.get(key)
        gateway = self.objects[KUBERNETES_GATEWAY].get(owner) if owner is not None else None
        if owner is None or gateway is None:
            return None
        draft = self._gateways[owner].drafts[key]
        counts = sum(self._attached.get(key, {}).values(), Counter[str]())
        if key == owner:
            return gateway_status(gateway, draft, counts, reader)
        return set_status(gateway, draft, counts, reader)

    def _set_status(self, key: ConfigKey, status: Json | None) -> None:
        if self.statuses.get(key) == status:
            return
        if status is None:
            del self.statuses[key]
        else:
            self.statuses[key] = status
        self._changed_statuses.add(key)


def _discard(table: dict[K, dict[V, T]], outer: K, inner: V) -> None:
    """Remove an entry of an inner dict, and that with its last one."""
    found = table.get(outer)
    if found is not None:
        found.pop(inner, None)
        if not found:
            del table[outer]


def _parent(config: Config) -> ConfigKey | None:
    """The Gateway of a ListenerSet."""
    ref = config.spec.parent_ref
    if ref is None:
        return None
    return ConfigKey(KUBERNETES_GATEWAY, config.namespace if ref.namespace is None else ref.namespace, ref.name)


def _by_merge_key(configs: Iterable[RouteConfig]) -> dict[str, tuple[Config, ...]]:
    found: dict[str, list[Config]] = {}
    for each in configs:
        if each.merge_key:
            found.setdefault(each.merge_key, []).append(each.config)
    return {merge_key: tuple(members) for merge_key, members in found.items()}


def _by_target(parts: Iterable[PolicyPart]) -> dict[RuleTarget, tuple[PolicyPart, ...]]:
    found: dict[RuleTarget, tuple[PolicyPart, ...]] = {}
    for part in parts:
        found[part.target] = (*found.get(part.target, ()), part)
    return found


def _by_parent(attachments: Iterable[tuple[ConfigKey, str]]) -> dict[ConfigKey, Counter[str]]:
    found: dict[ConfigKey, Counter[str]] = {}
    for parent, section in attachments:
        found.setdefault(parent, Counter())[section] += 1
    return found


def _order(config: Config) -> tuple[object, ...]:
    return (config.created, config.namespace, config.name)
