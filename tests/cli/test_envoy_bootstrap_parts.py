"""``mesh-pilot envoy-bootstrap`` with a ProxyConfig: the same parts as the agent's, from the same place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest
import yaml

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode, envoy_bootstrap
from mesh_pilot.agent.bootstrap.standalone import with_proxy_config
from mesh_pilot.agent.run.bootstrap import agent_bootstrap
from mesh_pilot.agent.settings import AgentFolders, AgentSettings, PlaneSettings
from mesh_pilot.cli.demo.envoy_process import running_envoy
from tests.agent.test_proxy_config import EVERYTHING
from tests.support.command import mesh_pilot
from tests.support.envoy import eventually, http_client
from tests.support.planes import SERVICE, running_plane

NODE = EnvoyNode("web-1", ip="10.1.1.1", labels={"app": "web"})
CONFIG = {name: value for name, value in EVERYTHING.items() if name != "tracing"} | {
    "tracing": {"zipkin": {"address": "zipkin.local:9411"}, "sampling": 12.5},
    "statsdUdpAddress": "127.0.0.1:8125",
    "meshId": "m",
}
ANNOTATIONS = {"sidecar.istio.io/statsInclusionPrefixes": "cluster.outbound,{pod_ip}"}
BASIC = ("envoy-bootstrap", "--id", "web-1", "--ip", "10.1.1.1")


def test_a_proxy_config_makes_the_same_parts_as_beside_an_agent(tmp_path: Path) -> None:
    node = attrs.evolve(NODE, metadata={"ANNOTATIONS": ANNOTATIONS})
    folders = AgentFolders(tmp_path, tmp_path)
    settings = AgentSettings(node, folders, PlaneSettings(()), proxy_config=CONFIG, traffic=False)  # it has no reader
    beside: Any = agent_bootstrap(settings)
    alone: Any = with_proxy_config(envoy_bootstrap(NODE, "127.0.0.1:15010"), NODE, CONFIG, ANNOTATIONS)
    for part in ("layered_runtime", "overload_manager", "stats_config", "stats_sinks", "tracing"):
        assert alone[part] == beside[part], part
    assert alone["node"]["cluster"] == beside["node"]["cluster"]
    for name in ("A", "MESH_ID", "ANNOTATIONS"):
        assert alone["node"]["metadata"][name] == beside["node"]["metadata"][name]
    assert alone["node"]["metadata"]["PROXY_CONFIG"]["tracing"]["sampling"] == 12.5
    servers = alone["static_resources"]["clusters"][1:]
    assert [cluster["name"] for cluster in servers] == ["zipkin", "envoy_metrics_service"]
    assert servers == beside["static_resources"]["clusters"][-2:]


def test_without_a_proxy_config_nothing_of_it_is_there() -> None:
    bootstrap = yaml.safe_load(mesh_pilot(*BASIC).out)
    always = {"node", "admin", "dynamic_resources", "static_resources", "cluster_manager", "layered_runtime"}
    assert bootstrap.keys() == always
    assert bootstrap["cluster_manager"].keys() == {"load_stats_config"}


@pytest.mark.parametrize(
    "flags",
    [
        ("--metadata", "ENABLE_SELF_DISCOVERY=true"),
        ("--proxy-config", "{proxyMetadata: {ISTIO_META_ENABLE_SELF_DISCOVERY: 'true'}}"),
    ],
)
def test_a_local_cluster_is_there_on_request(flags: tuple[str, ...]) -> None:
    bootstrap = yaml.safe_load(mesh_pilot(*BASIC, *flags).out)
    assert bootstrap["cluster_manager"]["local_cluster_name"] == "local_cluster"
    assert bootstrap["static_resources"]["clusters"][-1]["name"] == "local_cluster"


def test_flags_of_envoy_are_in_the_line_that_starts_it_and_what_has_no_effect_is_said() -> None:
    config = "{concurrency: 2, drainDuration: 20s, fileFlushMinSizeKb: 64, statusPort: 15020, discoveryAddress: 'a:1'}"
    done = mesh_pilot(*BASIC, "--proxy-config", config, "--annotation", "sidecar.istio.io/statsFlush=5")
    assert done.code == 0
    flags = "--drain-time-s 20 --drain-strategy immediate --file-flush-min-size-kb 64 --concurrency 2"
    assert f"envoy -c FILE {flags}" in done.err
    assert "statusPort has no effect: mesh-pilot proxy has it" in done.err
    assert "discoveryAddress has no effect: use --pilot" in done.err
    assert "sidecar.istio.io/statsFlush has no effect" in done.err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--proxy-config", "["), "this is not YAML"),
        (("--proxy-config", "{concurrency: two}"), "concurrency: expected a whole number, got the string 'two'"),
        (("--proxy-config", "{statsdUdpAddress: here}"), "statsdUdpAddress: 'here' is not host:port"),
        (
            ("--proxy-config", "{tracing: {zipkin: {address: 'z:1'}, tlsSettings: {mode: ISTIO_MUTUAL}}}"),
            "tracing: without an agent, tlsSettings take files",
        ),
        (("--annotation", "proxy.istio.io/config=x"), "--annotation proxy.istio.io/config: expected an object"),
        (("--custom-bootstrap", "/nowhere.yaml"), "custom bootstrap /nowhere.yaml: No such file"),
    ],
)
def test_a_mistake_is_one_line(flags: tuple[str, ...], message: str) -> None:
    done = mesh_pilot(*BASIC, *flags)
    assert (done.code != 0, done.out, done.err.count("\n")) == (True, "", 1)
    assert message in done.err


@pytest.mark.envoy
async def test_a_real_envoy_has_istios_ports_tags_and_a_part_of_ones_own(
    tmp_path: Path, envoy_binary: Path, free_ports: Callable[[int], list[int]]
) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "reviews.yaml").write_text(SERVICE)
    (tmp_path / "custom.yaml").write_text("stats_flush_interval: 7s\n")
    readiness, prometheus, admin = free_ports(3)
    ports = (f"--readiness-port={readiness}", f"--prometheus-port={prometheus}", f"--admin=127.0.0.1:{admin}")
    async with running_plane(tmp_path / "config") as plane, http_client() as client:
        written = mesh_pilot(
            *("envoy-bootstrap", "--id", "web-1", "--namespace", "shop", "--ip", "127.0.0.1", "--interception", "NONE"),
            *("--pilot", plane.addresses.grpc or "", *ports, f"--custom-bootstrap={tmp_path / 'custom.yaml'}"),
            *("--proxy-config", "{proxyStatsMatcher: {inclusionPrefixes: [cluster.outbound]}}"),
        )
        bootstrap = yaml.safe_load(written.out)
        assert bootstrap["stats_flush_interval"] == "7s"
        async with running_envoy(bootstrap, tmp_path):

            async def is_ready() -> bool:
                try:
                    return (await client.get(f"http://127.0.0.1:{readiness}/healthz/ready")).status_code == 200
                except httpx.HTTPError:
                    return False

            await eventually(is_ready, what="readiness")
            metrics = (await client.get(f"http://127.0.0.1:{prometheus}/stats/prometheus")).text
            assert 'envoy_cluster_membership_total{cluster_name="outbound|9080||reviews.test"} 1' in metrics
            for port, path in ((readiness, "/stats"), (readiness, "/healthz/readyz"), (prometheus, "/ready")):
                assert (await client.get(f"http://127.0.0.1:{port}{path}")).status_code == 404
