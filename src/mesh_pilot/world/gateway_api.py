"""Turns the Gateway API's objects into configs of Istio's kinds, and knows the status of each.

Objects are converted when a change touches them: each conversion notes what it asked for (``NotingReader``), and
another answer makes it stale. ``flush`` converts what is stale, the lower ranks first: Gateways, routes, what several
routes or policies have in common, statuses. The results are put into the table of configs as if users had written them,
but never in place of a config that users wrote. Without any object of the Gateway API nothing is noted or computed.

Why this is not a matter of the memo table, which tracks reads, too: a conversion writes configs, which are cells of
that table, and derived values have no effects. To convert all routes in one derived value would cost the mesh for each
edit. Ranks take the place of its recursion: as each conversion makes only later ones stale, one pass is enough.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from enum import IntEnum
from typing import NamedTuple, TypeVar

from mesh_pilot.engine.failures import OBJECT
from mesh_pilot.istio.gateway_api.classes import class_status
from mesh_pilot.istio.gateway_api.converters import CONVERTERS, merged_config
from mesh_pilot.istio.gateway_api.gateway_status import gateway_status, set_status
from mesh_pilot.istio.gateway_api.gateways import GatewayResult, PartialStatus, convert_gateway
from mesh_pilot.istio.gateway_api.network_gateways import network_gateways
from mesh_pilot.istio.gateway_api.policies import PolicyPart, PolicyResult, RuleTarget, convert_policy, destination_rule
from mesh_pilot.istio.gateway_api.values import KUBERNETES_GATEWAY, Json, RouteResult
from mesh_pilot.model.config import Config, ConfigKey
from mesh_pilot.model.service import NetworkGateway
from mesh_pilot.world.copying import Copied
from mesh_pilot.world.gateway_reads import POLICIES, Answer, KnownObjects, NotingReader
from mesh_pilot.world.indexes import Indexes, Isolated
from mesh_pilot.world.reverse_index import ReverseIndex

KINDS = (
    CONVERTERS.keys() | POLICIES | {KUBERNETES_GATEWAY, "GatewayClass", "ListenerSet", "ReferenceGrant", "Namespace"}
)
"""The kinds, in keys, that this table follows."""

K = TypeVar("K")
V = TypeVar("V")

Put = Callable[[ConfigKey, Config | None], object]


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


_OF_OBJECTS = {
    KUBERNETES_GATEWAY: Rank.GATEWAY,
    "ListenerSet": Rank.STATUS,
    "GatewayClass": Rank.STATUS,
    **dict.fromkeys(CONVERTERS, Rank.ROUTE),
    **dict.fromkeys(POLICIES, Rank.POLICY),
}
"""Values by kind that an edit of an object makes stale, in addition to what asked for it."""


class Conversion(NamedTuple):
    """A conversion. Of those that are stale, the lowest is done first."""

    rank: Rank
    subject: Hashable


class Conversions(Copied):
    """The conversions that are to be done.

    State: `_stale`, by rank; `readers`, by question the conversions that asked it; how many were done.
    """

    def __init__(self) -> None:
        self._stale: dict[Rank, dict[Conversion, None]] = {rank: {} for rank in Rank}
        self.readers: ReverseIndex[Answer, Conversion, None] = ReverseIndex()
        self.done = 0
        """Conversions since the start."""

    @property
    def is_stale(self) -> bool:
        """True if ``run`` has something to do."""
        return any(self._stale.values())

    def add(self, rank: Rank, subjects: Iterable[Hashable]) -> None:
        for subject in subjects:
            self._stale[rank][Conversion(rank, subject)] = None

    def touch(self, answer: Answer) -> None:
        """The answer to a question may be another one now."""
        for step in self.readers[answer] if self.readers else ():
            self._stale[step.rank][step] = None

    def run(self, isolated: Isolated, convert: Callable[[Conversion], Iterable[Answer]]) -> None:
        """Do what is stale; ``convert`` returns the questions that it asked."""
        for steps in self._stale.values():
            for step in steps:
                with isolated(("gateway api", step), OBJECT, str(step.subject)):
                    self.done += 1
                    self.readers.put(step, dict.fromkeys(convert(step)))
            steps.clear()


class MadeConfigs(Copied):
    """The configs that conversions made.

    State: `_configs`; `_keys`, by conversion those that it made.
    """

    def __init__(self, indexes: Indexes, put: Put) -> None:
        """``put`` adds, replaces or removes a config in force."""
        self._indexes = indexes
        self._put = put
        self._configs: dict[ConfigKey, Config] = {}
        self._keys: dict[Conversion, tuple[ConfigKey, ...]] = {}

    def write(self, step: Conversion, configs: Iterable[Config]) -> None:
        """Put the configs of a conversion in force, in place of those that it made before."""
        made = {config.key: config for config in configs}
        before = self._keys.pop(step, ())
        if made:
            self._keys[step] = tuple(made)
        for key in [*before, *made]:
            config = made.get(key)
            _set(self._configs, key, config)
            in_force = self._indexes.config.peek(key)
            if in_force is None or in_force.made_from:
                self._put(key, config)

    def get(self, key: ConfigKey) -> Config | None:
        """The config that was made under a key, which is in force if users wrote none."""
        return self._configs.get(key)

    def of(self, key: ConfigKey) -> list[ConfigKey]:
        """The configs that an object became, or a part of."""
        return sorted(made for made, config in self._configs.items() if key in config.made_from)

    def count_in_force(self) -> Counter[str]:
        """The number of those in force, by kind."""
        peek = self._indexes.config.peek
        return Counter(key.kind for key in self._configs if (config := peek(key)) is not None and config.made_from)


class Statuses(Copied):
    """The statuses of objects, without those that are for another controller.

    State: `by_object`, and `_changed`, the objects whose status changed since somebody asked.
    """

    def __init__(self) -> None:
        self.by_object: dict[ConfigKey, Json] = {}
        self._changed: set[ConfigKey] = set()

    def put(self, key: ConfigKey, status: Json | None) -> None:
        if self.by_object.get(key) != status:
            _set(self.by_object, key, status)
            self._changed.add(key)

    def take_changed(self) -> frozenset[ConfigKey]:
        """The objects whose status has changed since the last call."""
        if not self._changed:
            return frozenset()
        found = frozenset(self._changed)
        self._changed.clear()
        return found


class Outcomes(Copied):
    """The results of conversions that those of higher ranks need: a reverse index each, by what is made of them."""

    def __init__(self) -> None:
        self.partial_statuses: ReverseIndex[ConfigKey, ConfigKey, PartialStatus] = ReverseIndex()
        """Statuses by Gateway and ListenerSet, as far as these decide them, with the Gateway."""
        self.credentials: ReverseIndex[tuple[str, str], ConfigKey, None] = ReverseIndex()
        """Gateways by the credential that they may have."""
        self.networks: ReverseIndex[NetworkGateway, ConfigKey, None] = ReverseIndex()
        """The gateways of networks, with the Gateways that say so."""
        self.merged: ReverseIndex[str, ConfigKey, tuple[Config, ...]] = ReverseIndex()
        """VirtualServices of each route, by merge key."""
        self.attached: ReverseIndex[ConfigKey, ConfigKey, Counter[str]] = ReverseIndex()
        """The number of times that a route is attached to each listener, by Gateway or ListenerSet and route."""
        self.rules: ReverseIndex[RuleTarget, ConfigKey, tuple[PolicyPart, ...]] = ReverseIndex()
        """Parts of each policy, by host."""


class GatewayApiTable(Copied):
    """Takes the objects; ``flush`` writes the configs and statuses that the last changes touched.

    State: `conversions` that are to be done, `_known` objects, `_outcomes` of conversions, `made` configs, `statuses`.
    """

    def __init__(self, indexes: Indexes, isolated: Isolated, put: Put) -> None:
        """``put`` adds, replaces or removes a config of Istio's kinds."""
        self._indexes = indexes
        self._isolated = isolated
        self.conversions = Conversions()
        self._known = KnownObjects()
        self._outcomes = Outcomes()
        self.made = MadeConfigs(indexes, put)
        self.statuses = Statuses()

    def put_object(self, key: ConfigKey, config: Config | None) -> None:
        """An object of ``KINDS``, which is in the index of configs already, was added, replaced or (None) removed."""
        if key.kind in _OF_OBJECTS:
            self.conversions.add(_OF_OBJECTS[key.kind], [key])
        self._touch(self._known.put(key, config))

    def touch(self, answer: Answer) -> None:
        """The answer to a question may be another one now."""
        self.conversions.touch(answer)

    def _touch(self, answers: Iterable[Answer]) -> None:
        for answer in answers:
            self.conversions.touch(answer)

    def flush(self) -> None:
        """Convert what is stale. A conversion makes only those of higher ranks stale."""
        self.conversions.run(self._isolated, self._convert)

    def _convert(self, step: Conversion) -> Iterable[Answer]:
        reader = NotingReader(self._known, self._indexes)
        match step:
            case (Rank.GATEWAY, ConfigKey() as key):
                self._convert_gateway(step, key, reader)
            case (Rank.ROUTE, ConfigKey() as key):
                self._convert_route(step, key, reader)
            case (Rank.MERGED, str() as merge_key):
                members = (config for each in self._outcomes.merged[merge_key].values() for config in each)
                configs = sorted(members, key=lambda each: (each.created, each.namespace, each.name))
                self.made.write(step, [merged_config(merge_key, configs)] if configs else [])
            case (Rank.POLICY, ConfigKey() as key):
                self._convert_policy(key, reader)
            case (Rank.RULE, RuleTarget() as target):
                parts = [part for each in self._outcomes.rules[target].values() for part in each]
                rule = destination_rule(target, parts, reader)
                self.made.write(step, [rule] if rule is not None else [])
            case (Rank.STATUS, ConfigKey() as key):
                self.statuses.put(key, self._status(key, reader))
        return reader.noted

    def _convert_gateway(self, step: Conversion, key: ConfigKey, reader: NotingReader) -> None:
        config, outcomes = self._indexes.config.peek(key), self._outcomes
        result = convert_gateway(config, reader) if config is not None else GatewayResult()
        networks = network_gateways(config, reader, self._indexes.cluster_id) if config is not None else ()
        changed = outcomes.partial_statuses.put(key, result.statuses)
        # The status also depends on fields of the Gateway that this part of it does not have.
        self.conversions.add(Rank.STATUS, {*changed, *result.statuses, key})
        self._touch(("listeners", parent) for parent in self._known.listeners.put(key, result.listeners))
        for credential in outcomes.credentials.put(key, dict.fromkeys(result.granted)):
            namespaces = frozenset(gateway.namespace for gateway in outcomes.credentials[credential])
            self._indexes.credential_grants[credential] = namespaces
        if outcomes.networks.put(key, dict.fromkeys(networks)):
            self._indexes.gateway_objects[()] = tuple(sorted(outcomes.networks))
        self.made.write(step, result.configs)

    def _convert_route(self, step: Conversion, key: ConfigKey, reader: NotingReader) -> None:
        config, outcomes = self._indexes.config.peek(key), self._outcomes
        result = CONVERTERS[key.kind](config, reader) if config is not None else RouteResult((), {})
        merged = _by((each.merge_key, each.config) for each in result.configs if each.merge_key)
        self.conversions.add(Rank.MERGED, outcomes.merged.put(key, merged))
        attached = {parent: Counter(sections) for parent, sections in _by(result.attachments).items()}
        self.conversions.add(Rank.STATUS, outcomes.attached.put(key, attached))
        leading = dict.fromkeys(result.backends, frozenset(result.gateways)) if result.gateways else {}
        self._touch(("gateways of", backend) for backend in self._known.leading.put(key, leading))
        self.made.write(step, [each.config for each in result.configs if not each.merge_key])
        self.statuses.put(key, result.status or None)

    def _convert_policy(self, key: ConfigKey, reader: NotingReader) -> None:
        config = self._indexes.config.peek(key)
        result = convert_policy(config, reader) if config is not None else PolicyResult((), {})
        parts = _by((part.target, part) for part in result.parts)
        self.conversions.add(Rank.RULE, self._outcomes.rules.put(key, parts))
        self.statuses.put(key, result.status if config is not None else None)

    def _status(self, key: ConfigKey, reader: NotingReader) -> Json | None:
        config = self._indexes.config.peek(key)
        if config is None:
            return None
        if key.kind == "GatewayClass":
            return class_status(config)
        latest = self._outcomes.partial_statuses.latest(key)
        if latest is None:
            return None
        owner, partial = latest
        gateway = self._indexes.config.peek(owner)
        if gateway is None:
            return None
        routes = sum(self._outcomes.attached[key].values(), Counter[str]())
        return (gateway_status if key == owner else set_status)(gateway, partial, routes, reader)


def _set(table: dict[K, V], key: K, value: V | None) -> None:
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value


def _by(pairs: Iterable[tuple[K, V]]) -> Mapping[K, tuple[V, ...]]:
    found: dict[K, tuple[V, ...]] = {}
    for key, value in pairs:
        found[key] = (*found.get(key, ()), value)
    return found
