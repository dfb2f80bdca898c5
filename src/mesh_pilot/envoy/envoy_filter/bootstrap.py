"""Patches of bootstraps: sent to agents, which merge them into the bootstrap that they start Envoy with.

An Envoy gets its bootstrap before it knows a control plane, and only once. So these patches are not in any resource for
Envoy: its node says which of them its bootstrap has.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from mesh_pilot.base.protowire import field
from mesh_pilot.engine import derived
from mesh_pilot.envoy.envoy_filter.bootstrap_values import bootstrap_json
from mesh_pilot.envoy.envoy_filter.parse import patches_for
from mesh_pilot.envoy.envoy_filter.patch import ApplyTo, Patch, PatchProblem
from mesh_pilot.mesh.selection.envoy_filters import FilterRef
from mesh_pilot.model.config import Severity
from mesh_pilot.model.proxy import BOOTSTRAP_PATCH, NodeType
from mesh_pilot.world.view import View

RESOURCE = "bootstrap"


def bootstrap_patches(view: View, filters: tuple[FilterRef, ...], of: NodeType) -> tuple[Patch, ...]:
    """The patches for the bootstraps of proxies of a type, in the order in which they apply."""
    return tuple(p for p in patches_for(view, filters, None, (ApplyTo.BOOTSTRAP,)) if p.is_for_some(of))


@derived
def encoded_patches(view: View, filters: tuple[FilterRef, ...], of: NodeType) -> bytes:
    """The same, as fields of the ProxyConfig for an agent."""
    return b"".join(map(_encoded, bootstrap_patches(view, filters, of)))


def missing_patches(view: View, filters: tuple[FilterRef, ...], of: NodeType, marks: str) -> Iterator[PatchProblem]:
    """A warning for each patch that a proxy's bootstrap does not have. ``marks``: of its node."""
    merged = frozenset(marks.split(","))
    for patch in bootstrap_patches(view, filters, of):
        if _mark(patch) not in merged:
            reason = "the bootstrap does not have it: only mesh-pilot proxy merges patches, those that Envoy takes"
            yield PatchProblem(patch.config, patch.index, reason, RESOURCE, Severity.WARNING)


def _encoded(patch: Patch) -> bytes:
    texts = (patch.path, _mark(patch), bootstrap_json(patch.message))
    return field(BOOTSTRAP_PATCH, b"".join(field(number, text.encode()) for number, text in enumerate(texts, 1)))


def _mark(patch: Patch) -> str:
    return f"{zlib.crc32(f'{patch.path} {bootstrap_json(patch.message)}'.encode()):08x}"
