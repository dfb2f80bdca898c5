"""The health that an agent finds: from its WorkloadGroup's probe, by the control plane, to the endpoints of callers."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from tests.registration.test_registered_workloads import GROUP, SERVICE, caller_of, config
from tests.support.binaries import require_binary
from tests.support.planes import running_plane
from tests.support.proxy_process import proxy_process
from tests.support.small_http import Said, small_http

ENDPOINT = "127.0.0.1:8081"


@pytest.mark.envoy
@pytest.mark.timeout(180)
async def test_callers_have_a_workload_while_its_groups_probe_succeeds_and_until_it_drains(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    require_binary("envoy")
    async with small_http({"/ready": Said(b"ok")}) as application:
        probe = f"  probe: {{periodSeconds: 1, httpGet: {{port: {application.port}, path: /ready}}}}\n"
        folder = config(tmp_path / "config", SERVICE, GROUP + probe)
        flags = ("--name=web-1", "--namespace=shop", "--service-account=web", "--ip=127.0.0.1", "--plaintext")
        with trio.fail_after(120):
            async with (
                running_plane(folder, trust_local=True) as plane,
                caller_of(plane) as caller,
                proxy_process(
                    tmp_path / "proxy",
                    free_ports(4),
                    *flags,
                    "--auto-register-group=web",
                    f"--pilot={plane.addresses.grpc}",
                ) as proxy,
            ):
                assert await caller.begin() == []
                await caller.until(ENDPOINT)
                application.answers["/ready"] = Said(b"no", status=503)
                await caller.until()
                application.answers["/ready"] = Said(b"ok")
                await caller.until(ENDPOINT)
                assert (await proxy.state())["health"]["probes"] == 1
                process = proxy.process
                assert process is not None
                process.send_signal(signal.SIGTERM)
                await caller.until()
                assert process.poll() is None  # Envoy still serves
