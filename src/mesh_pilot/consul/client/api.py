"""Queries to Consul: python-consul2's client on one httpx client on Trio.

    async with open_api(settings) as api:
        answer = await api.services(index=0, wait_seconds=0)

A query raises ConsulError with a text for people; nothing else of httpx or python-consul2 comes out.
"""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partialmethod
from typing import TypeVar
from urllib.parse import quote

import attrs
import httpx
import structlog
from consul import base

from mesh_pilot.base.reading import as_integer, as_objects
from mesh_pilot.consul.client.connections import ConnectionStack
from mesh_pilot.consul.client.service_filter import catalog_filter
from mesh_pilot.consul.client.settings import Agent, Consistency, ConsulSettings, Tls
from mesh_pilot.net.rpc import CertificateFiles, TlsError, http_client_tls
from mesh_pilot.sources.base.contract import SourceError

log = structlog.get_logger(scope="sources")

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_INDEX_DIGITS = 20
"""Of the largest index that there can be."""

T = TypeVar("T")
Parameter = tuple[str, object]


class ConsulError(SourceError):
    """A query that failed: the reason that Consul or the network gave."""


class ConsulDeniedError(ConsulError):
    """A query that the token may not send."""


@attrs.frozen
class Answer:
    """The answer to a query."""

    index: int
    """The index for the next query; 0 if Consul gave none that is usable."""
    data: object


class TokenFile:
    """A token in a file, read again when the file has changed. State: what was read, and of which file."""

    def __init__(self, agent: Agent) -> None:
        self._path = agent.token_file
        self._token = agent.token
        self._read: tuple[int, int, int] | None = None

    def token(self) -> str:
        """The token to use now; a file that can't be read keeps the last one. Raises ConsulError if there is none."""
        if self._path is None:
            return self._token
        try:
            found = self._path.stat()
            stamp = (found.st_ino, found.st_mtime_ns, found.st_size)
            if stamp != self._read:
                self._token = self._path.read_text(encoding="utf-8").strip()
                self._read = stamp
        except (OSError, UnicodeDecodeError) as error:
            if self._read is None:
                raise ConsulError(f"cannot read the token file {self._path}: {error}") from None
        return self._token


class HttpTransport(base.HTTPClient):  # type: ignore[misc]
    """The HTTP client of python-consul2, whose methods return coroutines."""

    def __init__(self, client: httpx.AsyncClient, settings: ConsulSettings) -> None:
        """`client` stays its owner's."""
        self._client = client
        self._tokens = TokenFile(settings.agent)
        self._always: list[Parameter] = []
        if settings.partition:
            self._always.append(("partition", settings.partition))
        if settings.consul_namespace:
            self._always.append(("ns", settings.consul_namespace))
        server_name = settings.agent.tls.server_name
        self._extensions = {"sni_hostname": server_name} if server_name else {}
        self._timing = settings.timing
        self.requests = 0
        """The number of requests that were sent."""

    async def get(
        self,
        callback: Callable[[base.Response], T],
        path: str,
        params: Sequence[Parameter] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> T:
        """The answer as `callback` reads it. Raises ConsulError."""
        return await self._request("GET", callback, path, params, b"", headers)

    async def _request(
        self,
        method: str,
        callback: Callable[[base.Response], T],
        path: str,
        params: Sequence[Parameter] | None = None,
        data: str | bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> T:
        every = [*(params or ()), *self._always]
        token = self._tokens.token()
        sent = {**({"X-Consul-Token": token} if token else {}), **(headers or {})}
        self.requests += 1
        try:
            reply = await self._client.request(
                method,
                quote(path, safe="/:"),
                params=[(name, str(value)) for name, value in every],
                content=data,
                headers=sent,
                timeout=httpx.Timeout(self._patience(every), connect=self._timing.connect_seconds),
                extensions=self._extensions,
            )
        except httpx.HTTPError as error:
            raise ConsulError(f"{type(error).__name__}: {_innermost_text(error)}".rstrip(": ")) from error
        try:
            return callback(base.Response(reply.status_code, reply.headers, reply.text, reply.content))
        except base.ACLPermissionDenied as error:
            raise ConsulDeniedError(f"Consul refuses {path}: {str(error).strip()}") from error
        except (base.BadRequest, base.ACLDisabled, base.NotFound) as error:
            raise ConsulError(f"Consul refuses {path}: {str(error).strip()}") from error
        except base.ConsulException as error:
            raise ConsulError(f"Consul answers {path} with {str(error).strip()}") from error
        except Exception as error:  # whatever may be wrong with a body costs this query, never the source
            raise ConsulError(f"what answers {path} is no Consul: {type(error).__name__} {error}") from error

    put = partialmethod(_request, "PUT")
    post = partialmethod(_request, "POST")
    delete = partialmethod(_request, "DELETE")

    def _patience(self, params: Sequence[Parameter]) -> float:
        """The timeout of a request in seconds: Consul adds up to a sixteenth to the wait that was asked for."""
        wait = next((float(str(value).removesuffix("ms")) / 1000 for name, value in params if name == "wait"), 0.0)
        return wait * 17 / 16 + self._timing.grace_seconds


class ConsulApi(base.Consul):  # type: ignore[misc]
    """The queries of a source. The type of an answer is checked; in it may be any JSON."""

    def __init__(self, transport: HttpTransport, settings: ConsulSettings) -> None:
        # Not super().__init__(): it would let the environment overrule where this client was told to connect.
        self.http = transport
        self.dc = settings.datacenter or None
        self.token = None
        self.consistency = settings.consistency.value
        self._settings = settings
        self._catalog_filter = catalog_filter(settings.service_filter)

    @property
    def filters_catalog(self) -> bool:
        """True if Consul is asked to leave services out of its catalog."""
        return bool(self._catalog_filter)

    async def services(self, index: int, wait_seconds: float) -> Answer:
        """All services, each with all its tags: an object; newer versions of Consul leave out what is filtered."""
        path = "/v1/catalog/services"
        if self._catalog_filter:
            try:
                return await self._asked(dict, path, index, wait_seconds, ("filter", self._catalog_filter))
            except ConsulError as error:
                if "boolean expression" not in str(error):
                    raise
                log.info("Consul rejected the catalog filter; querying services one by one", error=str(error))
                self._catalog_filter = ""
        return await self._asked(dict, path, index, wait_seconds)

    async def instances(self, name: str, index: int, wait_seconds: float) -> Answer:
        """The health entries of a service's instances: a list of ``{Node, Service, Checks}``."""
        narrowing: list[Parameter] = []
        if self._settings.service_tag:
            narrowing.append(("tag", self._settings.service_tag))
        if self._settings.service_filter:
            narrowing.append(("filter", self._settings.service_filter))
        return await self._asked(list, f"/v1/health/service/{name}", index, wait_seconds, *narrowing)

    async def checks(self, state: str, index: int, wait_seconds: float) -> Answer:
        """All checks in a state, such as ``critical``: a list of ``{Node, CheckID, ServiceName, ...}``."""
        return await self._asked(list, f"/v1/health/state/{state}", index, wait_seconds)

    async def nodes(self, index: int, wait_seconds: float) -> Answer:
        """The index of the nodes; none of them is listed."""
        return await self._asked(list, "/v1/catalog/nodes", index, wait_seconds, ("filter", 'Node == ""'))

    async def summary(self) -> Answer:
        """The outlines of all services: a list of ``{Name, Tags, Nodes, InstanceCount, Checks..., ...}``.

        This is what Consul's own web page asks for. It is not documented, and nothing depends on it: without it,
        finding out which service changed takes longer.
        """
        return await self._asked(list, "/v1/internal/ui/services", 0, 0.0)

    async def node_indexes(self) -> Mapping[str, int]:
        """The index at which each node was last modified, by its name."""
        answer = await self._asked(list, "/v1/catalog/nodes", 0, 0.0)
        return {str(node.get("Node")): as_integer(node, "ModifyIndex") for node in as_objects(answer.data)}

    async def modified_at(self, instances: Sequence[tuple[str, str]]) -> Sequence[int] | None:
        """The index at which each instance, given by node and id, was last modified; 0 for one that is gone.

        At most 64 at once. None if the token may not read all of them, or where a namespace or partition is set.
        """
        if self._settings.consul_namespace or self._settings.partition:
            return None
        found = [0] * len(instances)
        left = list(range(len(instances)))
        while left:
            gets = [
                {"Service": {"Verb": "get", "Node": instances[i][0], "Service": {"ID": instances[i][1]}}} for i in left
            ]
            params: list[Parameter] = [("dc", self.dc)] if self.dc else []
            if self._settings.consistency is not Consistency.DEFAULT:
                params.append((self.consistency, "1"))
            is_whole, answers = await self.http.put(_transaction, path="/v1/txn", params=params, data=json.dumps(gets))
            if is_whole:
                if len(answers) != len(left):
                    return None
                for i, answer in zip(left, answers, strict=True):
                    found[i] = as_integer(answer, "Service", "ModifyIndex")
                break
            # A transaction with an instance that is gone tells nothing of the others.
            gone = {answer.get("OpIndex") for answer in as_objects(answers)}
            still = [i for at, i in enumerate(left) if at not in gone]
            if len(still) == len(left):
                return None
            left = still
        return found

    async def tree(self, prefix: str, index: int, wait_seconds: float) -> Answer:
        """All keys below a prefix: a list of ``{Key, Value, ...}``, values in base64; None where there are none."""
        return await self._asked((list, type(None)), f"/v1/kv/{prefix}", index, wait_seconds, ("recurse", "1"))

    async def entries(self, kind: str, index: int, wait_seconds: float) -> Answer:
        """All config entries of a kind: a list of ``{Kind, Name, ...}``."""
        return await self._asked((list, type(None)), f"/v1/config/{kind}", index, wait_seconds)

    async def intentions(self, index: int, wait_seconds: float) -> Answer:
        """All intentions: a list of ``{SourceName, DestinationName, Action, ...}``."""
        return await self._asked((list, type(None)), "/v1/connect/intentions", index, wait_seconds)

    async def is_allowed(self, source: str, destination: str) -> object:
        """Whether intentions, or else the default policy, let a service call another: ``{Allowed}``."""
        names: list[Parameter] = [("source", source), ("destination", destination)]
        return await self._told("/v1/connect/intentions/check", *names)

    async def check_key(self, key: str) -> None:
        """Ask for one key, there or not. Raises ConsulDeniedError if the token may not read it."""
        await self._asked((list, type(None)), f"/v1/kv/{key}", 0, 0.0)

    async def check_intentions(self, service: str) -> None:
        """Ask for the intentions about a service. Raises ConsulDeniedError if the token may not read them."""
        await self._asked(dict, "/v1/connect/intentions/match", 0, 0.0, ("by", "destination"), ("name", service))

    async def agent(self) -> object:
        """The agent's own configuration: ``{Config, DebugConfig, ...}``."""
        return await self._told("/v1/agent/self")

    async def _told(self, path: str, *params: Parameter) -> object:
        """The answer of a path whose answers have no index, of any type. Raises ConsulError."""
        datacenter: list[Parameter] = [("dc", self.dc)] if self.dc else []
        found: object = await self.http.get(base.CB.json(), path=path, params=[*params, *datacenter])
        return found

    async def _asked(
        self, expected: type | tuple[type, ...], path: str, index: int, wait_seconds: float, *more: Parameter
    ) -> Answer:
        """The answer of a path, of the expected type; Consul answers null for a key that does not exist.

        python-consul2's own methods know neither filters nor, some of them, consistency. Raises ConsulError.
        """
        params: list[Parameter] = [("index", index), ("wait", _wait(wait_seconds))] if index else []
        if self.dc:
            params.append(("dc", self.dc))
        if self._settings.consistency is not Consistency.DEFAULT:
            params.append((self.consistency, "1"))
        index_found, data = await self.http.get(_json, path=path, params=[*params, *more])
        if not isinstance(data, expected):
            raise ConsulError(f"what answers {path} is no Consul: it answers with {type(data).__name__}")
        return Answer(index_found, data)


@asynccontextmanager
async def open_api(settings: ConsulSettings) -> AsyncIterator[ConsulApi]:
    """A client with its own connections, for the length of the block. Raises ConsulError for bad TLS files."""
    async with open_client(settings.agent) as client:
        yield ConsulApi(HttpTransport(client, settings), settings)


@asynccontextmanager
async def open_client(agent: Agent) -> AsyncIterator[httpx.AsyncClient]:
    """An HTTP client of an agent, without its token, for the length of the block. Raises ConsulError."""
    context = (
        _tls_context(agent.tls) if agent.base_url.startswith("https:") else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    )

    def connection() -> httpx.AsyncHTTPTransport:
        limits = httpx.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=30)
        return httpx.AsyncHTTPTransport(verify=context, limits=limits, uds=agent.socket_path or None, trust_env=False)

    user, colon, password = agent.basic_auth.partition(":")
    async with httpx.AsyncClient(
        base_url=agent.base_url,
        transport=ConnectionStack(connection),
        auth=httpx.BasicAuth(user, password) if colon else None,
        trust_env=False,
    ) as client:
        yield client


def check_files(agent: Agent) -> None:
    """Raise ConsulError for files that can't be used."""
    if agent.base_url.startswith("https:"):
        _tls_context(agent.tls)
    TokenFile(agent).token()


def _tls_context(tls: Tls) -> ssl.SSLContext:
    files = CertificateFiles(certificate=tls.certificate, key=tls.key, trusted=tls.ca_file)
    try:
        return http_client_tls(files, folder=tls.ca_path, verify=tls.verify)
    except TlsError as error:
        raise ConsulError(str(error)) from error


def _innermost_text(error: BaseException) -> str:
    """The text of the nearest error behind this one that has any."""
    nearest: BaseException | None = error
    while nearest is not None and not str(nearest):
        nearest = nearest.__cause__ or nearest.__context__
    return str(nearest or "")


def _wait(seconds: float) -> str:
    return f"{round(seconds * 1000)}ms"


def _json(response: base.Response) -> tuple[int, object]:
    """The index of a response, and its data without lone surrogates, which no output could be written with."""
    index, data = base.CB.json(index=True)(response)
    if _SURROGATE.search(response.body):
        data = _encodable(data)
    # "Sanity check index is greater than zero": 0 would not block.
    return max(1, int(index)) if index and index.isdecimal() and len(index) <= _INDEX_DIGITS else 0, data


def _transaction(response: base.Response) -> tuple[bool, list[object]]:
    """The results of a transaction, or (False) its errors."""
    if response.code not in (200, 409):
        base.CB.json()(response)  # raises what python-consul2 has for the status
    data = json.loads(response.body)
    return response.code == 200, list(data["Results" if response.code == 200 else "Errors"] or ())


def _encodable(data: object) -> object:
    if isinstance(data, str):
        return data.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(data, list):
        return [_encodable(item) for item in data]
    if isinstance(data, dict):
        return {_encodable(name): _encodable(item) for name, item in data.items()}
    return data
