"""The resources that an API server has: asked for at start, when a CRD comes or goes, and now and then.

Source of the rules: Kubernetes, "API Concepts", discovery; a CustomResourceDefinition is served shortly after it was
created, so what its name promises is asked for until it is there.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import structlog
import trio

from mesh_pilot.kubernetes.apiserver import ApiClient, ApiResource, ApiServerError, KubernetesError, Object
from mesh_pilot.kubernetes.source.listening import title_of

log = structlog.get_logger(scope="sources")

CRDS = ApiResource(
    "apiextensions.k8s.io", ("v1",), "customresourcedefinitions", "CustomResourceDefinition", cluster_scoped=True
)

FIRST_SECONDS, LONGEST_SECONDS = 0.5, 30.0
"""The waits between requests while the server promises a resource that it does not have yet."""

IDLE_SECONDS = 300.0
"""The longest wait where CRDs are watched,"""

BLIND_SECONDS = 30.0
"""and where they can't be."""

DOUBT_SECONDS = 15.0
"""The time for which a server is not asked again for a resource that is gone: one that starts may not know it yet."""

_NOT_FOUND = 404


async def served_versions(client: ApiClient, resources: Collection[ApiResource]) -> dict[ApiResource, frozenset[str]]:
    """The resources that the server has, each with the versions in which it does. Raises KubernetesError."""
    try:
        groups = await client.get("/apis")
        versions = {group["name"]: [each["version"] for each in group["versions"]] for group in groups["groups"]}
        found: dict[ApiResource, set[str]] = {}
        for group in sorted({resource.group for resource in resources}):
            ours = [resource for resource in resources if resource.group == group]
            if not group:
                found |= {resource: set(resource.versions) for resource in ours}
                continue
            for version in versions.get(group, ()):
                plurals = await _plurals(client, group, version)
                for resource in ours:
                    if resource.plural in plurals:
                        found.setdefault(resource, set()).add(version)
    except (LookupError, TypeError, AttributeError) as error:
        raise KubernetesError(f"{client.access.server}: what answers is not an API server") from error
    return {resource: frozenset(versions) for resource, versions in found.items()}


async def _plurals(client: ApiClient, group: str, version: str) -> frozenset[str]:
    try:
        found = await client.get(f"/apis/{group}/{version}")
    except ApiServerError as error:
        if error.status == _NOT_FOUND:  # it has gone since
            return frozenset()
        raise
    return frozenset(each["name"] for each in found["resources"])


def tell_missing(
    source: str,
    before: frozenset[ApiResource] | None,
    missing: frozenset[ApiResource],
    removed: frozenset[ApiResource],
) -> None:
    """Log what the server does not have, but for what Istio ``removed``; later on what came and what went."""
    if before is None:
        if absent := sorted(map(title_of, missing - removed)):
            log.info("the Kubernetes API server does not have all kinds", source=source, missing=absent)
        return
    if gone := sorted(map(title_of, missing - before)):
        log.warning("kinds are gone from the Kubernetes API server, with their objects", source=source, kinds=gone)
    if come := sorted(map(title_of, before - missing)):
        log.info("the Kubernetes API server has more kinds", source=source, kinds=come)


class CrdWatch:
    """The CRDs of some resources, and the moments at which it is worth to ask the server again.

    Implements ``ResourceListener``. State: the names of CRDs that are there; whether they can be watched; the event of
    the next news; how often it was asked in vain for what is promised.
    """

    def __init__(self, resources: Collection[ApiResource]) -> None:
        self._names = {f"{resource.plural}.{resource.group}": resource for resource in resources}
        self._there: set[str] = set()
        self._is_served = self._is_watched = False
        self._news = trio.Event()
        self._tries = 0

    def __repr__(self) -> str:
        return f"<CrdWatch {len(self._there)} CRDs{'' if self._is_watched else ', not watched'}>"

    def promised(self) -> frozenset[ApiResource]:
        """The resources whose CRDs are there."""
        return frozenset(self._names[name] for name in self._there)

    def may_come_back(self, resource: ApiResource) -> bool:
        """True unless we know that its CRD is gone."""
        return not self._is_watched or resource in self.promised()

    def wake(self) -> None:
        """Ask again."""
        self._tries = 0
        self._news.set()

    async def wait(self, served: Collection[ApiResource]) -> None:
        """Wait until it is worth to ask the server again, which had ``served`` the last time."""
        with trio.move_on_after(self._seconds(served)):
            await self._news.wait()
        self._news = trio.Event()

    def _seconds(self, served: Collection[ApiResource]) -> float:
        if self.promised().difference(served):
            self._tries += 1
            return min(LONGEST_SECONDS, FIRST_SECONDS * 2.0 ** (self._tries - 1))
        self._tries = 0
        return IDLE_SECONDS if self._is_watched else BLIND_SECONDS

    # -- ResourceListener

    async def listed(self, resource: ApiResource, version: str, objects: Sequence[Object]) -> None:
        there = {name for found in objects if (name := _name(found)) in self._names}
        if there != self._there:
            self._there = there
            self.wake()
        self._is_served = self._is_watched = bool(version)

    async def changed(self, resource: ApiResource, version: str, found: Object, *, there: bool) -> None:
        name = _name(found)
        if name in self._names:
            (self._there.add if there else self._there.discard)(name)
            self.wake()

    def lost(self, resource: ApiResource, reason: str) -> None:
        self._is_watched = False

    def found(self, resource: ApiResource) -> None:
        """It is watched once it is listed."""
        self._is_watched = self._is_served


def _name(found: Object) -> str:
    return str(found["metadata"].get("name", ""))
