"""EnvoyFilters, each parsed once into patches whose values are Envoy messages, and the problems found on the way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import structlog
from envoy.config.core.v3.extension_pb2 import TypedExtensionConfig
from envoy.extensions.filters.http.rbac.v3.rbac_pb2 import RBAC as HttpRbac
from envoy.extensions.filters.http.wasm.v3.wasm_pb2 import Wasm as HttpWasm
from envoy.extensions.filters.network.rbac.v3.rbac_pb2 import RBAC as NetworkRbac
from envoy.extensions.filters.network.wasm.v3.wasm_pb2 import Wasm as NetworkWasm
from envoy.extensions.wasm.v3.wasm_pb2 import FAIL_CLOSED, FAIL_RELOAD
from google.protobuf.message import Message

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.engine import derived
from mesh_pilot.envoy.core.protobuf import any_of, type_name
from mesh_pilot.envoy.envoy_filter.bootstrap_values import check_bootstrap
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
from mesh_pilot.envoy.filters.extensions import stand_in
from mesh_pilot.envoy.refusals.check import refusals
from mesh_pilot.envoy.refusals.waits import FETCH_SECONDS, limit_other_waits
from mesh_pilot.mesh.selection.envoy_filters import FilterRef
from mesh_pilot.model.config import Config, ConfigKey, Severity
from mesh_pilot.model.resource import PREFIX
from mesh_pilot.world.view import View

log = structlog.get_logger(scope="envoy")

_FILTERS = frozenset((ApplyTo.LISTENER_FILTER, ApplyTo.NETWORK_FILTER, ApplyTo.HTTP_FILTER))
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
    ApplyTo.BOOTSTRAP: frozenset((Operation.MERGE,)),
}
"""The supported operations on each kind of object."""

_NAMED = frozenset((ApplyTo.LISTENER, ApplyTo.CLUSTER, ApplyTo.EXTENSION_CONFIG))
"""Objects that are resources, and known by name: an unnamed one cannot be added."""


@attrs.frozen
class Parsed:
    """An EnvoyFilter's patches, without those that cannot be applied, and its problems."""

    patches: tuple[Patch, ...]
    problems: tuple[PatchProblem, ...]


@derived
def parsed(view: View, key: ConfigKey) -> Parsed:
    """The parsed EnvoyFilter of this key."""
    config = view.config(key)
    return parse_filter(config) if config is not None else Parsed((), ())


@derived
def patches_for(
    view: View, filters: tuple[FilterRef, ...], context: Context | None, kinds: tuple[ApplyTo, ...]
) -> tuple[Patch, ...]:
    """The patches to some kinds of objects in a context (None: in any), in the order in which they apply."""
    return tuple(
        patch
        for ref in filters
        for patch in parsed(view, ref.config).patches
        if patch.apply_to in kinds and patch.index not in ref.skipped and (context is None or patch.is_for(context))
    )


def parse_filter(config: Config) -> Parsed:
    """Parse an EnvoyFilter. The problems are those that its patches have for any resource."""
    spec: api.EnvoyFilter = config.spec
    patches: list[Patch] = []
    problems: list[PatchProblem] = []
    for index, entry in enumerate(spec.config_patches):
        if _is_for_waypoints(entry):
            reason = "has no effect: it is for waypoint proxies, and there are none"
            problems.append(PatchProblem(config.key, index, reason, severity=Severity.WARNING))
            continue
        try:
            patch, warnings = _parse(config.key, index, entry)
        except PatchError as error:
            problems.append(PatchProblem(config.key, index, str(error)))
            if error.instead is not None:
                patches.append(error.instead)
            continue
        except Exception as error:
            # A bug of ours must not cost the resources that the patch is for, which may be those of every proxy.
            log.error(
                "EnvoyFilter patch cannot be parsed", patch=f"{config.key}: spec.configPatches[{index}]", exc_info=error
            )
            problems.append(PatchProblem(config.key, index, f"it can't be read ({type(error).__name__}: {error})"))
            continue
        patches.append(patch)
        problems.extend(PatchProblem(config.key, index, text, severity=Severity.WARNING) for text in warnings)
    return Parsed(tuple(patches), tuple(problems))


def _parse(key: ConfigKey, index: int, entry: api.EnvoyFilterEnvoyConfigObjectPatch) -> tuple[Patch, list[str]]:
    """A patch, and warnings about parts of it. Raises PatchError."""
    given = entry.patch or api.EnvoyFilterPatch()
    operation = _effective_operation(entry.apply_to, given.operation)
    match = entry.match or api.EnvoyFilterEnvoyConfigObjectMatch()
    _check(entry.apply_to, operation)
    # In the order of certainty: what no proxy could take is refused here, once, before any proxy is asked. A patch that
    # would fail open is the exception: with failure_policy its filter denies, so the error carries a patch that does.
    value, warnings = None, []
    if operation is not Operation.REMOVE:
        if given.value is None:
            raise PatchError(f"patch.value is missing: {operation.name} needs it")
        value, unknown = read_value(entry.apply_to, given.value)
        warnings += [f"unknown fields of patch.value: {unknown}; the rest of it is applied"] if unknown else []
        if operation is Operation.ADD and entry.apply_to in _NAMED and not getattr(value, "name", ""):
            raise PatchError("patch.value.name is missing: what is added needs a name")
        if others := limit_other_waits(value):
            limit = f"initial_fetch_timeout is {FETCH_SECONDS} s"
            warnings.append(f"{'; '.join(others)}: another server is to send this, so {limit}")
        if entry.apply_to in _FILTERS and value.HasField("config_discovery"):
            accept_stand_ins(value)
        try:
            warnings += _refusals(entry.apply_to, operation, value)
        except PatchError as error:
            other = denying(value) if entry.apply_to is ApplyTo.EXTENSION_CONFIG else None
            if other is None:
                raise
            reason = f"{error}; what reaches its filter is denied (failure_policy)"
            raise PatchError(reason, Patch(key, index, entry.apply_to, operation, match, other)) from None
    if entry.apply_to is ApplyTo.BOOTSTRAP and value is not None:
        check_bootstrap(value)
    if entry.apply_to is ApplyTo.LISTENER and operation in MERGES and _moves_all(match, value):
        raise PatchError("patch.value.address would be that of several listeners: match one by name or portNumber")
    patch = Patch(key, index, entry.apply_to, operation, match, value, given.filter_class)
    if operation in (Operation.REMOVE, Operation.REPLACE) and entry.apply_to in _FILTERS and not selected_name(patch):
        raise PatchError(f"match names no filter: {operation.name} needs one")
    return patch, warnings + _unused_match(match)


def _refusals(apply_to: ApplyTo, operation: Operation, value: Message) -> Iterator[str]:
    """Warnings about a value that is not complete. Raises PatchError if Envoy would refuse any resource with it."""
    can_be_completed = operation in MERGES or apply_to in _FILTERS
    if found := next(refusals(value, partly=can_be_completed), ""):
        raise PatchError(f"Envoy would refuse patch.value: {found}")
    if operation not in MERGES and (found := next(refusals(value), "")):
        yield f"Envoy would refuse patch.value, unless other patches complete it: {found}"


def _moves_all(match: api.EnvoyFilterEnvoyConfigObjectMatch, value: Any) -> bool:
    """True if a value for listeners has an address, and the match names neither a listener nor a port."""
    listener = match.listener
    is_one = listener is not None and bool(listener.name or listener.port_number)
    return value is not None and value.HasField("address") and not is_one


def _is_for_waypoints(entry: api.EnvoyFilterEnvoyConfigObjectPatch) -> bool:
    match = entry.match
    return match is not None and (match.context is Context.WAYPOINT or match.waypoint is not None)


def _effective_operation(apply_to: ApplyTo, operation: Operation) -> Operation:
    """In lists whose order does not matter, to insert is to add."""
    ordered = INSERTS & EFFECTIVE.get(apply_to, frozenset())
    return Operation.ADD if operation in INSERTS and not ordered else operation


def _check(apply_to: ApplyTo, operation: Operation) -> None:
    if operation not in EFFECTIVE.get(apply_to, frozenset()):
        raise PatchError(f"{operation.name} has no meaning for {apply_to.name}")


def _unused_match(match: api.EnvoyFilterEnvoyConfigObjectMatch) -> list[str]:
    if match.listener is not None and match.listener.port_name:
        return ["match.listener.portName has no effect (nor has it in Istio): name the port's number"]
    return []


def filter_problems(view: View, filters: tuple[FilterRef, ...]) -> tuple[PatchProblem, ...]:
    """The problems of EnvoyFilters for any resource, without those of patches that are only for other proxies."""
    return tuple(
        problem for ref in filters for problem in parsed(view, ref.config).problems if problem.patch not in ref.skipped
    )


# -- extension configs with a WebAssembly module that Envoy would refuse, of which the patch says that they fail
# closed


_STAND_INS: dict[str, type[Message]] = {
    HttpWasm.DESCRIPTOR.full_name: HttpRbac,
    NetworkWasm.DESCRIPTOR.full_name: NetworkRbac,
}


def denying(value: Any) -> TypedExtensionConfig | None:
    """The extension config in place of a refused one; None if that does not ask to fail closed."""
    for kind in (HttpWasm, NetworkWasm):
        wasm: Any = kind()
        is_wasm = type_name(value.typed_config.type_url) == kind.DESCRIPTOR.full_name
        if is_wasm and value.typed_config.Unpack(wasm) and wasm.config.failure_policy in (FAIL_CLOSED, FAIL_RELOAD):
            config = stand_in(is_network=kind is NetworkWasm, passes=False)
            return TypedExtensionConfig(name=value.name, typed_config=any_of(config))
    return None


def accept_stand_ins(filter_: Any) -> None:
    """Let a filter whose config is discovered take the stand-in of a module."""
    urls = filter_.config_discovery.type_urls
    for name in [type_name(url) for url in urls]:
        other = _STAND_INS.get(name)
        if other is not None and other.DESCRIPTOR.full_name not in map(type_name, urls):
            urls.append(PREFIX + other.DESCRIPTOR.full_name)
