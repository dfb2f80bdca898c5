"""SDS on the agent's socket: what changes is sent, unknown names are refused, and a hostile peer hurts nobody else."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from unittest import mock

import attrs
import pytest
import trio
from envoy.extensions.transport_sockets.tls.v3.secret_pb2 import Secret
from envoy.service.discovery.v3.discovery_pb2 import (
    DeltaDiscoveryRequest,
    DeltaDiscoveryResponse,
    DiscoveryRequest,
    DiscoveryResponse,
)
from google.rpc.status_pb2 import Status as RpcStatus
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from mesh_pilot.agent.base.observable import Observable
from mesh_pilot.agent.identity.secret_service import SERVICE, SecretService
from mesh_pilot.agent.identity.secret_stream import (
    MAX_NAMES,
    DeltaSecretStream,
    SdsCounts,
    SdsError,
    Secrets,
    SecretStream,
)
from mesh_pilot.agent.identity.secrets import certificate_secret, roots_secret_of
from mesh_pilot.model.resource import CLUSTER, SECRET
from mesh_pilot.net.rpc import Cardinality, ClientCall, GRPCError, Status, open_channel, open_listeners, serve
from tests.agent.test_identity_folder import material

OWN = material()
FIRST = {"default": certificate_secret(OWN), "ROOTCA": roots_secret_of(OWN.roots)}
SECOND = {**FIRST, "default": certificate_secret(material())}


@attrs.frozen
class Served:
    secrets: Observable[Secrets]
    service: SecretService
    socket: Path


@asynccontextmanager
async def served(folder: Path, secrets: Secrets = FIRST) -> AsyncIterator[Served]:
    found: Observable[Secrets] = Observable(secrets)
    service = SecretService(found)
    path = folder / "xds.sock"
    listeners = await open_listeners(f"unix://{path}")
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(serve, [service], listeners))
        with trio.fail_after(30):
            yield Served(found, service, path)
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def subscribed(at: Served, *names: str) -> AsyncIterator[ClientCall[DiscoveryRequest, DiscoveryResponse]]:
    async with (
        open_channel(f"unix://{at.socket}") as channel,
        channel.request(
            f"{SERVICE}/StreamSecrets", Cardinality.STREAM_STREAM, DiscoveryRequest, DiscoveryResponse
        ) as call,
    ):
        await call.send_message(DiscoveryRequest(type_url=SECRET, resource_names=names))
        yield call


async def next_of(call: ClientCall[DiscoveryRequest, DiscoveryResponse], *, error: str = "") -> list[str]:
    """The versions of the certificate chains in the next response, which is answered."""
    response = await call.recv_message()
    assert response is not None
    secrets = [Secret.FromString(each.value) for each in response.resources]
    answer = DiscoveryRequest(
        type_url=SECRET, resource_names=[secret.name for secret in secrets], response_nonce=response.nonce
    )
    if error:
        answer.error_detail.CopyFrom(RpcStatus(code=13, message=error))
    else:
        answer.version_info = response.version_info
    await call.send_message(answer)
    return [secret.name for secret in secrets]


async def test_a_change_is_sent_and_only_to_those_whom_it_concerns(tmp_path: Path) -> None:
    async with (
        served(tmp_path) as at,
        subscribed(at, "default") as one,
        subscribed(at, "ROOTCA") as other,
    ):
        assert await next_of(one) == ["default"]
        assert await next_of(other) == ["ROOTCA"]
        at.secrets.set(SECOND)
        assert await next_of(one) == ["default"]
        with trio.move_on_after(0.2) as waiting:
            await other.recv_message()
        assert waiting.cancelled_caught, "the roots are the same"
        assert (at.service.counts.sent, at.service.counts.accepted) == (3, 3)


async def test_a_certificate_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    async with served(tmp_path, {}) as at, subscribed(at, "default") as call:
        with trio.move_on_after(0.2):
            await call.recv_message()
            raise AssertionError("there is none yet")
        at.secrets.set(FIRST)
        assert await next_of(call) == ["default"]


async def test_a_refusal_is_told_and_not_answered_with_the_same(tmp_path: Path) -> None:
    with capture_logs() as logs:
        async with served(tmp_path) as at, subscribed(at, "default") as call:
            await next_of(call, error="Failed to load private key")
            with trio.move_on_after(0.2) as waiting:
                await call.recv_message()
            assert waiting.cancelled_caught
            at.secrets.set(SECOND)
            await next_of(call)
            assert at.service.counts.refused == 1
    (line,) = [line for line in logs if line["event"] == "secret refused"]
    assert (line["names"], line["reason"]) == ("default", "Failed to load private key")
    assert "PRIVATE" not in str(logs)


async def test_an_unknown_name_ends_its_stream_with_a_message(tmp_path: Path) -> None:
    async with served(tmp_path) as at:
        async with subscribed(at, "kubernetes://edge") as call:
            with pytest.raises(GRPCError, match="no secret 'kubernetes://edge' at this agent") as caught:
                await call.recv_message()
        assert caught.value.status is Status.NOT_FOUND
        async with subscribed(at, "default", "kubernetes://edge") as call:
            assert await next_of(call) == ["default"]
        assert at.service.counts.unknown == 2


async def test_delta_names_what_is_not_here(tmp_path: Path) -> None:
    stream = DeltaSecretStream(SdsCounts())
    request = DeltaDiscoveryRequest(type_url=SECRET, resource_names_subscribe=["default", "no"])
    sent = stream.request(request.SerializeToString(), FIRST)
    assert sent is not None
    response = DeltaDiscoveryResponse.FromString(sent)
    assert [each.name for each in response.resources] == ["default"]
    assert list(response.removed_resources) == ["no"]
    request = DeltaDiscoveryRequest(resource_names_unsubscribe=["default"], response_nonce=response.nonce)
    assert stream.request(request.SerializeToString(), FIRST) is None
    assert stream.changed(SECOND) is None, "nobody asks for it any more"


async def test_processes_of_other_users_get_nothing_whatever_the_modes_are(tmp_path: Path) -> None:
    async with served(tmp_path) as at:
        assert at.socket.stat().st_mode & 0o777 == 0o600
        with mock.patch("mesh_pilot.net.rpc.server.uid_of", lambda _: 12345):
            async with subscribed(at, "default") as call:
                with pytest.raises(GRPCError, match="not for user 12345") as caught:
                    await call.recv_message()
        assert caught.value.status is Status.PERMISSION_DENIED
        assert at.service.counts.strangers == 1


@pytest.mark.process
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
async def test_a_process_of_another_user_is_known_by_the_kernel(tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.geteuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o011)
    async with served(tmp_path) as at:
        at.socket.chmod(0o666)

        def as_another() -> bytes:
            reading, writing = os.pipe()
            child = os.fork()
            if child == 0:
                os.setgid(12345)
                os.setuid(12345)
                sock = socket.socket(socket.AF_UNIX)
                sock.settimeout(10)
                try:
                    sock.connect(str(at.socket))
                    os.write(writing, b"connected")
                finally:
                    os._exit(0)
            os.close(writing)
            os.waitpid(child, 0)
            with os.fdopen(reading, "rb") as file:
                return file.read()

        seen: list[int | None] = []
        from mesh_pilot.net.rpc.net import uid_of

        def noted(sock: socket.socket) -> int | None:
            seen.append(uid_of(sock))
            return seen[-1]

        with mock.patch("mesh_pilot.net.rpc.server.uid_of", noted):
            assert await trio.to_thread.run_sync(as_another) == b"connected"
            while not seen:  # noqa: ASYNC110  the server has no event for it
                await trio.sleep(0.01)
        assert seen == [12345]


async def test_a_hostile_peer_costs_nobody_else_anything(tmp_path: Path) -> None:
    """Garbage, what is not a request, too many names, and one who never reads."""
    async with served(tmp_path) as at, subscribed(at, "default") as friend:
        await next_of(friend)
        for garbage in (b"\x00" * 4096, b"GET / HTTP/1.1\r\n\r\n", os.urandom(65536)):
            stream = await trio.open_unix_socket(str(at.socket))
            async with stream:
                with trio.move_on_after(1):
                    try:
                        await stream.send_all(garbage)
                        await stream.receive_some()
                    except trio.BrokenResourceError:
                        pass  # cut off, as it should be
        async with open_channel(f"unix://{at.socket}") as channel:
            for request, says in (
                (b"\xff\xff\xff", "the request"),
                (DiscoveryRequest(type_url=CLUSTER).SerializeToString(), "secrets"),
                (
                    DiscoveryRequest(
                        type_url=SECRET, resource_names=[f"file-root:/{n}" for n in range(MAX_NAMES + 1)]
                    ).SerializeToString(),
                    "more than",
                ),
            ):
                async with channel.request(f"{SERVICE}/StreamSecrets", Cardinality.STREAM_STREAM, bytes, bytes) as call:
                    await call.send_message(request)
                    with pytest.raises(GRPCError, match=says) as caught:
                        await call.recv_message()
                    assert caught.value.status is Status.INVALID_ARGUMENT
        async with subscribed(at, "default", "ROOTCA"):  # and reads nothing
            for turn in range(50):
                at.secrets.set(SECOND if turn % 2 == 0 else FIRST)
                assert await next_of(friend) == ["default"]


@given(st.lists(st.one_of(st.binary(max_size=200), st.sampled_from(["known", "delta"])), max_size=10))
def test_no_bytes_of_a_request_raise_anything_else(messages: list[bytes | str]) -> None:
    known = DiscoveryRequest(type_url=SECRET, resource_names=["default"]).SerializeToString()
    delta = DeltaDiscoveryRequest(type_url=SECRET, resource_names_subscribe=["ROOTCA"]).SerializeToString()
    for stream in (SecretStream(SdsCounts()), DeltaSecretStream(SdsCounts())):
        for message in messages:
            body = known if message == "known" else delta if message == "delta" else message
            assert isinstance(body, bytes)
            try:
                stream.request(body, FIRST)
            except SdsError as error:
                assert "\n" not in str(error)
