"""All messages about a World, or about a picture."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

import structlog

from mesh_pilot.envoy.catalog.diagnostics import REFERRING_KINDS, mesh_config_problems, object_problems
from mesh_pilot.explain.analysis import codes
from mesh_pilot.explain.analysis.analyzers import ANALYZERS
from mesh_pilot.explain.analysis.findings import AnalysisMessage
from mesh_pilot.explain.analysis.input import AnalysisInput, picture_of
from mesh_pilot.explain.analysis.mesh_context import AnalysisContext, Analyzer, found
from mesh_pilot.model.config import Config, ConfigKey, Origin, Problem
from mesh_pilot.model.events import MeshConfigValue
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.world import World

log = structlog.get_logger(scope="config")


def analyze(world: World, proxies: Iterable[Proxy] | None = None) -> list[AnalysisMessage]:
    """The messages about the objects that are in force in a World, the heaviest first.

    ``proxies``: those that are connected, for a World that serves; None if that is not known.
    """
    return analyze_picture(picture_of(world, proxies, standing=tuple(standing_problems(world))))


def analyze_picture(picture: AnalysisInput) -> list[AnalysisMessage]:
    """The same about a picture, in any thread."""
    survey = AnalysisContext(picture)
    messages = (message for analyzer in ANALYZERS for message in _isolated(analyzer, survey))
    unique = {(m.type.code, m.config.key, m.path, m.text, m.line): m for m in messages}
    return sorted(unique.values(), key=_order)


def _isolated(analyzer: Analyzer, survey: AnalysisContext) -> Iterator[AnalysisMessage]:
    """The messages of an analyzer. An internal error costs the rest of its messages and no other's, and is told."""
    try:
        yield from analyzer(survey)
    except Exception as error:
        name = f"{analyzer.__module__.rpartition('.')[2]}.{analyzer.__name__}"
        log.error("internal error while analyzing", analyzer=name, exc_info=error)
        nothing = Config(ConfigKey("", "", ""), None, origin=Origin("analysis"))
        yield found(codes.INTERNAL_ERROR, nothing, "", f"{name}: {type(error).__name__}: {error}")


def _order(message: AnalysisMessage) -> tuple[object, ...]:
    origin = message.origin
    return (message.type.level.rank, origin.location, origin.line, message.config.key, message.path, message.type.code)


def standing_problems(world: World) -> Iterator[tuple[Config, Problem]]:
    """Problems that only the translators see."""
    return chain.from_iterable(problems_by_object(world))


def problems_by_object(world: World) -> Iterator[tuple[tuple[Config, Problem], ...]]:
    """The same for one object after another, also those without a problem: computes derived values of the World."""
    for settings in world.mesh_settings():
        if isinstance(settings, MeshConfigValue):
            config = Config(ConfigKey("MeshConfig", "", ""), None, origin=settings.origin)
            yield tuple((config, problem) for problem in mesh_config_problems(world.view))
    for kind in ("EnvoyFilter", *REFERRING_KINDS):
        for config in sorted(world.configs_of.peek(kind), key=lambda config: config.key):
            yield tuple((config, problem) for problem in object_problems(world.view, config.key))
