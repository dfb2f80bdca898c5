"""Requests to an API server. Source of the rules: Kubernetes, "API Concepts".

One connection serves all: HTTP/1.1 with as many sockets as there are watches, since a watch never ends and a stuck one
must not hold up the others. Every answer is bounded in bytes and in silence; a page that is too large is asked for
again in smaller ones. A 401 renews the credential once, because tokens of machines rotate while connections live.
Objects that only their metadata is needed of are asked for as ``PartialObjectMetadata``: a cluster's Secrets are then
names. A list that began with one ``resourceVersion`` continues with it, or begins again when the server has forgotten
it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal, Self

import attrs
import httpx
import msgspec
import trio

from mesh_pilot.kubernetes.apiserver.access import Access, KubernetesError
from mesh_pilot.kubernetes.apiserver.connections import CONNECT_SECONDS, open_http
from mesh_pilot.kubernetes.apiserver.credentials import Credential, CredentialSource
from mesh_pilot.kubernetes.apiserver.decoding import read_status
from mesh_pilot.kubernetes.apiserver.discovery import ApiDiscovery
from mesh_pilot.kubernetes.apiserver.resource import ApiResource, Object
from mesh_pilot.net.fetching import FetchError, read_body

PAGE = 500
"""Objects that are asked for at once."""

ANSWER_SECONDS = 30.0
"""The longest silence of the server within an answer."""

MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""The largest answer that is read; a larger page is asked for in smaller ones."""

CLOSE_SECONDS = 1.0

METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
METADATA_EVENT = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"

PatchKind = Literal["merge", "json", "strategic", "apply"]
_PATCHES: dict[PatchKind, str] = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "apply": "application/apply-patch+yaml",
}
_OK, _UNAUTHORIZED, _NOT_FOUND = 200, 401, 404


class ApiServerError(KubernetesError):
    """A refusal of the API server."""

    def __init__(self, status: int, reason: str, message: str, retry_after_seconds: float = 0.0) -> None:
        super().__init__(message)
        self.status = status
        """The HTTP status: 404, 409, 410, ..."""
        self.reason = reason
        """One word of the API's: ``NotFound``, ``AlreadyExists``, ``Conflict``, ``Expired``; empty if it gives none."""
        self.retry_after_seconds = retry_after_seconds
        """The time for which the server wants no requests; 0 if it does not say."""


class AnswerTooLarge(KubernetesError):
    """An answer of which the rest was not read."""


@attrs.define(eq=False)
class _Http:
    """A client with the credentials that it was made with, and how many requests use it."""

    client: httpx.AsyncClient
    credential: Credential
    files: tuple[bytes, ...]
    users: int = 0


class ApiClient:
    """A client of one API server, for everything that reads it or writes to it.

    Every method raises KubernetesError: ApiServerError if the server refuses. Credentials are those at the time of
    each request: files are read again, and after a 401 an exec plugin is asked again.

    A connection for each request at a time: HTTP/1.1. With httpx, a cancelled stream of HTTP/2 continues at the server,
    and keeps its share of the connection's window.
    State: the HTTP client in use, the credentials, whether the server streams lists.
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
        self.streams_lists = True
        """False once the server has refused a streaming list: then lists are read in pages."""
        self.discovery = ApiDiscovery(self._discover)
        """The resources that the server has; call `renew` when CRDs change."""
        self._answer_seconds = answer_seconds
        self._transport = transport
        self._credentials = CredentialSource(access)
        self._http: _Http | None = None
        self._is_open = False

    def __repr__(self) -> str:
        return f"<ApiClient {self.access.server}>"

    async def __aenter__(self) -> Self:
        self._is_open = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_open = False
        http, self._http = self._http, None
        if http is not None and not http.users:
            await _close(http.client)

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
        return await self.discovery.served_version(resource)

    async def _discover(self, path: str) -> Object | None:
        try:
            return await self.request("GET", path)
        except ApiServerError as error:
            if error.status != _NOT_FOUND:
                raise
            return None

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
        max_bytes: int = MAX_ANSWER_BYTES,
    ) -> Object:
        """The object in an answer."""
        text = await self.request_text(
            method, path, params=params, json=json, accept=accept, content_type=content_type, max_bytes=max_bytes
        )
        try:
            found = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise KubernetesError(f"{self.access.server}: {method} {path}: what answers is not an API server")
        return found

    async def request_text(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str | int] | None = None,
        json: Any = None,
        accept: str = "",
        content_type: str = "",
        max_bytes: int = MAX_ANSWER_BYTES,
    ) -> bytes:
        """The text of an answer. Raises AnswerTooLarge, too."""
        headers = {"accept": accept} if accept else {}
        body = None if json is None else msgspec.json.encode(json)
        if body is not None:
            headers["content-type"] = content_type or "application/json"
        text = bytearray()

        async def take(part: bytes) -> None:
            text.extend(part)
            if len(text) > max_bytes:
                raise AnswerTooLarge(f"{self.access.server}: {method} {path}: more than {max_bytes} bytes")

        async with self._reply(method, path, params, headers, body, self._answer_seconds) as reply:
            await self._parts(reply, take)
        return bytes(text)

    async def stream(
        self,
        path: str,
        take: Callable[[bytes], Awaitable[None]],
        *,
        params: Mapping[str, str | int],
        accept: str = "",
        opened: Callable[[], None] = lambda: None,
    ) -> None:
        """Have each part of an answer taken as it comes, until it ends, however long the server says nothing.

        ``opened`` is called once it begins. What ``take`` raises ends it.
        """
        headers = {"accept": accept} if accept else {}
        async with self._reply("GET", path, params, headers, None, None) as reply:
            opened()
            await self._parts(reply, take)

    @asynccontextmanager
    async def _reply(
        self,
        method: str,
        path: str,
        params: Mapping[str, str | int] | None,
        headers: Mapping[str, str],
        body: bytes | None,
        silence_seconds: float | None,
    ) -> AsyncIterator[httpx.Response]:
        """An answer that is not a refusal, with its body still to be read."""
        credential = await self._credentials.current()
        timeout = httpx.Timeout(self._answer_seconds, connect=CONNECT_SECONDS, read=silence_seconds)
        for is_last in (False, True):
            async with self._using(credential) as client:
                request = client.build_request(
                    method, path, params=params or None, headers=headers, content=body, timeout=timeout
                )
                if credential.authorization:
                    request.headers["authorization"] = credential.authorization
                try:
                    reply = await client.send(request, stream=True)
                except (httpx.HTTPError, httpx.InvalidURL, httpx.CookieConflict, UnicodeError) as error:
                    raise self._trouble(error, silence_seconds) from error
                try:
                    if reply.is_success:
                        yield reply
                        return
                    refusal = await self._refusal(method, path, reply)
                finally:
                    with trio.move_on_after(CLOSE_SECONDS, shield=True):
                        await reply.aclose()
            if refusal.status != _UNAUTHORIZED or is_last:
                raise refusal
            other = await self._credentials.after_refusal(credential)
            if other is None:
                raise refusal
            credential = other

    async def _refusal(self, method: str, path: str, reply: httpx.Response) -> ApiServerError:
        text = bytearray()

        async def take(part: bytes) -> None:
            text.extend(part[: _MAX_REFUSAL_BYTES - len(text)])

        await self._parts(reply, take)
        status = read_status(bytes(text))
        wait = reply.headers.get("retry-after", "")
        return ApiServerError(
            reply.status_code,
            status.reason,
            f"{self.access.server}: {method} {path} is refused: {reply.status_code} {status.message}",
            float(wait) if wait.isascii() and wait.isdigit() and len(wait) < 6 else 0.0,
        )

    async def _parts(self, reply: httpx.Response, take: Callable[[bytes], Awaitable[None]]) -> None:
        """Have each part of a body taken."""
        try:
            await read_body(reply, take)
        except FetchError as error:
            raise KubernetesError(f"{self.access.server}: it {error}") from None
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise self._trouble(error, reply.request.extensions["timeout"]["read"]) from error

    @asynccontextmanager
    async def _using(self, credential: Credential) -> AsyncIterator[httpx.AsyncClient]:
        """A client with these certificates; one whose certificates were replaced is closed after its last request."""
        if not self._is_open:
            raise RuntimeError("an ApiClient is used inside `async with`")
        files = (credential.certificate, credential.key, self.access.authority.read())
        if self._http is None or self._http.files != files:
            old, self._http = self._http, _Http(open_http(self.access, credential, self._transport), credential, files)
            if old is not None and not old.users:
                await _close(old.client)
        http = self._http
        http.users += 1
        try:
            yield http.client
        finally:
            http.users -= 1
            if http is not self._http and not http.users:
                await _close(http.client)

    def _trouble(self, error: Exception, silence_seconds: float | None) -> KubernetesError:
        match error:
            case httpx.ConnectTimeout():
                reason = f"no connection within {CONNECT_SECONDS:g} s"
            case httpx.ReadTimeout():
                reason = f"it says nothing for {silence_seconds:g} s"
            case _:
                reason = _reason(error)
        return KubernetesError(f"{self.access.server}: {' '.join(reason.split())}")


_MAX_REFUSAL_BYTES = 64 * 1024


def _reason(error: BaseException) -> str:
    """Why: TLS says so in a cause of a cause."""
    found: BaseException | None = error
    while found is not None and not (str(found) and not isinstance(found, trio.BrokenResourceError)):
        found = found.__cause__ or found.__context__
    return str(found) if found is not None else type(error).__name__


async def _close(client: httpx.AsyncClient) -> None:
    with trio.move_on_after(CLOSE_SECONDS, shield=True):
        await client.aclose()


def selectors(label_selector: str, field_selector: str) -> dict[str, str | int]:
    """The parameters of a list or watch for some objects."""
    found: dict[str, str | int] = {"labelSelector": label_selector, "fieldSelector": field_selector}
    return {name: value for name, value in found.items() if value}
