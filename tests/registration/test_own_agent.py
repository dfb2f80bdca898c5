"""``mesh-pilot proxy sidecar`` with a real Envoy registers itself, and reports what its group's probe finds."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from tests.registration.test_registered_workloads import GROUP, QUICK, SERVICE, caller_of, config
from tests.support.binaries import require_binary
from tests.support.planes import running_plane
from tests.support.proxy_process import proxy_process

pytestmark = [pytest.mark.envoy, pytest.mark.timeout(180)]

PROBE = "  probe: {periodSeconds: 1, failureThreshold: 1, tcpSocket: {host: 127.0.0.1, port: %d}}\n"


async def test_it_is_an_endpoint_while_its_application_answers_the_probe(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    require_binary("envoy")
    application, *ports = free_ports(5)
    folder = config(tmp_path / "config", SERVICE, GROUP + PROBE % application)
    with trio.fail_after(120):
        async with running_plane(folder, trust_local=True, registration=QUICK) as plane, caller_of(plane) as caller:
            assert await caller.begin() == []
            who = ("--name=web-1", "--namespace=shop", "--service-account=web", "--ip=127.0.0.1")
            where = (f"--pilot={plane.addresses.grpc}", "--plaintext", "--auto-register-group=web")
            async with proxy_process(tmp_path / "proxy", ports, *who, *where) as proxy:
                await proxy.wait_ready()
                assert caller.addresses() == []
                async with trio.open_nursery() as nursery:
                    listeners = await nursery.start(trio.serve_tcp, trio.aclose_forcefully, application)
                    await caller.until("127.0.0.1:8081")
                    nursery.cancel_scope.cancel()
                assert listeners
                await caller.until()
                async with trio.open_nursery() as nursery:
                    await nursery.start(trio.serve_tcp, trio.aclose_forcefully, application)
                    await caller.until("127.0.0.1:8081")
                    await proxy.end(signal.SIGKILL)
                    await caller.until()
                    nursery.cancel_scope.cancel()
