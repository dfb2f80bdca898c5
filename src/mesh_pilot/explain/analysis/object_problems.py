"""Problems of single objects as lines of logs and pages.

A line has ``where`` (file and line), ``object``, ``field`` and ``reason``.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from mesh_pilot.envoy.catalog.diagnostics import REFERRING_KINDS, mesh_config_problems, object_problems
from mesh_pilot.mesh.virtual_services.chains import gateway_rules, is_chain
from mesh_pilot.model.config import Config, Origin, Problem, Severity
from mesh_pilot.model.events import MeshConfigValue, MeshNetworksValue, Rejected, item_key
from mesh_pilot.world import World

Line = dict[str, str]


def rejected_name(rejected: Rejected) -> str:
    """The refused thing, ``VirtualService/shop/reviews``, ``secret/shop/edge``; empty if it could not be identified."""
    key = rejected.key or ()
    return "/".join(key[1:] if key[:1] == ("config",) else key)


def rejected_lines(rejected: Rejected) -> Iterator[Line]:
    """A line for each problem; keys without a value are left out."""
    name = rejected_name(rejected)
    for problem in rejected.problems:
        yield {key: value for key, value in _line(rejected.origin, name, problem).items() if value}


def item_name(item: Config | MeshConfigValue | MeshNetworksValue) -> str:
    """``VirtualService/shop/reviews``, or ``mesh``."""
    return str(item.key) if isinstance(item, Config) else item_key(item)[0]


def warning_lines(item: Config | MeshConfigValue | MeshNetworksValue) -> Iterator[Line]:
    """A line for each warning."""
    name = item_name(item)
    for problem in item.warnings:
        yield _line(item.origin, name, problem)


def patch_problem_lines(world: World, config: Config) -> Iterator[tuple[Severity, Line]]:
    """Problems of an EnvoyFilter's patches that do not depend on a proxy."""
    for problem in object_problems(world.view, config.key):
        yield problem.severity, _line(config.origin, str(config.key), problem)


def all_patch_problem_lines(world: World) -> Iterator[tuple[Severity, Line]]:
    """The same for all EnvoyFilters."""
    for config in sorted(world.configs_of.peek("EnvoyFilter"), key=lambda config: config.key):
        yield from patch_problem_lines(world, config)


def reference_lines(world: World) -> Iterator[Line]:
    """References that cannot be used: to providers, of Telemetry and the mesh config, and those of legacy policies; and
    what of Consul's entries does not hold at gateways."""
    for settings in world.mesh_settings():
        if isinstance(settings, MeshConfigValue):
            for problem in mesh_config_problems(world.view):
                yield _line(settings.origin, item_name(settings), problem)
    for kind in REFERRING_KINDS:
        for config in sorted(world.configs_of.peek(kind), key=lambda config: config.key):
            for problem in object_problems(world.view, config.key):
                yield _line(config.origin, str(config.key), problem)
    yield from _chain_lines(world)


def _chain_lines(world: World) -> Iterator[Line]:
    """The parts of Consul's chains that do not hold at gateways."""
    every = [config for _, config in world.config.items() if config is not None and config.key.kind == "VirtualService"]
    if not any(map(is_chain, every)):
        return
    for config in sorted(every, key=lambda config: config.key):
        for limit in gateway_rules(world.view, config.key).limits if config.spec.gateways else ():
            chain = world.config.peek(limit.chain)
            if chain is not None:
                reason = f"at the gateways of {config.key}: {limit.reason}"
                yield _line(chain.origin, str(limit.chain), Problem(f"spec.http[{limit.root}]", reason))


def _line(origin: Origin, name: str, problem: Problem) -> Line:
    where = str(attrs.evolve(origin, line=problem.line or origin.line))
    return {"where": where, "object": name, "field": problem.path, "reason": problem.reason}
