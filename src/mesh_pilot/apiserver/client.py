"""Requests to an API server. Source of the rules: Kubernetes, "API Concepts"."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal, Self

import httpx

from mesh_pilot.apiserver.access import Access, KubernetesError
from mesh_pilot.apiserver.resource import ApiResource, Object

PAGE = 500
"""Objects that are asked for at once."""

ANSWER_SECONDS = 30.0
"""The longest silence of the server within an answer."""

METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
METADATA_EVENT = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"

PatchKind = Literal["merge", "json", "strategic", "apply"]
_PATCHES: dict[PatchKind, str] = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "apply": "application/apply-patch+yaml",
}
_OK, _NOT_FOUND = 200, 404


class ApiServerError(KubernetesError):
    """A refusal of the API server."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        """Of HTTP: 404, 409, 410, ..."""
        self.reason = reason
        """One word of the API's: ``NotFound``, ``AlreadyExists``, ``Conflict``, ``Expired``; empty if it gives none."""


class ApiClient:
    """A client of one API server, for everything that reads it or writes to it.

    Every method raises KubernetesError: ApiServerError if the server refuses.
    State: the HTTP client, while it is open; the versions that the server was found to have, by group.
    """

    def __init__(
        self,
        access: Access,
        *,
        answer_seconds: float = ANSWER_SECONDS,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """``transport``: the way to the server, in place of a connection."""
        self.access = access
        self._transport = transport
        self._answer_seconds = answer_seconds
        self._http: httpx.AsyncClient | None = None

    def __repr__(self) -> str:
        return f"<ApiClient {self.access.server}>"

    async def __aenter__(self) -> Self:
        self._http = self.access.client(self._answer_seconds, self._transport)
        return self

    async def __aexit__(self, *_: object) -> None:
        http, self._http = self._http, None
        if http is not None:
            await http.aclose()

    # -- objects

    async def get(self, path: str, **params: str | int) -> Object:
        """The object or list at a path, such as that of `ApiResource.path`."""
        return await self.request("GET", path, params=params)

    async def list_all(
        self,
        resource: ApiResource,
        namespace: str = "",
        *,
        label_selector: str = "",
        field_selector: str = "",
        metadata_only: bool = False,
        version: str = "",
    ) -> list[Object]:
        """All objects; none if the server does not know the resource."""
        version = version or await self.served_version(resource)
        found: list[Object] = []
        params: dict[str, str | int] = {"limit": PAGE, **selectors(label_selector, field_selector)}
        while version:
            accept = METADATA_LIST if metadata_only else ""
            page = await self.request("GET", resource.path(version, namespace), params=params, accept=accept)
            found += page.get("items") or ()
            token = (page.get("metadata") or {}).get("continue")
            if not token:
                break
            params["continue"] = token
        return found

    async def create(self, resource: ApiResource, body: Object, namespace: str = "", *, version: str = "") -> Object:
        """The object as it was created. It gets ``apiVersion`` and ``kind`` where it has none."""
        version = version or resource.versions[-1]
        body = {"apiVersion": resource.api_version(version), "kind": resource.kind, **body}
        return await self.request("POST", resource.path(version, namespace), json=body)

    async def update(
        self, resource: ApiResource, body: Object, namespace: str = "", *, subresource: str = "", version: str = ""
    ) -> Object:
        """The object as it was written in place of the one that has its resourceVersion."""
        version = version or resource.versions[-1]
        body = {"apiVersion": resource.api_version(version), "kind": resource.kind, **body}
        path = resource.path(version, namespace, body["metadata"]["name"])
        return await self.request("PUT", f"{path}/{subresource}" if subresource else path, json=body)

    async def patch(
        self,
        resource: ApiResource,
        name: str,
        patch: Object | Sequence[Object],
        namespace: str = "",
        *,
        subresource: str = "",
        kind: PatchKind = "merge",
        field_manager: str = "",
        version: str = "",
    ) -> Object:
        """The patched object."""
        path = resource.path(version or resource.versions[-1], namespace, name)
        params: dict[str, str | int] = {"fieldManager": field_manager} if field_manager else {}
        return await self.request(
            "PATCH",
            f"{path}/{subresource}" if subresource else path,
            params=params,
            json=patch,
            content_type=_PATCHES[kind],
        )

    async def delete(self, resource: ApiResource, name: str, namespace: str = "", *, version: str = "") -> Object:
        return await self.request("DELETE", resource.path(version or resource.versions[-1], namespace, name))

    # -- what the server has

    async def served_version(self, resource: ApiResource) -> str:
        """The newest version of a resource that both sides know; empty where there is none."""
        if not resource.group:
            return resource.versions[-1]
        try:
            group = await self.request("GET", resource.group_path)
            served = {entry["version"] for entry in group["versions"]}
            for version in reversed(resource.versions):
                if version in served:
                    found = await self.request("GET", f"{resource.group_path}/{version}")
                    if any(entry["name"] == resource.plural for entry in found["resources"]):
                        return version
        except ApiServerError as error:
            if error.status != _NOT_FOUND:
                raise
        except (LookupError, TypeError) as error:
            raise KubernetesError(f"{self.access.server}: what answers is no API server") from error
        return ""

    # -- requests

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str | int] | None = None,
        json: Any = None,
        accept: str = "",
        content_type: str = "",
    ) -> Object:
        """The object in an answer."""
        headers = {"accept": accept} if accept else {}
        if content_type:
            headers["content-type"] = content_type
        try:
            reply = await self._client.request(method, path, params=params or None, json=json, headers=headers)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise KubernetesError(f"{self.access.server}: {str(error) or type(error).__name__}") from error
        return answer_of(reply)

    @asynccontextmanager
    async def stream(
        self, path: str, *, params: Mapping[str, str | int], accept: str = "", read_seconds: float
    ) -> AsyncIterator[httpx.Response]:
        """The answer to a GET while it comes in; ``read_seconds``: how long the server may say nothing.

        Raises httpx.HTTPError, too.
        """
        headers = {"accept": accept} if accept else {}
        timeout = httpx.Timeout(self._answer_seconds, read=read_seconds)
        async with self._client.stream("GET", path, params=params, headers=headers, timeout=timeout) as reply:
            if reply.status_code != _OK:
                await reply.aread()
                answer_of(reply)
            yield reply

    @property
    def _client(self) -> httpx.AsyncClient:
        if self._http is None:
            raise RuntimeError("an ApiClient is used inside `async with`")
        return self._http


def selectors(label_selector: str, field_selector: str) -> dict[str, str | int]:
    """The parameters of a list or watch for some objects."""
    found: dict[str, str | int] = {"labelSelector": label_selector, "fieldSelector": field_selector}
    return {name: value for name, value in found.items() if value}


def answer_of(reply: httpx.Response) -> Object:
    """The object in an answer. Raises KubernetesError, ApiServerError."""
    path = reply.request.url.path
    try:
        found = reply.json()
    except (ValueError, RecursionError):
        found = None
    if not reply.is_success:
        status = found if isinstance(found, dict) else {}
        message = status.get("message") or "".join(c if c.isprintable() else " " for c in reply.text[:200])
        raise ApiServerError(
            reply.status_code, str(status.get("reason") or ""), f"{path}: {reply.status_code} {message}"
        )
    if not isinstance(found, dict):
        raise KubernetesError(f"{path}: not an object of Kubernetes")
    return found
