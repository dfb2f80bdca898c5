"""The names of resources that a proxy is sent, to find those that its Envoy would never get.

A name that nothing serves would hold up a listener or a cluster forever, and with it an Envoy that starts. The patches
that name it are therefore left out (see ``trials``). Credentials are not judged: one that is missing may come, as in
Istio. What other servers send is not known here, so that ``parse`` limits how long Envoy waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs
from envoy.config.core.v3.extension_pb2 import TypedExtensionConfig
from google.protobuf.message import Message

from mesh_pilot.engine import ByName, Query, derived
from mesh_pilot.envoy.endpoints.assignments import has_assignment
from mesh_pilot.envoy.envoy_filter.patch import ApplyTo
from mesh_pilot.envoy.refusals.extensions import extension_type
from mesh_pilot.envoy.refusals.waits import Wait, waits
from mesh_pilot.mesh.names.resources import CREDENTIAL_PREFIXES, FILE_CERTIFICATE_PREFIX, FILE_ROOTS_PREFIX
from mesh_pilot.mesh.proxy.plans import Plan, ResourceQuery
from mesh_pilot.mesh.proxy.scope import OutboundScope
from mesh_pilot.mesh.selection.envoy_filters import FilterRef
from mesh_pilot.model.resource import (
    ENDPOINT,
    EXTENSION,
    IDENTITY_SECRET,
    ROUTE,
    SECRET,
    TRUST_SECRET,
    Resource,
)
from mesh_pilot.world.view import View

_ANSWERED = (*CREDENTIAL_PREFIXES, FILE_CERTIFICATE_PREFIX, FILE_ROOTS_PREFIX)


@attrs.frozen(cache_hash=True)
class ServedNames:
    """The resources that a proxy can be sent by name."""

    scope: OutboundScope
    tables: ByName[Resource | None]
    extensions: Query[Plan] | None = None
    """None: names of extension configs are not judged."""


@derived
def _is_made(view: View, resource: ResourceQuery) -> bool:
    """True if there is such a resource. Derived, so that nothing depends on its content."""
    return resource.get(view) is not None


@derived
def _config_type(view: View, resource: ResourceQuery) -> str:
    """The type name of an extension config; empty if it does not exist."""
    made = resource.get(view)
    return extension_type(TypedExtensionConfig.FromString(made.body)) if made is not None else ""


def unserved(
    view: View,
    served: ServedNames,
    filters: tuple[FilterRef, ...],
    message: Message,
    before: Callable[[], Message] | None = None,
) -> Iterator[str]:
    """Reasons why Envoy would wait forever for what a message names, and what it was ``before`` patches did not."""
    named = dict.fromkeys(waits(message))
    known = frozenset(waits(before())) if named and before is not None else frozenset()
    for wait in named:
        if wait not in known and (reason := _reason(view, served, filters, wait)):
            yield reason


def _reason(view: View, served: ServedNames, filters: tuple[FilterRef, ...], wait: Wait) -> str:
    if wait.type_url == EXTENSION:
        return _extension_reason(view, served, filters, wait)
    if wait.type_url == ROUTE:
        is_served = _is_made(view, served.tables.query(wait.name))
    elif wait.type_url == ENDPOINT:
        is_served = has_assignment(view, served.scope, wait.name)
    else:
        is_served = wait.type_url == SECRET and _is_secret(served.scope, wait.name)
    return "" if is_served else _never(wait)


def _never(wait: Wait, why: str = "") -> str:
    what = f"{wait.kind} {wait.name}".rstrip()
    return f"it names the {what}, which this proxy is never sent{why}: Envoy would wait for it forever"


def _is_secret(scope: OutboundScope, name: str) -> bool:
    if name in (IDENTITY_SECRET, TRUST_SECRET):
        return scope.certified and not scope.agent_secrets
    return name.startswith(_ANSWERED)


def _extension_reason(view: View, served: ServedNames, filters: tuple[FilterRef, ...], wait: Wait) -> str:
    if served.extensions is None:
        return ""
    query = served.extensions.get(view).get(wait.name)
    kind = _config_type(view, query) if query is not None else ""
    if not kind:
        return _never(wait, _refused_config(view, filters, wait.name))
    if wait.types and kind not in wait.types:
        return (
            f"it takes {', '.join(wait.types)}, and the extension config {wait.name} is {kind}: Envoy would refuse it"
        )
    return ""


def _refused_config(view: View, filters: tuple[FilterRef, ...], name: str) -> str:
    """A note about the patch that adds an extension config that is not served; empty without one."""
    for ref in filters:
        config = view.config(ref.config)
        for index, entry in enumerate(config.spec.config_patches if config is not None else ()):
            value = entry.patch.value if entry.patch is not None else None
            field = value.fields.get("name") if value is not None else None
            if entry.apply_to is ApplyTo.EXTENSION_CONFIG and field is not None and field.string_value == name:
                skipped = "is not for it" if index in ref.skipped else "cannot be applied"
                return f" (spec.configPatches[{index}] of {ref.config}, which adds it, {skipped})"
    return ""
