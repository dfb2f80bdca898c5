"""Config stores for tests: one of each kind, and a double of Consul's KV store."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs

from mesh_pilot.consul.client.kv import KvEntry, TransactionRefused
from mesh_pilot.consul.source import ConsulSettings
from mesh_pilot.consul.stores.config import ConsulConfigKeys
from mesh_pilot.istio.kinds import KINDS
from mesh_pilot.kubernetes.apiserver import ApiClient, ApiResource
from mesh_pilot.kubernetes.source.readers import resource_of
from mesh_pilot.kubernetes.stores.config import KubernetesObjects
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.sources.config_store.base import ConfigStore
from mesh_pilot.sources.config_store.folder import ConfigFolder
from tests.support.api_double import IN_MEMORY, ApiDouble

PREFIX = "mesh/config"
KEY = ConfigKey("VirtualService", "shop", "reviews")
RESOURCES: list[ApiResource] = [resource_of(kind) for kind in KINDS.values() if kind.group]


def route(timeout: str = "3s", name: str = "reviews", **metadata: Any) -> dict[str, Any]:
    """A VirtualService."""
    return {
        "apiVersion": "networking.istio.io/v1",
        "kind": "VirtualService",
        "metadata": {"name": name, "namespace": "shop", **metadata},
        "spec": {
            "hosts": ["reviews.test"],
            "http": [{"timeout": timeout, "route": [{"destination": {"host": "reviews.test"}}]}],
        },
    }


@attrs.define
class KvDouble:
    """Consul's KV store as `ConsulKv` shows it. State: the entries, and the index."""

    entries: dict[str, KvEntry] = attrs.field(factory=dict)
    index: int = 7

    async def get(self, key: str) -> tuple[KvEntry | None, int]:
        return self.entries.get(key), self.index

    async def transact(self, *operations: Mapping[str, object]) -> list[int]:
        for number, each in enumerate(operations):
            self._check(number, each)
        return [self._carry_out(each) for each in operations if each["Verb"] != "check-index"]

    def _check(self, number: int, each: Mapping[str, object]) -> None:
        entry = self.entries.get(str(each["Key"]))
        if each["Verb"] == "delete-cas" and entry is None:
            return
        if each["Index"] != (entry.modify_index if entry is not None else 0):
            raise TransactionRefused({number: f'failed to set key "{each["Key"]}", index is stale'})

    def _carry_out(self, each: Mapping[str, object]) -> int:
        key = str(each["Key"])
        self.index += 1
        if each["Verb"] == "delete-cas":
            self.entries.pop(key, None)
        else:
            self.entries[key] = KvEntry(key, base64.b64decode(str(each["Value"])), self.index, "")
        return self.index


@asynccontextmanager
async def a_store(kind: str, folder: Path) -> AsyncIterator[ConfigStore]:
    """A store of this kind, empty, without a server."""
    match kind:
        case "folder":
            (folder / "config").mkdir()
            yield ConfigFolder(folder / "config")
        case "consul":
            yield ConsulConfigKeys(ConsulSettings(config_prefix=PREFIX), kv=KvDouble())
        case _:
            double = ApiDouble(RESOURCES)
            yield KubernetesObjects(
                IN_MEMORY, "kubernetes-config", lambda access: ApiClient(access, transport=double.transport())
            )
