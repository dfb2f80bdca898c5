"""EnvoyFilters: operations that are not possible, or depend on an order that nothing says."""

from __future__ import annotations

from collections.abc import Iterator

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.explain.analysis import codes
from mesh_pilot.explain.analysis.findings import AnalysisMessage
from mesh_pilot.explain.analysis.mesh_context import AnalysisContext, found

_Operation = api.EnvoyFilterPatchOperation
_ApplyTo = api.EnvoyFilterApplyTo
_ROUTES = (_ApplyTo.ROUTE_CONFIGURATION, _ApplyTo.HTTP_ROUTE)
_REPLACEABLE = (_ApplyTo.NETWORK_FILTER, _ApplyTo.HTTP_FILTER, _ApplyTo.VIRTUAL_HOST)
_RELATIVE = (_Operation.INSERT_BEFORE, _Operation.INSERT_AFTER)


def patches(survey: AnalysisContext) -> Iterator[AnalysisMessage]:
    """Every patch of every EnvoyFilter."""
    of_versions: set[str] = set()
    for config in survey.of("EnvoyFilter"):
        spec: api.EnvoyFilter = config.spec
        for index, object_patch in enumerate(spec.config_patches):
            if object_patch.patch is None:
                break
            path, name = f"spec.configPatches[{index}]", _filter_name(object_patch)
            operation, apply_to = object_patch.patch.operation, object_patch.apply_to
            # A wrong operation has its own message; a relative one depends on what other EnvoyFilters add first.
            is_relative = operation in _RELATIVE
            if operation is _Operation.ADD and apply_to in _ROUTES:
                yield found(codes.ADD_PATCH, config, path)
            elif operation is _Operation.REMOVE and apply_to in _ROUTES:
                yield found(codes.REMOVE_PATCH, config, path)
            elif operation is _Operation.REPLACE and apply_to not in _REPLACEABLE:
                yield found(codes.REPLACE_PATCH, config, path)
            else:
                is_relative = is_relative or operation in (_Operation.REMOVE, _Operation.REPLACE)
            if is_relative and spec.priority == 0:
                type = codes.RELATIVE_PATCH_OF_VERSION if name in of_versions else codes.RELATIVE_PATCH
                yield found(type, config, path)
            match = object_patch.match
            if match is not None and match.proxy is not None and match.proxy.proxy_version:
                of_versions.add(name)


def _filter_name(patch: api.EnvoyFilterEnvoyConfigObjectPatch) -> str:
    """The name of the filter that a patch adds, else that of the one it is next to."""
    value = patch.patch.value if patch.patch is not None else None
    if value is None or not value.fields:
        return ""
    if "name" in value.fields:
        return value.fields["name"].string_value or ""
    listener = patch.match.listener if patch.match is not None else None
    chain = listener.filter_chain if listener is not None else None
    return chain.filter.name if chain is not None and chain.filter is not None else ""
