"""The registry whose API server has configuration, too."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from mesh_pilot.kubernetes.apiserver import Access


@runtime_checkable
class ConfigHolder(Protocol):
    """More of a registry whose API server holds configuration, too: a Kubernetes."""

    @property
    def access(self) -> Access: ...

    @property
    def cluster_id(self) -> str: ...
