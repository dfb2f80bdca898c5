"""Deletions of single objects, told apart from those of a whole kind: an API server says DELETED in both cases.

Deleting a CustomResourceDefinition deletes all objects of its kind, mostly by accident. The server marks the
definition first (``deletionTimestamp``), so one look at it tells the two apart.
"""

from __future__ import annotations

import trio

from mesh_pilot.kubernetes.apiserver import ApiClient, ApiResource, KubernetesError
from mesh_pilot.kubernetes.source.discovery import CRDS

LOOK_SECONDS = 1.0
"""The longest wait for an answer; without one a deletion is as implausible as before."""

FRESH_SECONDS = 0.2
"""The time for which an answer counts, for deletions that come together."""

_BUILT_IN = ("", "networking.k8s.io")
"""Groups of kinds that no CRD defines."""


class StandingKinds:
    """Mutable state: the answers of late, by resource, with their times."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self._answers: dict[ApiResource, tuple[float, bool]] = {}

    def __repr__(self) -> str:
        return f"<StandingKinds {len(self._answers)} asked for>"

    async def is_explicit(self, resource: ApiResource) -> bool:
        """True if an object of a resource that went was deleted for itself. Waits for `LOOK_SECONDS` at most."""
        if resource.group in _BUILT_IN:
            return True
        at, stands = self._answers.get(resource, (-FRESH_SECONDS, False))
        if trio.current_time() >= at + FRESH_SECONDS:
            stands = await self._stands(resource)
            self._answers[resource] = trio.current_time(), stands
        return stands

    async def _stands(self, resource: ApiResource) -> bool:
        name = f"metadata.name={resource.plural}.{resource.group}"
        with trio.move_on_after(LOOK_SECONDS):
            try:
                found = await self._client.list_all(CRDS, field_selector=name, metadata_only=True, version="v1")
                return any("deletionTimestamp" not in each["metadata"] for each in found)
            except (KubernetesError, LookupError, TypeError):
                return False
        return False
