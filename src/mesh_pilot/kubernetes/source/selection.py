"""The selection of a Kubernetes' configuration that is read, and who follows it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

import attrs

from mesh_pilot.istio.kinds import KINDS, Kind
from mesh_pilot.kubernetes.apiserver import ApiResource, Object
from mesh_pilot.kubernetes.source.mesh_maps import MeshMapNames
from mesh_pilot.sources.base.published import Key


class ObjectObserver(Protocol):
    """A follower of the objects as the server has them, such as the writer of their status."""

    def seen(self, key: Key, resource: ApiResource, version: str, found: Object) -> None:
        """An object of ours is there, or has changed."""

    def gone(self, key: Key) -> None:
        """It is gone, or not ours any more."""


@attrs.frozen(kw_only=True)
class ConfigSelection:
    """The part of a Kubernetes' configuration that is read."""

    kinds: Mapping[str, Kind] = attrs.field(default=MappingProxyType(KINDS), repr=False)
    secrets: bool = False
    """True if credentials are read."""
    mesh: MeshMapNames | None = None
    """The ConfigMaps of the mesh config; None: they are not read."""
    revision: str = ""
    """Objects of another revision are not read; see `istio.meaning.revisions`."""


@attrs.frozen
class KubernetesStatistics:
    items: int
    rejected: int
    synced: bool
    waiting_for: str
    stale_seconds: float
    """The time for which some kind can't be read; 0 while all can."""
    trouble: str
    server: str
    kinds: Mapping[str, int]
    """Objects in force, by kind."""
    watch_errors: int = 0
    """Lists and watches that failed, since the start."""
    missing: tuple[str, ...] = ()
    """Kinds that the server does not have."""
    other_revisions: int = 0
    """Objects that are of another revision of the control plane."""
    other_namespaces: int = 0
    """Objects in namespaces that ``discoverySelectors`` leave out."""
