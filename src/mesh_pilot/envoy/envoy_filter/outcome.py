"""The outcome of the patches of EnvoyFilters at a proxy: problems, and patches that match nothing there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import attrs

from mesh_pilot.envoy.envoy_filter.apply import TABLE_KINDS
from mesh_pilot.envoy.envoy_filter.parse import parsed
from mesh_pilot.envoy.envoy_filter.patch import (
    NO_MATCHES,
    ApplyTo,
    Patch,
    PatchMatches,
    PatchProblem,
    PatchRef,
)
from mesh_pilot.envoy.envoy_filter.plans import Patched
from mesh_pilot.istio.reading.encode_json import to_json
from mesh_pilot.mesh.proxy.keys import ProxyKeys
from mesh_pilot.model.config import ConfigKey, Severity
from mesh_pilot.world.view import View

NOTHING_MATCHES = "it matches nothing here"


@attrs.frozen
class PatchOutcome:
    """The problems of patches in some resources, and the patches that found something to change there."""

    problems: tuple[PatchProblem, ...] = ()
    matches: PatchMatches = NO_MATCHES

    @classmethod
    def of(cls, patched: Iterable[Patched | PatchOutcome]) -> PatchOutcome:
        """All outcomes in one."""
        problems: dict[PatchProblem, None] = {}
        found: set[PatchRef] = set()
        nearest: dict[PatchRef, str] = {}
        for each in patched:
            problems.update(dict.fromkeys(each.problems))
            found |= each.matches.found
            for ref, where in each.matches.nearest:
                nearest[ref] = nearest.get(ref) or where
        return cls(tuple(problems), PatchMatches(frozenset(found), tuple(nearest.items())))


def unmatched(view: View, target: ProxyKeys, outcome: PatchOutcome, *, knows_tables: bool) -> Iterator[PatchProblem]:
    """The patches for a proxy that match nothing there and have no other problem.

    Without ``knows_tables`` it is not known yet which route tables the proxy has: patches to them are not judged.
    """
    if target.scope.grpc:
        return  # its resources are not patched
    told = {(problem.config, problem.patch) for problem in outcome.problems}
    nearest = dict(outcome.matches.nearest)
    for ref in target.filters:
        for patch in parsed(view, ref.config).patches:
            if patch.index in ref.skipped or patch.ref in told or patch.ref in outcome.matches.found:
                continue
            if patch.apply_to is not ApplyTo.EXTENSION_CONFIG and not patch.is_for_some(target.scope.type):
                if _is_selective(view, ref.config):
                    reason = f"context {patch.match.context.name} is not that of {target.scope.type.value} proxies"
                    yield _problem(patch, f"{NOTHING_MATCHES}: {reason}")
            elif patch.apply_to is not ApplyTo.BOOTSTRAP and (knows_tables or patch.apply_to not in TABLE_KINDS):
                yield _problem(patch, _nothing_here(patch, nearest.get(patch.ref, "")))


def _is_selective(view: View, key: ConfigKey) -> bool:
    """True if an EnvoyFilter selects proxies: a patch for others is then a slip, and not just for other proxies."""
    config = view.config(key)
    if config is None:
        return False
    spec = config.spec
    return bool(spec.target_refs or (spec.workload_selector is not None and spec.workload_selector.labels))


_OBJECTS: Mapping[ApplyTo, str] = {
    ApplyTo.CLUSTER: "cluster",
    ApplyTo.LISTENER: "listener",
    **dict.fromkeys(TABLE_KINDS, "route table"),
}


def _problem(patch: Patch, reason: str) -> PatchProblem:
    where = f"any {_OBJECTS.get(patch.apply_to, 'listener')}"
    return PatchProblem(patch.config, patch.index, reason, where, Severity.WARNING)


def _nothing_here(patch: Patch, nearest: str) -> str:
    conditions = "; ".join(_conditions(to_json(patch.match), ""))
    reason = f"{NOTHING_MATCHES}: {conditions or 'no conditions'}"
    return f"{reason} ({nearest})" if nearest else reason


def _conditions(match: Mapping[str, object], path: str) -> Iterator[str]:
    for name, value in match.items():
        if not path and name in ("context", "proxy"):
            continue
        here = f"{path}.{name}" if path else name
        if isinstance(value, Mapping):
            yield from _conditions(value, here)
        else:
            yield f"{here} {value}"
