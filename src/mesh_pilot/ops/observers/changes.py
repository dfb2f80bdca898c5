"""Counts what each revision of the World changed, and logs refused and recovered objects.

It sees revisions, not events: a file that is saved three times within the debounce is one change, as for proxies. The
World tells what is refused now, and not what was just refused, so the rejections that were logged are remembered and
compared; the same refusal is not logged again with every revision. All of it runs in the reducer's task before proxies
are told, so it is bounded: problems of an object are logged up to a number, and an object whose report raises costs
its report.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import islice

import attrs
import structlog

from mesh_pilot.base.containment import Contained
from mesh_pilot.istio.kinds import KINDS
from mesh_pilot.istio.reading.field_warnings import NO_EFFECT
from mesh_pilot.model.config import Config, ConfigKey, Problem, Severity
from mesh_pilot.model.events import (
    Delete,
    Endpoints,
    Event,
    MeshConfigValue,
    MeshNetworksValue,
    Rejected,
    Replace,
    Upsert,
    WorkloadHealth,
    item_key,
)
from mesh_pilot.model.histogram import Histogram, HistogramState
from mesh_pilot.model.service import Service, ServiceKey
from mesh_pilot.world import World
from mesh_pilot.world.gateway_reads import CONFIG_MAP
from mesh_pilot.world.reducer import Published

log = structlog.get_logger(scope="config")
patch_log = structlog.get_logger(scope="envoy")

PROBLEMS_LOGGED = 20
"""Problems of one object that are logged; the pages show more."""

DEBOUNCE_BOUNDS = (0.01, 0.1, 0.5, 1, 3, 5, 10, 20, 30)
"""Seconds: the buckets of Istio's ``pilot_debounce_time``."""

APPLY_BOUNDS = (0.01, 0.1, 0.5, 1, 3, 5)
"""Seconds: the buckets of its ``pilot_pushcontext_init_seconds``."""

Key = tuple[str, ...]


@attrs.frozen
class ChangeStatistics:
    config_events: Mapping[tuple[str, str], int]
    """Objects added, updated and deleted since the start, by kind and ``add``, ``update`` or ``delete``."""
    service_events: Mapping[str, int]
    """Services that registries added, updated or deleted, by the same words."""
    triggers: Mapping[str, int]
    """Revisions by content: ``config``, ``endpoint``, ``service``, ``secret``, ``module``, ``quarantine``, and
    ``global`` for the mesh's settings."""
    warnings: Mapping[str, int]
    """Warnings about accepted objects, by kind; ``MeshConfig`` and ``MeshNetworks`` are kinds here."""
    without_effect: Mapping[str, int]
    """Warnings about fields without effect, by kind; counted in ``warnings`` too."""
    debounce_seconds: HistogramState
    """From the first event of a revision until it was published."""
    apply_seconds: HistogramState
    """The time to apply the events of a revision."""
    updates: Mapping[str, int]
    """Events that took effect, by Istio's words: ``config``, ``svc``, ``svcdelete``, ``eds``."""
    accepted: Mapping[tuple[str, str, str], int]
    """Objects that were read and are good, by group, version and resource (``virtualservices``), since the start."""
    refused: Mapping[tuple[str, str, str], int]
    """Objects that were refused; empty strings where it is not known which kind it is."""


class Changes:
    """Observes the reducer: pass ``published`` to its ``on_publish``.

    State: the counters, the keys that exist (to tell an addition from an update), the rejections already logged, the
    number of warnings for each object, and the warnings about the mesh-wide settings.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._present: set[Key] = set()
        self._logged: dict[tuple[str, str], Rejected] = {}
        self._config_events: Counter[tuple[str, str]] = Counter()
        self._service_events: Counter[str] = Counter()
        self._triggers: Counter[str] = Counter()
        self._warning_counts: dict[Key, _WarningCounts] = {}
        self._settings: dict[Key, tuple[Problem, ...]] = {}
        self._debounce = Histogram(DEBOUNCE_BOUNDS)
        self._applied = Histogram(APPLY_BOUNDS)
        self._updates: Counter[str] = Counter()
        self._accepted: Counter[tuple[str, str, str]] = Counter()
        self._refused: Counter[tuple[str, str, str]] = Counter()

    def statistics(self) -> ChangeStatistics:
        warnings: Counter[str] = Counter()
        without_effect: Counter[str] = Counter()
        for counts in self._warning_counts.values():
            warnings[counts.kind] += counts.warnings
            without_effect[counts.kind] += counts.without_effect
        return ChangeStatistics(
            self._config_events,
            self._service_events,
            self._triggers,
            warnings,
            without_effect,
            self._debounce.state(),
            self._applied.state(),
            self._updates,
            self._accepted,
            self._refused,
        )

    def published(self, published: Published) -> None:
        """Count and log one revision. Synchronous and quick, because it runs in the reducer's task."""
        if published.revision.changed:
            self._debounce.observe(published.published_at - published.first_event_at)
            self._applied.observe(published.apply_seconds)
        self._updates.update(_update_of(event) for event in published.events)
        self._triggers.update({_TRIGGERS[key[0]] for key in published.revision.changed})
        for key in published.revision.changed:
            self._count(key)
        for key in published.revision.changed:
            name = "/".join(key[1:]) or key[0]
            with Contained(log, "cannot report on a changed object; it is in force", object=name):
                self._report(key)
        self._take_settings()
        self._log_rejections()

    def _count(self, key: Key) -> None:
        match key:
            case ("config", kind, namespace, name):
                there = self._world.config.peek(ConfigKey(kind, namespace, name)) is not None
                self._config_events[kind, self._event(key, there)] += 1
                self._accepted[_resource_of(kind)] += there
            case ("service", host, namespace):
                there = self._world.services.peek(ServiceKey(host, namespace)) is not None
                self._service_events[self._event(key, there)] += 1

    def _report(self, key: Key) -> None:
        """Log the problems of a changed object. Computes them, so a bad object can make it raise."""
        match key:
            case ("config", kind, namespace, name):
                config = self._world.config.peek(ConfigKey(kind, namespace, name))
                self._take_warnings(key, kind, config)
                if kind == "EnvoyFilter" and config is not None:
                    self._log_patch_problems(config)

    def _log_patch_problems(self, config: Config) -> None:
        from mesh_pilot.explain.analysis.object_problems import patch_problem_lines

        for severity, line in patch_problem_lines(self._world, config):
            if severity is Severity.ERROR:
                patch_log.warning("EnvoyFilter patch cannot be applied; other patches are", **line)
            else:
                patch_log.warning("part of an EnvoyFilter patch has no effect", **line)

    def _event(self, key: Key, there: bool) -> str:
        known = key in self._present
        if there:
            self._present.add(key)
            return "update" if known else "add"
        self._present.discard(key)
        return "delete"

    def _take_settings(self) -> None:
        """Warnings about the mesh-wide settings. They can change without a revision, as when a file spells out a
        default."""
        settings = {item_key(item): item for item in self._world.mesh_settings()}
        for key, kind in _SETTINGS.items():
            item = settings.get(key)
            warnings = item.warnings if item is not None else ()
            if warnings != self._settings.get(key, ()):
                self._settings[key] = warnings
                self._take_warnings(key, kind, item)

    def _take_warnings(self, key: Key, kind: str, item: Config | MeshConfigValue | MeshNetworksValue | None) -> None:
        """Count and log the warnings about a new object."""
        if item is None or not item.warnings:
            self._warning_counts.pop(key, None)
            return
        from mesh_pilot.explain.analysis.object_problems import item_name, warning_lines

        without_effect = sum(NO_EFFECT in problem.reason for problem in item.warnings)
        self._warning_counts[key] = _WarningCounts(kind, len(item.warnings), without_effect)
        for line in islice(warning_lines(item), PROBLEMS_LOGGED):
            log.warning("config accepted with a warning", **line)
        if len(item.warnings) > PROBLEMS_LOGGED:
            log.warning(
                "more problems of the same object", object=item_name(item), more=len(item.warnings) - PROBLEMS_LOGGED
            )

    def _log_rejections(self) -> None:
        """Log the objects that were refused, or accepted again, since the last revision."""
        rejections = {_identity(rejected): rejected for rejected in self._world.rejections()}
        if not rejections and not self._logged:
            return
        from mesh_pilot.explain.analysis.object_problems import rejected_lines, rejected_name

        in_force_at: dict[str, frozenset[str]] = {}
        for identity, rejected in rejections.items():
            logged = self._logged.get(identity)
            if logged is rejected or logged == rejected:
                continue
            self._refused[_resource_of(rejected.key[1] if rejected.key and rejected.key[0] == "config" else "")] += 1
            if rejected.key is None and rejected.source not in in_force_at:
                in_force_at[rejected.source] = self._locations_of(rejected.source)
            if rejected.key is not None:
                is_in_force = self._world.item_of(rejected.source, rejected.key) is not None
                is_in_force &= not rejected.key[-1].startswith(CONFIG_MAP)  # the Gateway API uses no earlier version
            else:
                is_in_force = rejected.origin.location in in_force_at[rejected.source]
            event = "config refused; its last good version is kept" if is_in_force else "config refused"
            for line in islice(rejected_lines(rejected), PROBLEMS_LOGGED):
                log.warning(event, source=rejected.source, **line)
            if len(rejected.problems) > PROBLEMS_LOGGED:
                more = len(rejected.problems) - PROBLEMS_LOGGED
                log.warning("more problems of the same object", object=rejected_name(rejected), more=more)
        for identity, rejected in self._logged.items():
            if identity not in rejections:
                log.info(
                    "config accepted again",
                    source=rejected.source,
                    where=str(rejected.origin),
                    object=rejected_name(rejected),
                )
        self._logged = rejections

    def _locations_of(self, source: str) -> frozenset[str]:
        """The locations of the objects that a source has in force."""
        items = self._world.items_of(source).values()
        return frozenset(item.origin.location for item in items if isinstance(item, Config))


@attrs.frozen
class _WarningCounts:
    """The warnings about an object."""

    kind: str
    warnings: int
    without_effect: int


_SETTINGS: Mapping[Key, str] = {("mesh",): "MeshConfig", ("networks",): "MeshNetworks"}

_TRIGGERS = {
    "config": "config",
    "service": "service",
    "endpoints": "endpoint",
    "mesh": "global",
    "networks": "global",
    "secret": "secret",
    "keys": "secret",
    "addresses": "endpoint",
    "challenges": "secret",
    "module": "module",
    "extension": "module",
    "health": "endpoint",
    "quarantine": "quarantine",
    "rollout": "rollout",
    "owners": "config",
}


def _identity(rejected: Rejected) -> tuple[str, str]:
    return rejected.source, str(rejected.key or rejected.origin.location)


def _update_of(event: Event) -> str:
    """The kind of an event as Istio counts it; mesh settings, secrets and the like are configuration there."""
    match event:
        case Upsert(item=Service()) | Replace(collection=("service", *_)):
            return "svc"
        case Delete(key=("service", *_)):
            return "svcdelete"
        case Upsert(item=Endpoints() | WorkloadHealth()) | Replace(collection=("endpoints" | "health", *_)):
            return "eds"
        case Delete(key=("endpoints" | "health", *_)):
            return "eds"
        case _:
            return "config"


def _resource_of(kind: str) -> tuple[str, str, str]:
    """Group, newest version and plural of a kind."""
    found = KINDS.get(kind)
    return (found.group, found.versions[-1], found.plural) if found is not None else ("", "", "")
