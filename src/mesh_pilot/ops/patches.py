"""What EnvoyFilters ask for that can't be done: for ``analyze``, the debug page, the web page, metrics and the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import structlog

from mesh_pilot.envoy.catalog.catalog import WorldCatalog
from mesh_pilot.envoy.envoy_filter.parsed import parsed
from mesh_pilot.envoy.envoy_filter.patch import PatchProblem
from mesh_pilot.mesh.envoy_filter_selection import KIND
from mesh_pilot.model.config import Config, ConfigKey, Severity
from mesh_pilot.ops.internal import some
from mesh_pilot.ops.page import bad, table
from mesh_pilot.world import World

log = structlog.get_logger(scope="envoy")

PROXIES_NAMED = 20
"""How many proxies a problem is shown with by name."""


def in_configs(world: World) -> list[tuple[Severity, dict[str, str]]]:
    """What is wrong with patches whatever they are applied to: how bad, and ``where``, ``object``, ``field`` and
    ``reason``."""
    configs = sorted((c for _, c in world.config.items() if c is not None and c.key.kind == KIND), key=lambda c: c.key)
    return [(problem.severity, describe_patch(c, problem)) for c in configs for problem in _own(world, c)]


def describe_patch(config: Config, problem: PatchProblem) -> dict[str, str]:
    """``where`` the EnvoyFilter was read, ``object``, ``field`` and ``reason``."""
    return {
        "where": str(config.origin),
        "object": str(config.key),
        "field": problem.path,
        "reason": problem.reason,
    }


def tell_config(world: World, key: ConfigKey) -> None:
    """Log what is wrong with a new EnvoyFilter whatever it is applied to."""
    config = world.config.peek(key)
    if config is None:
        return
    for problem in _own(world, config):
        if problem.severity is Severity.ERROR:
            log.warning("EnvoyFilter patch cannot be applied; other patches are", **describe_patch(config, problem))
        else:
            log.warning("part of an EnvoyFilter patch has no effect", **describe_patch(config, problem))


def failed(catalog: WorldCatalog) -> list[Mapping[str, str | int | list[str]]]:
    """What could not be done to the proxies that are connected: one entry a patch, resource and reason."""
    return [
        {
            "object": str(problem.config),
            "field": problem.path,
            "resource": problem.resource,
            "reason": problem.reason,
            "severity": problem.severity.value,
            "proxies": names[:PROXIES_NAMED],
            "proxies_in_all": len(names),
        }
        for problem, names in _by_problem(catalog).items()
    ]


def failed_table(catalog: WorldCatalog) -> str:
    """The same for the web page; empty where there is nothing to tell."""
    rows = [
        (str(p.config), p.path, p.resource, bad(p.reason), some(names, 3)) for p, names in _by_problem(catalog).items()
    ]
    headers = ("object", "field", "resource", "reason", "proxies")
    return table("Patches without effect", headers, rows, "", more="/debug/rejections") if rows else ""


def counts(catalog: WorldCatalog) -> Counter[str]:
    """By EnvoyFilter (``shop/limits``): how often one of its patches could not be carried out, over all proxies and
    resources."""
    found: Counter[str] = Counter()
    for held in catalog.patch_problems().values():
        found.update(f"{p.config.namespace}/{p.config.name}" for p in held)
    return found


class PatchReports:
    """Logs what patches could not do to a proxy, once. State: what was told and still is so."""

    def __init__(self, catalog: WorldCatalog) -> None:
        self._catalog = catalog
        self._told: set[PatchProblem] = set()

    def tell(self) -> None:
        """Look at all proxies; to be called now and then. What is wrong with a patch itself was told when it came."""
        now = {p: names for p, names in _by_problem(self._catalog).items() if p.resource}
        for problem, names in now.items():
            if problem not in self._told:
                log.warning(
                    "EnvoyFilter patch not applied; the rest of the proxy's config stands",
                    object=str(problem.config),
                    field=problem.path,
                    resource=problem.resource,
                    reason=problem.reason,
                    proxies=some(names, 3),
                )
        self._told = set(now)


def _own(world: World, config: Config) -> tuple[PatchProblem, ...]:
    return parsed(world.view, config.key).problems


def _by_problem(catalog: WorldCatalog) -> dict[PatchProblem, list[str]]:
    found: dict[PatchProblem, list[str]] = {}
    for name, problem in _pairs(catalog):
        found.setdefault(problem, []).append(name)
    return found


def _pairs(catalog: WorldCatalog) -> Iterator[tuple[str, PatchProblem]]:
    for name, held in sorted(catalog.patch_problems().items()):
        for problem in held:
            yield name, problem
