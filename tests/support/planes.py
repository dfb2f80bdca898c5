"""A whole control plane in a test's process, on folders of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

# Loaded by a plane's first proxy and its first page: here before, so that no time limit of a test includes it.
import mesh_pilot.envoy.catalog.generators
import mesh_pilot.ops.access.gate
import mesh_pilot.ops.app
import mesh_pilot.ops.workers  # noqa: F401
from mesh_pilot.app.control_plane import ControlPlane, control_plane
from mesh_pilot.app.settings import Settings

ANYWHERE = {
    "grpc_addr": "127.0.0.1:0",
    "secure_grpc_addr": "127.0.0.1:0",
    "http_addr": "127.0.0.1:0",
    "monitoring_addr": "127.0.0.1:0",
}

SERVICE = """\
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: reviews, namespace: shop}
spec:
  hosts: [reviews.test]
  resolution: STATIC
  ports: [{number: 9080, name: http, protocol: HTTP}]
  endpoints: [{address: 10.0.0.1, labels: {version: v1}}]
"""
"""A service in one file."""


def settings(*folders: Path, **more: Any) -> Settings:
    """Settings for tests: free ports, and a short drain."""
    return Settings(**{"config_dirs": folders, "shutdown_seconds": 2.0, **ANYWHERE, **more})


@asynccontextmanager
async def running_plane(*folders: Path, **more: Any) -> AsyncIterator[ControlPlane]:
    """A control plane that is ready, for the length of the block."""
    async with control_plane(settings(*folders, **more)) as plane:
        with trio.fail_after(60):
            await plane.wait_ready()
        yield plane
