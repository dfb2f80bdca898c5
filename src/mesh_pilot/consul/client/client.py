"""Consul's HTTP API: the endpoints of python-consul2 over a transport of ours, on httpx and Trio.

    async with open_http(agent) as http:
        client = ConsulClient(HttpTransport(lambda: nullcontext(http), agent, {}))
        index, nodes = await client.catalog.nodes()

Why python-consul2 and a transport of ours: it knows the paths, parameters and errors of Consul's API and leaves the
sending to whoever uses it. Its own transports block, or need asyncio. Its class ``Consul`` is not used: its
constructor lets CONSUL_HTTP_ADDR and CONSUL_HTTP_TOKEN overrule what was set, and fails on an address of IPv6. The
classes of its endpoints only need what `ConsulClient` has: a transport, a token, a datacenter, a consistency.

What its endpoints cannot do is in `api` and `kv`, each with the reason. A request raises ConsulError
with a line for people; nothing else of httpx or python-consul2 comes out.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partialmethod
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import httpx
from consul import base

from mesh_pilot.consul.client.connections import ConnectionStack
from mesh_pilot.consul.client.settings import Agent, Consistency, ConsulTiming, Tls
from mesh_pilot.net.rpc import CertificateFiles, TlsError, http_client_tls
from mesh_pilot.sources.base.contract import SourceError

_READS = ("/v1/catalog/", "/v1/config/", "/v1/connect/", "/v1/health/", "/v1/internal/", "/v1/kv/")
"""The paths that take a consistency. The transport says it, as python-consul2's methods for health know none."""
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")

T = TypeVar("T")
Parameter = tuple[str, object]
Connect = Callable[[], AbstractAsyncContextManager[httpx.AsyncClient]]


class ConsulError(SourceError):
    """A request that failed: the reason that Consul or the network gave."""


class ConsulDeniedError(ConsulError):
    """A request that the token may not send."""


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
    """The transport of python-consul2, whose methods return coroutines. State: the number of requests, and of bytes of
    their answers."""

    def __init__(
        self,
        connect: Connect,
        agent: Agent,
        always: Mapping[str, str],
        consistency: Consistency = Consistency.DEFAULT,
        timing: ConsulTiming | None = None,
    ) -> None:
        """`always`: parameters of every request; empty ones are left out. `consistency`: of what a source reads.

        Without a timing the caller limits the time.
        """
        self._connect = connect
        self._tokens = TokenFile(agent)
        self._always = [(name, value) for name, value in always.items() if value]
        self._consistency: list[Parameter] = []
        if consistency is not Consistency.DEFAULT:
            self._consistency.append((consistency.value, "1"))
        self._extensions = {"sni_hostname": agent.tls.server_name} if agent.tls.server_name else {}
        self._timing = timing
        self.requests = 0
        self.read_bytes = 0

    async def _request(
        self,
        method: str,
        callback: Callable[[base.Response], T],
        path: str,
        params: Sequence[Parameter] | None = None,
        data: str | bytes | None = b"",
        headers: Mapping[str, str] | None = None,
    ) -> T:
        """The answer as `callback` reads it. Raises ConsulError."""
        every = [*(params or ()), *self._always]
        if method == "GET" and path.startswith(_READS):
            every += self._consistency
        token = self._tokens.token()
        self.requests += 1
        try:
            async with self._connect() as client:
                reply = await client.request(
                    method,
                    # Whole, as httpx parses it once for each part that it has to add.
                    f"{str(client.base_url).rstrip('/')}{quote(path, safe='/:')}{_query(every)}",
                    content=data,
                    headers={**({"X-Consul-Token": token} if token else {}), **(headers or {})},
                    timeout=self._timeout(every),
                    extensions=self._extensions,
                )
        except httpx.HTTPError as error:
            raise ConsulError(f"{type(error).__name__}: {_innermost_text(error)}".rstrip(": ")) from error
        self.read_bytes += len(reply.content)
        reply.headers.setdefault("x-consul-index", "")  # python-consul2 fails without one
        try:
            text = reply.content.decode("utf-8", "replace")
            found = callback(base.Response(reply.status_code, reply.headers, text, reply.content))
            # Lone surrogates are valid in JSON, and no output could be written with them.
            return _encodable(found) if _SURROGATE.search(text) else found
        except base.ACLPermissionDenied as error:
            raise ConsulDeniedError(f"Consul refuses {path}: {str(error).strip()}") from error
        except (base.BadRequest, base.ACLDisabled, base.NotFound) as error:
            raise ConsulError(f"Consul refuses {path}: {str(error).strip()}") from error
        except base.ConsulException as error:
            raise ConsulError(f"Consul answers {path} with {str(error).strip()}") from error
        except Exception as error:  # whatever may be wrong with a body costs this query, never the source
            raise ConsulError(f"what answers {path} is not Consul: {type(error).__name__} {error}") from error

    get = partialmethod(_request, "GET")
    put = partialmethod(_request, "PUT")
    post = partialmethod(_request, "POST")
    delete = partialmethod(_request, "DELETE")

    def _timeout(self, params: Sequence[Parameter]) -> httpx.Timeout:
        if self._timing is None:
            return httpx.Timeout(None)
        wait = next((float(str(value).removesuffix("ms")) / 1000 for name, value in params if name == "wait"), 0.0)
        return httpx.Timeout(longest_wait(wait) + self._timing.grace_seconds, connect=self._timing.connect_seconds)


class ConsulClient:
    """The endpoints of one agent."""

    consistency = "default"
    token = None
    """Both are said by the transport."""

    def __init__(self, http: HttpTransport, datacenter: str = "") -> None:
        self.http = http
        self.dc = datacenter or None
        # Not base.Consul.ACL, which warns of Consul's old tokens by being made.
        self.acl_tokens = base.Consul.ACL.Tokens(self)
        self.acl_roles = base.Consul.ACL.Roles(self)
        self.agent = base.Consul.Agent(self)
        self.catalog = base.Consul.Catalog(self)
        self.health = base.Consul.Health(self)
        self.kv = base.Consul.KV(self)
        self.session = base.Consul.Session(self)


@asynccontextmanager
async def open_http(agent: Agent) -> AsyncIterator[httpx.AsyncClient]:
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


def _query(parameters: Sequence[Parameter]) -> str:
    return f"?{urlencode([(name, str(value)) for name, value in parameters])}" if parameters else ""


def wait_text(seconds: float) -> str:
    """A wait as a parameter of a blocking query."""
    return f"{round(seconds * 1000)}ms"


def longest_wait(seconds: float) -> float:
    """The longest time for which Consul blocks a query: it adds up to a sixteenth to the wait that was asked for."""
    return seconds * 17 / 16


def index_of(found: object) -> int:
    """The index in a header of an answer; 0 if it is not usable.

    "Sanity check index is greater than zero": 0 would not block. An index has at most 20 digits.
    """
    return max(1, int(found)) if isinstance(found, str) and found.isdecimal() and len(found) <= 20 else 0


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


def _encodable(data: object) -> Any:
    if isinstance(data, str):
        return data.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(data, list | tuple):
        return type(data)(map(_encodable, data))
    if isinstance(data, dict):
        return {_encodable(name): _encodable(item) for name, item in data.items()}
    return data
