"""What tests of Envoy's life share: a bootstrap that needs no control plane, and a runner of a test's own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from mesh_pilot.agent.base.observable import Observable
from mesh_pilot.agent.envoy.runner import EnvoyRunner
from mesh_pilot.agent.settings import AgentFolders, EnvoySettings, Ports
from tests.support.binaries import require_binary

HCM = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
ROUTER = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"


def answering(port: int, admin: int, text: str = "hello", *, cluster: dict[str, Any] | None = None) -> dict[str, Any]:
    """A bootstrap whose one listener answers each request with ``text``, or passes it to ``cluster``."""
    route: dict[str, Any] = {"match": {"prefix": "/"}}
    if cluster is None:
        route["direct_response"] = {"status": 200, "body": {"inline_string": text}}
    else:
        route["route"] = {"cluster": cluster["name"]}
    hosts = [{"name": "all", "domains": ["*"], "routes": [route]}]
    manager = {
        "@type": HCM,
        "stat_prefix": "in",
        "route_config": {"name": "in", "virtual_hosts": hosts},
        "http_filters": [{"name": "envoy.filters.http.router", "typed_config": {"@type": ROUTER}}],
    }
    listener = {
        "name": "in",
        "traffic_direction": "INBOUND",
        "address": {"socket_address": {"address": "127.0.0.1", "port_value": port}},
        "filter_chains": [
            {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
        ],
    }
    return {
        "node": {"id": "sidecar~127.0.0.1~web-1.default~default.svc.cluster.local", "cluster": "web"},
        "admin": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": admin}}},
        "static_resources": {"listeners": [listener], "clusters": [cluster] if cluster else []},
    }


@attrs.frozen
class Life:
    """A runner under test."""

    runner: EnvoyRunner
    bootstrap: Observable[Any]
    folders: AgentFolders
    port: int
    admin: int
    nursery: trio.Nursery

    async def ready(self) -> None:
        with trio.fail_after(60):
            await self.runner.ready.wait_for(bool)

    @property
    def pid(self) -> int:
        return self.runner.statistics().pid


@pytest.fixture
def life(tmp_path: Path, free_ports: Callable[[int], list[int]]) -> Callable[..., Any]:
    """``async with life() as one:`` an Envoy of ``answering``, run by a runner until the end of the block."""

    @asynccontextmanager
    async def run(bootstrap: Any = None, **settings: Any) -> AsyncIterator[Life]:
        settings.setdefault("binary", require_binary("envoy"))
        settings.setdefault("concurrency", 2)
        port, admin = free_ports(2)
        folders = AgentFolders(tmp_path / "state", tmp_path / "run")
        folders.run.mkdir(mode=0o700, exist_ok=True)
        runner = EnvoyRunner(EnvoySettings(**settings), Ports(admin=admin), folders)
        observed = Observable(answering(port, admin) if bootstrap is None else bootstrap)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runner.run, observed)
            yield Life(runner, observed, folders, port, admin, nursery)
            nursery.cancel_scope.cancel()

    return run
