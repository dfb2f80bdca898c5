"""A Kubernetes as a store: its objects, guarded by their resourceVersion, with server-side dry runs.

Source of the rules: Kubernetes, "API Concepts".
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from mesh_pilot.istio.kinds import KINDS
from mesh_pilot.kubernetes.apiserver import Access, ApiClient, ApiResource, ApiServerError, KubernetesError
from mesh_pilot.kubernetes.source.readers import resource_of
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.sources.config_store.base import ConfigConflict, ConfigRefusal, ConfigStoreError, Object, Stored
from mesh_pilot.sources.config_store.documents import version_in, without_server_fields

MANAGER = "mesh-pilot"
"""The field manager that changes are noted under."""

_KEPT = ("finalizers", "ownerReferences", "creationTimestamp")
"""Metadata that stays where the writer says nothing of it."""

_NOT_FOUND, _CONFLICT = 404, 409
_NEVER = (400, 422)


class KubernetesObjects:
    """A ``ConfigStore`` of Kubernetes. It has no state: a client for each request."""

    def __init__(self, access: Access, source: str, client: Callable[[Access], ApiClient] = ApiClient) -> None:
        self._access = access
        self._source = source
        self._client = client

    def __repr__(self) -> str:
        return f"<KubernetesObjects {self._access.server}>"

    @property
    def place(self) -> str:
        return f"Kubernetes at {self._access.server}"

    @property
    def source(self) -> str:
        return self._source

    async def read(self, key: ConfigKey, at: str = "") -> Stored | None:
        """See ``ConfigStore``."""
        async with self._open(key) as (client, resource, version):
            path = resource.path(version, key.namespace, key.name)
            try:
                return _stored(await client.get(path), path)
            except ApiServerError as error:
                if error.status == _NOT_FOUND:
                    return None
                raise

    async def write(
        self, key: ConfigKey, document: Object, instead_of: Stored | None, *, at: str = "", dry_run: bool = False
    ) -> Stored:
        """See ``ConfigStore``."""
        params = {"fieldManager": MANAGER, **({"dryRun": "All"} if dry_run else {})}
        async with self._open(key) as (client, resource, version):
            body: dict[str, Any] = {**document, "apiVersion": resource.api_version(version), "kind": resource.kind}
            path = resource.path(version, key.namespace, key.name)
            if instead_of is None:
                collection = resource.path(version, key.namespace)
                return _stored(await client.request("POST", collection, params=params, json=body), path)
            before = (instead_of.document or {}).get("metadata") or {}
            kept = {name: before[name] for name in _KEPT if name in before}
            body["metadata"] = {**kept, **document["metadata"], "resourceVersion": instead_of.version}
            with _gone_is_conflict(key):
                return _stored(await client.request("PUT", path, params=params, json=body), path)

    async def delete(self, key: ConfigKey, instead_of: Stored, *, at: str = "", dry_run: bool = False) -> None:
        """See ``ConfigStore``."""
        options: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"resourceVersion": instead_of.version},
            **({"dryRun": ["All"]} if dry_run else {}),
        }
        async with self._open(key) as (client, resource, version):
            with _gone_is_conflict(key):
                await client.request("DELETE", resource.path(version, key.namespace, key.name), json=options)

    @asynccontextmanager
    async def _open(self, key: ConfigKey) -> AsyncIterator[tuple[ApiClient, ApiResource, str]]:
        """A client, and the kind as the server has it. Raises ConfigStoreError, also for errors in the block."""
        resource = resource_of(KINDS[key.kind])
        try:
            async with self._client(self._access) as client:
                version = await client.served_version(resource)
                if not version:
                    raise ConfigRefusal(
                        f"{self._access.server} does not know {resource.plural}.{resource.group}: install its CRD"
                    )
                yield client, resource, version
        except ApiServerError as error:
            if error.status == _CONFLICT:
                raise ConfigConflict(f"{key} has changed in Kubernetes since it was read: {error}") from None
            if error.status in (*_NEVER, _NOT_FOUND):
                raise ConfigRefusal(str(error)) from None
            raise ConfigStoreError(str(error)) from None
        except KubernetesError as error:
            raise ConfigStoreError(str(error)) from None


@contextmanager
def _gone_is_conflict(key: ConfigKey) -> Iterator[None]:
    """Raise ConfigConflict where the object that is to be changed is not there."""
    try:
        yield
    except ApiServerError as error:
        if error.status == _NOT_FOUND:
            raise ConfigConflict(f"{key} is not there any more") from None
        raise


def _stored(found: Mapping[str, Any], path: str) -> Stored:
    return Stored(without_server_fields(found), version_in(found), path)
