"""The names of resources and their paths. Source of the rules: Kubernetes, "API Concepts"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import attrs

Object = Mapping[str, Any]
"""An object of Kubernetes, as decoded JSON."""


@attrs.frozen
class ApiResource:
    """A collection of objects of one kind: ``ApiResource("", ("v1",), "pods", "Pod")``."""

    group: str
    """Empty: the core API."""
    versions: tuple[str, ...]
    """The versions that we understand, oldest first."""
    plural: str
    kind: str
    cluster_scoped: bool = False

    def path(self, version: str, namespace: str = "", name: str = "") -> str:
        """The path of an object; without ``name``, of all; without ``namespace``, of all namespaces."""
        return "/".join(
            [
                self.group_path,
                version,
                *(["namespaces", namespace] if namespace and not self.cluster_scoped else []),
                self.plural,
                *([name] if name else []),
            ]
        )

    @property
    def group_path(self) -> str:
        return f"/apis/{self.group}" if self.group else "/api"

    def api_version(self, version: str) -> str:
        """``apiVersion`` of an object."""
        return f"{self.group}/{version}" if self.group else version


class ResourceListener(Protocol):
    """The receiver of the objects of a resource; ``version`` is that of the API in which they are."""

    async def listed(self, resource: ApiResource, version: str, objects: list[Any]) -> None:
        """All there is; none in version ``""`` if the server does not know the resource."""

    async def changed(self, resource: ApiResource, version: str, found: Any, *, there: bool) -> None:
        """An object came, changed or, without ``there``, went.

        Of one that went there may be no more than ``metadata`` with its name and namespace.
        """

    def lost(self, resource: ApiResource, reason: str) -> None:
        """It can't be read at present: its last objects stay."""

    def found(self, resource: ApiResource) -> None:
        """It can be read."""
