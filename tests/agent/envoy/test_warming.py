"""What a real Envoy says on its admin interface of listeners and clusters that it does not use yet."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mesh_pilot.agent.bootstrap.envoy_bootstrap import to_yaml
from mesh_pilot.agent.envoy.admin import AdminClient
from mesh_pilot.agent.envoy.warming import clusters, listeners, look
from mesh_pilot.cli.demo.envoy_process import EnvoyProcess, running_envoy
from mesh_pilot.model.resource import CLUSTER, LISTENER
from mesh_pilot.model.warming import Awaited, WaitKind, WarmingResource
from tests.support.binaries import require_binary
from tests.support.envoy import eventually

AWAY = {
    "resource_api_version": "V3",
    "initial_fetch_timeout": "0s",
    "api_config_source": {
        "api_type": "GRPC",
        "transport_api_version": "V3",
        "grpc_services": [{"google_grpc": {"target_uri": "127.0.0.1:9", "stat_prefix": "away"}}],
    },
}
"""A source of configuration that never answers."""

TLS = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3."
HCM = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
ROUTER = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"


def tls_socket(kind: str, *secrets: str) -> dict[str, Any]:
    configs = [{"name": name, "sds_config": AWAY} for name in secrets]
    context = {"@type": TLS + kind, "common_tls_context": {"tls_certificate_sds_secret_configs": configs}}
    return {"name": "tls", "typed_config": context}


def listener(table: str, *secrets: str) -> dict[str, Any]:
    manager = {
        "@type": HCM,
        "stat_prefix": "web",
        "rds": {"route_config_name": table, "config_source": AWAY},
        "http_filters": [
            {"name": "extension", "config_discovery": {"type_urls": [ROUTER], "config_source": AWAY}},
            {"name": "envoy.filters.http.router", "typed_config": {"@type": ROUTER}},
        ],
    }
    chain = {"filters": [{"name": "hcm", "typed_config": manager}]}
    return {
        "@type": "type.googleapis.com/envoy.config.listener.v3.Listener",
        "name": "web one",
        "address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}},
        "filter_chains": [{**chain, "transport_socket": tls_socket("DownstreamTlsContext", *secrets)}],
    }


def cluster(name: str, kind: str, **more: Any) -> dict[str, Any]:
    message = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
    return {"@type": message, "name": name, "type": kind, "connect_timeout": "1s", **more}


class Folder:
    """The files that an Envoy takes listeners and clusters from."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.put("lds", "0")
        self.put("cds", "0")
        source = {
            f"{kind}_config": {
                "resource_api_version": "V3",
                "path_config_source": {"path": str(folder / f"{kind}.yaml")},
            }
            for kind in ("lds", "cds")
        }
        self.bootstrap: Any = {
            "node": {"id": "web-1", "cluster": "shop"},
            "admin": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}}},
            "dynamic_resources": source,
        }

    def put(self, kind: str, version: str, *resources: dict[str, Any]) -> None:
        new = self.folder / f"{kind}.new"
        new.write_text(to_yaml({"version_info": version, "resources": list(resources)}))
        new.rename(self.folder / f"{kind}.yaml")


async def seen(envoy: EnvoyProcess, count: int, *, is_live: bool = True) -> list[WarmingResource]:
    """The resources that warm, once there are so many."""
    admin = AdminClient(envoy.admin)
    found: list[WarmingResource] = []

    async def are_there() -> bool:
        found[:] = await look(admin, is_live=is_live)
        return len(found) == count

    try:
        await eventually(are_there, seconds=20, what=f"{count} resources warm: {found}")
    finally:
        admin.abort()
    return found


async def _waits_for(envoy: EnvoyProcess, awaited: Awaited) -> bool:
    admin = AdminClient(envoy.admin)
    try:
        return any(awaited in each.waits_for for each in await look(admin, is_live=True))
    finally:
        admin.abort()


LISTENING = (
    Awaited(WaitKind.ECDS, "extension"),
    Awaited(WaitKind.RDS, "my table"),
    Awaited(WaitKind.SDS, "partner cert"),
    Awaited(WaitKind.IDENTITY, "default"),
)


@pytest.mark.envoy
async def test_a_listener_and_clusters_that_wait_are_named_with_what_they_wait_for(tmp_path: Path) -> None:
    require_binary("envoy")
    files = Folder(tmp_path)
    async with running_envoy(files.bootstrap, tmp_path) as envoy:
        await envoy.wait_live()
        assert await seen(envoy, 0) == []
        files.put("lds", "v1", listener("my table", "partner cert", "default"))
        files.put(
            "cds",
            "v2",
            cluster("by eds", "EDS", eds_cluster_config={"service_name": "its endpoints", "eds_config": AWAY}),
            cluster("by tls", "STATIC", transport_socket=tls_socket("UpstreamTlsContext", "partner cert")),
        )
        found = {each.name: each for each in await seen(envoy, 3)}
        assert found["web one"].type_url == LISTENER and found["web one"].waits_for == tuple(sorted(LISTENING))
        assert found["by eds"] == WarmingResource(CLUSTER, "by eds", "", (Awaited(WaitKind.EDS, "its endpoints"),))
        assert found["by tls"] == WarmingResource(CLUSTER, "by tls", "", (Awaited(WaitKind.SDS, "partner cert"),))
        files.put("cds", "v3")
        files.put("lds", "v4", listener("another table", "partner cert", "default"))
        await eventually(partial(_waits_for, envoy, Awaited(WaitKind.RDS, "another table")), what="it is changed")
        (changed,) = await seen(envoy, 1)
        assert changed.version not in ("", found["web one"].version)
        files.put("lds", "v5")
        assert await seen(envoy, 0) == []


@pytest.mark.envoy
async def test_an_envoy_that_starts_and_waits_names_its_listener_too(tmp_path: Path) -> None:
    require_binary("envoy")
    files = Folder(tmp_path)
    files.put("lds", "v1", listener("my table", "partner cert", "default"))
    async with running_envoy(files.bootstrap, tmp_path) as envoy:
        (found,) = await seen(envoy, 1, is_live=False)
        assert (found.name, found.waits_for) == ("web one", tuple(sorted(LISTENING)))


@pytest.mark.parametrize(
    ("given", "awaited"),
    [
        ({"type": "STRICT_DNS"}, [Awaited(WaitKind.DNS)]),
        ({"type": "LOGICAL_DNS", "health_checks": [{}]}, [Awaited(WaitKind.DNS), Awaited(WaitKind.HEALTH)]),
        ({"cluster_type": {"name": "envoy.cluster.dns"}}, [Awaited(WaitKind.DNS)]),
        ({"type": "EDS", "health_checks": [{}]}, [Awaited(WaitKind.EDS, "a"), Awaited(WaitKind.HEALTH)]),
        ({"type": "STATIC"}, []),
        ({"type": "STATIC", "part": [{"name": "default", "sds_config": {}}]}, [Awaited(WaitKind.IDENTITY, "default")]),
        ({"type": "STATIC", "part": [{"name": "there", "sds_config": {}}]}, []),
    ],
)
def test_what_a_cluster_waits_for_follows_from_what_it_is(given: dict[str, Any], awaited: list[Awaited]) -> None:
    dump = {"configs": [{"version_info": "1", "cluster": {"name": "a", **given}}]}
    secrets = {"configs": [{"name": "default"}]}
    (found,) = clusters(dump, secrets)
    assert set(found.waits_for) == set(awaited)


def test_targets_that_are_not_known_are_told_as_envoy_calls_them() -> None:
    targets = [
        "shared target RemoteAsyncDataProvider",
        "target Jwks async fetching url=http://issuer",
        "shared target VhdsConfigSubscription hosts of a table",
        "target of tomorrow",
    ]
    dump = {"configs": [{"name": "a b", "warming_state": {"version_info": "1"}}, {"name": "c", "active_state": {}}]}
    unready = {"name": "init manager Listener-local-init-manager a b 12310085114726798247", "target_names": targets}
    (found,) = listeners(dump, {"unready_targets_dumps": [unready]})
    assert set(found.waits_for) == {
        Awaited(WaitKind.FETCH),
        Awaited(WaitKind.VHDS, "hosts of a table"),
        Awaited(WaitKind.OTHER, "of tomorrow"),
    }
