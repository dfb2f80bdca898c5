"""EnvoyFilters, parsed once: each patch as a message of Envoy's, and what is wrong with those that are not."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import structlog

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.envoy.envoy_filter.match import selected_name
from mesh_pilot.envoy.envoy_filter.patch import (
    INSERTS,
    MERGES,
    ApplyTo,
    Context,
    Operation,
    Patch,
    PatchError,
    PatchProblem,
)
from mesh_pilot.envoy.envoy_filter.values import read_value
from mesh_pilot.incremental import derived
from mesh_pilot.mesh.envoy_filter_selection import FilterRef, version_pattern
from mesh_pilot.model.config import Config, ConfigKey, Severity
from mesh_pilot.world.view import View

log = structlog.get_logger(scope="envoy")

FILTERS = frozenset((ApplyTo.LISTENER_FILTER, ApplyTo.NETWORK_FILTER, ApplyTo.HTTP_FILTER))
"""Named things in ordered lists."""

_MEMBER = MERGES | {Operation.ADD, Operation.REMOVE}

EFFECTIVE: Mapping[ApplyTo, frozenset[Operation]] = {
    ApplyTo.LISTENER: _MEMBER,
    ApplyTo.FILTER_CHAIN: _MEMBER,
    ApplyTo.LISTENER_FILTER: _MEMBER | INSERTS | {Operation.REPLACE},
    ApplyTo.NETWORK_FILTER: _MEMBER | INSERTS | {Operation.REPLACE},
    ApplyTo.HTTP_FILTER: _MEMBER | INSERTS | {Operation.REPLACE},
    ApplyTo.ROUTE_CONFIGURATION: MERGES,
    ApplyTo.VIRTUAL_HOST: _MEMBER | {Operation.REPLACE},
    ApplyTo.HTTP_ROUTE: _MEMBER | INSERTS,
    ApplyTo.CLUSTER: _MEMBER,
    ApplyTo.EXTENSION_CONFIG: frozenset((Operation.ADD,)),
}
"""The operations that mean something for each kind of object."""

_NAMED = frozenset((ApplyTo.LISTENER, ApplyTo.CLUSTER, ApplyTo.EXTENSION_CONFIG))
"""What proxies know by name: nothing without one can be added."""


@attrs.frozen
class Parsed:
    """One EnvoyFilter."""

    patches: tuple[Patch, ...]
    """Those that can be applied."""
    problems: tuple[PatchProblem, ...]


@derived
def parsed(view: View, key: ConfigKey) -> Parsed:
    """The patches of an EnvoyFilter."""
    config = view.config(key)
    return parse_filter(config) if config is not None else Parsed((), ())


@derived
def patches_for(
    view: View, filters: tuple[FilterRef, ...], context: Context | None, kinds: tuple[ApplyTo, ...]
) -> tuple[Patch, ...]:
    """The patches to objects of some kinds, generated for one of a proxy's tasks (None: for any), in the order in which
    they apply."""
    return tuple(
        patch
        for ref in filters
        for patch in parsed(view, ref.config).patches
        if patch.apply_to in kinds and patch.index not in ref.skipped and (context is None or patch.is_for(context))
    )


def parse_filter(config: Config) -> Parsed:
    """The patches of an EnvoyFilter, and everything that is wrong with them wherever they may be applied."""
    spec: api.EnvoyFilter = config.spec
    patches: list[Patch] = []
    problems: list[PatchProblem] = []
    for index, entry in enumerate(spec.config_patches):
        if _is_for_waypoints(entry):
            reason = "has no effect: it is for waypoint proxies, and there are none"
            problems.append(PatchProblem(config.key, index, reason, severity=Severity.WARNING))
            continue
        try:
            patch, doubt = _parse(config.key, index, entry)
        except PatchError as error:
            problems.append(PatchProblem(config.key, index, str(error)))
            continue
        except Exception as error:
            # A fault of ours must not cost what the patch is for: every proxy's listeners, perhaps.
            log.error(
                "EnvoyFilter patch cannot be parsed", patch=f"{config.key}: spec.configPatches[{index}]", exc_info=error
            )
            problems.append(PatchProblem(config.key, index, f"it can't be read ({type(error).__name__}: {error})"))
            continue
        patches.append(patch)
        if doubt:
            problems.append(PatchProblem(config.key, index, doubt, severity=Severity.WARNING))
    return Parsed(tuple(patches), tuple(problems))


def _parse(key: ConfigKey, index: int, entry: api.EnvoyFilterEnvoyConfigObjectPatch) -> tuple[Patch, str]:
    """A patch and what of it has no effect. Raises PatchError."""
    given = entry.patch or api.EnvoyFilterPatch()
    operation = _meant(entry.apply_to, given.operation)
    match = entry.match or api.EnvoyFilterEnvoyConfigObjectMatch()
    _check(entry.apply_to, operation, match)
    value, doubt = None, ""
    if operation is not Operation.REMOVE:
        if given.value is None:
            raise PatchError(f"patch.value is missing: {operation.name} needs it")
        value, unread = read_value(entry.apply_to, given.value)
        doubt = f"unknown fields of patch.value: {unread}; the rest of it is applied" if unread else ""
        if operation is Operation.ADD and entry.apply_to in _NAMED and not getattr(value, "name", ""):
            raise PatchError("patch.value.name is missing: what is added needs a name")
    patch = Patch(key, index, entry.apply_to, operation, match, value, given.filter_class)
    if operation in (Operation.REMOVE, Operation.REPLACE) and entry.apply_to in FILTERS and not selected_name(patch):
        raise PatchError(f"match names no filter: {operation.name} needs one")
    return patch, doubt or _unused(match)


def _is_for_waypoints(entry: api.EnvoyFilterEnvoyConfigObjectPatch) -> bool:
    match = entry.match
    return match is not None and (match.context is Context.WAYPOINT or match.waypoint is not None)


def _meant(apply_to: ApplyTo, operation: Operation) -> Operation:
    """Where order is of no account, to insert is to add."""
    ordered = INSERTS & EFFECTIVE.get(apply_to, frozenset())
    return Operation.ADD if operation in INSERTS and not ordered else operation


def _check(apply_to: ApplyTo, operation: Operation, match: api.EnvoyFilterEnvoyConfigObjectMatch) -> None:
    if apply_to is ApplyTo.BOOTSTRAP:
        raise PatchError("a proxy's bootstrap is its own: it is not sent over xDS, and nothing here can change it")
    if operation not in EFFECTIVE.get(apply_to, frozenset()):
        raise PatchError(f"{operation.name} has no meaning for {apply_to.name}")
    version = match.proxy.proxy_version if match.proxy is not None else ""
    if version and version_pattern(version) is None:
        raise PatchError(f"match.proxy.proxyVersion: {version!r} is a regular expression that can't be read here")


def _unused(match: api.EnvoyFilterEnvoyConfigObjectMatch) -> str:
    if match.listener is not None and match.listener.port_name:
        return "match.listener.portName has no effect (nor has it in Istio): name the port's number"
    return ""
