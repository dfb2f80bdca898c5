"""One check of the application: by HTTP, TCP, gRPC, or a command.

Over IPv4 it comes from 127.0.0.6, over IPv6 from ``::6`` where the machine has it: the rules of redirection let those
addresses pass, so that the check reaches the application and not its Envoy, which would want mutual TLS. Sources:
Istio, "Health Checking of Istio Services"; Kubernetes' rules for redirects.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import urljoin, urlsplit

import attrs
import trio

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.agent.health.probe import Check, ExecCheck, GrpcCheck, HttpCheck, TcpCheck
from mesh_pilot.agent.relay.subscriptions import ApplicationHealth
from mesh_pilot.base.protowire import WireError, field, fields, read_varint
from mesh_pilot.model.proxy import Interception
from mesh_pilot.net.rpc import AddressError, GRPCError, RpcError, Status, StreamTerminatedError, open_channel
from mesh_pilot.net.rpc.net import TcpAddress

if TYPE_CHECKING:
    import httpx

PASSED_BY_IPV4, PASSED_BY_IPV6 = "127.0.0.6", "::6"
"""Addresses from which connections to the application are not redirected into Envoy. They are Istio's."""

MOST_BODY_BYTES = 10 * 1024
"""Bytes of an answer that are passed on."""
_MOST_READ_BYTES = 1024 * 1024
_MOST_OUTPUT_BYTES = 4096
_MOST_REASON = 300
_MOST_REDIRECTS = 10
_USER_AGENT = "mesh-pilot-probe/1.0"
_HEALTH_CHECK = "/grpc.health.v1.Health/Check"
_SERVING = 1
_HOP_BY_HOP = frozenset(
    ("connection", "content-length", "host", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding")
) | {"upgrade", "expect", "accept-encoding"}


@attrs.frozen
class ApplicationAddress:
    """Where the application listens, as checks that name no host have it."""

    host: str
    source: str | None
    """Our address towards it; None: any."""

    @classmethod
    def of(cls, node: EnvoyNode) -> ApplicationAddress:
        """The instance's address, or, where nothing is redirected, the loopback: at that address listens Envoy."""
        if node.interception is Interception.NONE:
            return cls("::1" if node.is_ipv6 else "127.0.0.1", None)
        return cls(node.ip, _usable(PASSED_BY_IPV6 if node.is_ipv6 else PASSED_BY_IPV4))


def _usable(address: str) -> str | None:
    """The address if the machine has it; None otherwise."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.bind((address, 0))
    except OSError:
        return None
    return address


@attrs.frozen
class HttpAnswer:
    """The application's answer to a check over HTTP."""

    status: int
    body: bytes = b""
    """The beginning of the body."""


class CheckFailure(Exception):
    """A check that got no answer. The message says why, for users."""


class CheckRunner:
    """Makes checks. Cancelled, a check leaves nothing behind."""

    def __init__(self, application: ApplicationAddress) -> None:
        self._application = application
        self._clients: dict[str | None, httpx.AsyncClient] = {}

    async def run(self, check: Check, seconds: float) -> ApplicationHealth:
        """The result of one check that takes at most ``seconds``."""
        with trio.move_on_after(seconds):
            try:
                match check:
                    case HttpCheck():
                        answer = await self.get(check)
                        if 200 <= answer.status < 400:
                            return ApplicationHealth(True)
                        return _unhealthy(f"{check.default_name}: status {answer.status}")
                    case TcpCheck():
                        await self._connect(check)
                    case GrpcCheck():
                        await self._call(check)
                    case ExecCheck():
                        await self._execute(check)
            except CheckFailure as failure:
                return _unhealthy(f"{check.default_name}: {failure}")
            return ApplicationHealth(True)
        return _unhealthy(f"{check.default_name}: nothing within {seconds:g} s")

    async def get(self, check: HttpCheck, headers: Mapping[str, str] | None = None) -> HttpAnswer:
        """The answer over HTTP, with ``headers`` passed on; a redirect to another host is an answer of 200.

        Raises CheckFailure.
        """
        import httpx

        host, source = self._target(check.host)
        address = TcpAddress(host, check.port)
        sent = {name: value for name, value in (headers or {}).items() if name.lower() not in _HOP_BY_HOP}
        sent.setdefault("user-agent", _USER_AGENT)
        for name, value in check.headers:
            sent = {each: text for each, text in sent.items() if each.lower() != name.lower()}
            sent[name] = value
        url = f"{check.scheme}://{address}{check.path}"
        try:
            for _ in range(_MOST_REDIRECTS):
                async with self._client(source).stream("GET", url, headers=sent) as response:
                    if not 300 <= response.status_code < 400:
                        return HttpAnswer(response.status_code, await _beginning(response))
                    there = urljoin(url, response.headers.get("location", ""))
                    if not response.headers.get("location") or urlsplit(there).hostname != urlsplit(url).hostname:
                        return HttpAnswer(200)
                    url = there
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise CheckFailure(str(error) or type(error).__name__) from None
        raise CheckFailure(f"more than {_MOST_REDIRECTS} redirects")

    async def _connect(self, check: TcpCheck) -> None:
        host, source = self._target(check.host)
        try:
            stream = await trio.open_tcp_stream(host, check.port, local_address=source)
        except OSError as error:
            raise CheckFailure(error.strerror or str(error)) from None
        await trio.aclose_forcefully(stream)

    async def _call(self, check: GrpcCheck) -> None:
        host, source = self._target("")
        request = field(1, check.service.encode()) if check.service else b""
        try:
            async with open_channel(str(TcpAddress(host, check.port)), local_address=source) as channel:
                reply = await channel.unary(_HEALTH_CHECK, request, bytes)
            status = 0
            for number, kind, start, _ in fields(reply):
                if (number, kind) == (1, 0):
                    status = read_varint(reply, start)[0]
        except GRPCError as error:
            if error.status is Status.UNIMPLEMENTED:
                raise CheckFailure("it does not implement grpc.health.v1.Health") from None
            raise CheckFailure(f"status {error.status.name} {error.message or ''}".strip()) from None
        except (AddressError, RpcError, StreamTerminatedError, WireError) as error:
            raise CheckFailure(str(error)) from None
        if status != _SERVING:
            raise CheckFailure("it says that it is not serving")

    async def _execute(self, check: ExecCheck) -> None:
        """Run the command in its own process group, which does not outlive the check."""
        try:
            process = await trio.lowlevel.open_process(
                list(check.command),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise CheckFailure(error.strerror or str(error)) from None
        output = bytearray()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_collect, process, output)
                await process.wait()
                _kill_group(process.pid)  # else a child that it left could hold the pipe open
                nursery.cancel_scope.deadline = trio.current_time() + 0.2
        finally:
            _kill_group(process.pid)
            with trio.CancelScope(shield=True):
                if process.stdout is not None:
                    await process.stdout.aclose()
                await process.wait()
        if process.returncode:
            said = output.decode("utf-8", "replace").strip().splitlines()
            end = f"signal {-process.returncode}" if process.returncode < 0 else f"code {process.returncode}"
            raise CheckFailure(f"ended with {end}" + (f": {said[-1]}" if said else ""))

    def _target(self, host: str) -> tuple[str, str | None]:
        """The host to connect to, and our address."""
        if host and host != self._application.host:
            return host, None
        return self._application.host, self._application.source

    def _client(self, source: str | None) -> httpx.AsyncClient:
        import httpx

        if source not in self._clients:
            limits = httpx.Limits(max_keepalive_connections=0)
            transport = httpx.AsyncHTTPTransport(verify=False, local_address=source, limits=limits, trust_env=False)
            self._clients[source] = httpx.AsyncClient(transport=transport, timeout=None, trust_env=False)
        return self._clients[source]


async def _beginning(response: httpx.Response) -> bytes:
    """The beginning of a body; of a long one the rest is read, of one without end it is not."""
    body, size = b"", 0
    async for piece in response.aiter_raw():
        size += len(piece)
        body += piece[: MOST_BODY_BYTES - len(body)]
        if size > _MOST_READ_BYTES:
            break
    return body


async def _collect(process: trio.Process, output: bytearray) -> None:
    """Read a command's output to its end, and keep the last of it."""
    assert process.stdout is not None
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        async for data in process.stdout:
            output += data
            del output[:-_MOST_OUTPUT_BYTES]


def _kill_group(group: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _unhealthy(reason: str) -> ApplicationHealth:
    one_line = " ".join("".join(c if c.isprintable() else " " for c in reason).split())
    return ApplicationHealth(False, one_line if len(one_line) <= _MOST_REASON else one_line[: _MOST_REASON - 3] + "...")
