"""A control plane in a thread, and a browser that looks at its page.

Playwright's synchronous API cannot run inside Trio's loop; so the loop has a separate thread, and tests are plain
functions.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
import trio
from envoy.config.core.v3.base_pb2 import Node
from envoy.service.discovery.v3.discovery_pb2 import DiscoveryRequest, DiscoveryResponse
from google.protobuf.json_format import ParseDict
from google.rpc.status_pb2 import Status

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.app.control_plane import ControlPlane, control_plane
from mesh_pilot.model.resource import CLUSTER
from mesh_pilot.net.rpc import Cardinality, open_channel
from tests.support.binaries import require_binary
from tests.support.planes import settings

ADS = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
T = TypeVar("T")


class PlaneThread:
    """A control plane in a separate thread, with proxies."""

    def __init__(self, plane: ControlPlane, nursery: trio.Nursery, token: trio.lowlevel.TrioToken) -> None:
        self.plane = plane
        self.url = f"http://{plane.addresses.http}"
        self._nursery = nursery
        self._token = token
        self._left: dict[str, trio.CancelScope] = {}

    def run(self, call: Callable[..., Awaitable[T]], *arguments: object) -> T:
        """Call something within the plane's loop."""
        return trio.from_thread.run(call, *arguments, trio_token=self._token)

    def connect(self, name: str, type_url: str = CLUSTER, names: Sequence[str] = (), refuses: str = "") -> None:
        """A proxy ``name.shop`` that accepts all that it is sent, or ``refuses`` it with this reason."""
        self.run(self._nursery.start, self._proxy, name, type_url, names, refuses)

    def start(self, task: Callable[..., Awaitable[object]], *arguments: object, **named: object) -> None:
        """Run a task in the plane's loop until the plane ends; it says when it has begun."""
        self.run(self._nursery.start, partial(task, **named), *arguments)

    def leave(self, name: str) -> None:
        """End a proxy's connection."""
        self.run(self._cancel, name)

    async def _cancel(self, name: str) -> None:
        self._left.pop(name).cancel()

    async def _proxy(
        self, name: str, type_url: str, names: Sequence[str], refuses: str, *, task_status: trio.TaskStatus[None]
    ) -> None:
        kinds = (Cardinality.STREAM_STREAM, DiscoveryRequest, DiscoveryResponse)
        with trio.CancelScope() as scope:
            self._left[name] = scope
            async with open_channel(self.plane.addresses.grpc) as channel, channel.request(ADS, *kinds) as call:
                node = ParseDict(EnvoyNode(name, "shop", "10.9.9.9").to_dict(), Node())
                await call.send_message(DiscoveryRequest(node=node, type_url=type_url, resource_names=names))
                is_told = False
                while (response := await call.recv_message()) is not None:
                    answer = DiscoveryRequest(type_url=type_url, resource_names=names, response_nonce=response.nonce)
                    if refuses:
                        answer.error_detail.CopyFrom(Status(code=13, message=refuses))
                    else:
                        answer.version_info = response.version_info
                    await call.send_message(answer)
                    if not is_told:
                        is_told = True
                        task_status.started()


@contextmanager
def plane_thread(*folders: Path, more_sources: Sequence[Any] = (), **more: Any) -> Iterator[PlaneThread]:
    """A control plane that is ready, for the length of the block."""
    started: list[PlaneThread] = []
    failed: list[BaseException] = []
    is_ready, end = threading.Event(), trio.Event()

    async def serve() -> None:
        async with (
            control_plane(settings(*folders, **more), more_sources=more_sources) as plane,
            trio.open_nursery() as nursery,
        ):
            with trio.fail_after(60):
                await plane.wait_ready()
            started.append(PlaneThread(plane, nursery, trio.lowlevel.current_trio_token()))
            is_ready.set()
            await end.wait()
            nursery.cancel_scope.cancel()

    def run() -> None:
        try:
            trio.run(serve)
        except BaseException as error:
            failed.append(error)
        finally:
            is_ready.set()

    thread = threading.Thread(target=run, name="plane")
    thread.start()
    try:
        is_ready.wait(90)
        if failed or not started:
            raise failed[0] if failed else TimeoutError("the control plane is not ready")
        yield started[0]
    finally:
        if started and thread.is_alive():
            started[0].run(_set, end)
        thread.join(30)
    if failed:
        raise failed[0]


async def _set(event: trio.Event) -> None:
    event.set()


@contextmanager
def browser() -> Iterator[Any]:
    """The machine's Chromium. Without it the test is skipped at a desk and fails in CI."""
    chromium = require_binary("chromium")
    api = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install playwright")
    with api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=str(chromium), args=["--no-sandbox"])
        try:
            yield found
        finally:
            found.close()
