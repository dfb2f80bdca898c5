"""The bootstrap next to an agent: what a ProxyConfig makes of it, and that a real Envoy runs on it."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest
import structlog.testing
import trio

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.agent.bootstrap.metrics_filter import metrics_filter
from mesh_pilot.agent.bootstrap.statistics_config import TRAFFIC
from mesh_pilot.agent.run.bootstrap import agent_bootstrap, envoy_settings, termination_drain_seconds
from mesh_pilot.agent.settings import (
    AgentError,
    AgentFolders,
    AgentSettings,
    CredentialSettings,
    DnsSettings,
    PlaneSettings,
    Ports,
)
from mesh_pilot.cli.demo.envoy_process import running_envoy
from tests.agent.test_proxy_config import EVERYTHING, encoded
from tests.support.envoy import eventually

CLUSTERS = ["xds-grpc", "sds-grpc", "prometheus_stats", "agent"]
LOAD_STATS = {
    "api_type": "GRPC",
    "transport_api_version": "V3",
    "grpc_services": [{"envoy_grpc": {"cluster_name": "xds-grpc"}}],
}


@pytest.fixture
def settings(tmp_path: Path) -> AgentSettings:
    folders = AgentFolders(state=tmp_path / "state", run=tmp_path)
    return AgentSettings(EnvoyNode("web-1", ip="10.1.1.1", labels={"app": "web"}), folders, PlaneSettings(()))


def with_config(settings: AgentSettings, **config: Any) -> AgentSettings:
    return attrs.evolve(settings, proxy_config=config)


def with_annotations(settings: AgentSettings, **annotations: str) -> AgentSettings:
    named = {f"sidecar.istio.io/{name}": value for name, value in annotations.items()}
    return attrs.evolve(settings, node=attrs.evolve(settings.node, metadata={"ANNOTATIONS": named}))


def names(bootstrap: Any, kind: str) -> list[str]:
    return [part["name"] for part in bootstrap["static_resources"][kind]]


@pytest.mark.parametrize(
    ("ip", "other", "expected"),
    [
        ("10.1.1.1", "", ["0.0.0.0"]),
        ("2001:db8::1", "", [":: and IPv4"]),
        ("10.1.1.1", "2001:db8::1", ["0.0.0.0", "::"]),
        ("2001:db8::1", "10.1.1.1", ["::", "0.0.0.0"]),
    ],
)
def test_listeners_are_at_addresses_of_the_nodes_ip_versions(
    settings: AgentSettings, ip: str, other: str, expected: list[str]
) -> None:
    node = attrs.evolve(settings.node, ip=ip, other_ip=other)
    bootstrap: Any = agent_bootstrap(attrs.evolve(settings, node=node))
    assert bootstrap["node"]["metadata"]["INSTANCE_IPS"] == ",".join(filter(None, (ip, other)))
    for listener in bootstrap["static_resources"]["listeners"]:
        also = [each["address"] for each in listener.get("additional_addresses", ())]
        bound = [each["socket_address"] for each in (listener["address"], *also)]
        assert [f"{b['address']}{' and IPv4' * b.get('ipv4_compat', False)}" for b in bound] == expected


def patterns(bootstrap: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = bootstrap["stats_config"]["stats_matcher"]["inclusion_list"]["patterns"]
    return found


def test_clusters_and_listeners_are_those_of_istio(settings: AgentSettings) -> None:
    bootstrap: Any = agent_bootstrap(settings)
    assert names(bootstrap, "clusters") == CLUSTERS
    assert names(bootstrap, "listeners") == ["0.0.0.0_15090", "0.0.0.0_15021"]
    for cluster in bootstrap["static_resources"]["clusters"][:2]:
        (endpoints,) = cluster["load_assignment"]["endpoints"]
        assert endpoints["lb_endpoints"][0]["endpoint"]["address"] == {"pipe": {"path": str(settings.folders.socket)}}
    assert "tracing" not in bootstrap
    assert "stats_sinks" not in bootstrap


def test_ports_of_zero_are_no_listeners_and_spires_socket_serves_the_certificate(settings: AgentSettings) -> None:
    settings = attrs.evolve(
        settings,
        ports=Ports(readiness=0, prometheus=0),
        credentials=CredentialSettings(sds_socket=Path("/run/spire/agent.sock")),
    )
    bootstrap: Any = agent_bootstrap(settings)
    assert names(bootstrap, "listeners") == []
    assert "/run/spire/agent.sock" in json.dumps(bootstrap["static_resources"]["clusters"][1])
    assert bootstrap["node"]["metadata"]["AGENT_SECRETS"] == "true"


def test_what_a_machine_says_of_itself_is_over_the_control_plane_and_that_over_its_annotation(
    settings: AgentSettings,
) -> None:
    annotated = {"proxyMetadata": {"ISTIO_META_A": "annotation", "ISTIO_META_B": "annotation"}}
    settings = attrs.evolve(
        settings,
        annotated_proxy_config=annotated,
        node=attrs.evolve(settings.node, metadata={"C": "machine"}),
    )
    plane = encoded({"proxyMetadata": {"ISTIO_META_B": "plane", "ISTIO_META_C": "plane"}})
    bootstrap: Any = agent_bootstrap(settings, plane)
    assert {name: bootstrap["node"]["metadata"][name] for name in "ABC"} == {
        "A": "annotation",
        "B": "plane",
        "C": "machine",
    }
    without: Any = agent_bootstrap(settings)
    assert without["node"]["metadata"]["B"] == "annotation"


def test_an_envoy_that_discovers_itself_has_a_local_cluster(settings: AgentSettings) -> None:
    plane = encoded({"proxyMetadata": {"ISTIO_META_ENABLE_SELF_DISCOVERY": "true"}})
    bootstrap: Any = agent_bootstrap(settings, plane)
    assert bootstrap["cluster_manager"]["local_cluster_name"] == "local_cluster"
    assert bootstrap["cluster_manager"]["load_stats_config"] == LOAD_STATS
    assert names(bootstrap, "clusters") == [*CLUSTERS, "local_cluster"]
    assert bootstrap["node"]["metadata"]["ENABLE_SELF_DISCOVERY"] == "true"
    says_no = with_config(settings, proxyMetadata={"ISTIO_META_ENABLE_SELF_DISCOVERY": "false"})
    for other in (agent_bootstrap(settings), agent_bootstrap(says_no, plane)):
        assert other["cluster_manager"] == {"load_stats_config": LOAD_STATS}
        assert names(other, "clusters") == CLUSTERS


def test_a_drain_that_cannot_be_read_is_left_out(settings: AgentSettings) -> None:
    with structlog.testing.capture_logs() as logs:
        found = envoy_settings(settings, encoded({"proxyMetadata": {"MINIMUM_DRAIN_DURATION": "soon"}}))
    assert found.minimum_drain == 5.0
    assert "proxyMetadata.MINIMUM_DRAIN_DURATION: 'soon' is not a duration" in logs[0]["reason"]


def test_a_node_says_that_it_captures_dns_only_if_it_does(settings: AgentSettings) -> None:
    plane = encoded({"proxyMetadata": {"ISTIO_META_DNS_CAPTURE": "true"}})
    with structlog.testing.capture_logs() as logs:
        without: Any = agent_bootstrap(settings, plane)
        assert "DNS_CAPTURE" not in without["node"]["metadata"]
    assert [line["event"] for line in logs] == ["dns is not captured"]
    with structlog.testing.capture_logs() as logs:
        captured: Any = agent_bootstrap(attrs.evolve(settings, dns=DnsSettings(enabled=True)), plane)
        assert captured["node"]["metadata"]["DNS_CAPTURE"] == "true"
    assert logs == []


def test_a_proxy_without_credentials_gets_its_secrets_from_the_control_plane(settings: AgentSettings) -> None:
    bootstrap: Any = agent_bootstrap(settings)
    assert "AGENT_SECRETS" not in bootstrap["node"]["metadata"]


@pytest.mark.parametrize(
    ("config", "clusters", "parts"),
    [
        ({"tracing": {"zipkin": {"address": "z:9411"}}}, ["zipkin"], ["envoy.tracers.zipkin"]),
        ({"zipkinAddress": "z:9411"}, ["zipkin"], ["envoy.tracers.zipkin"]),
        ({"tracing": {"datadog": {"address": "d:8126"}}}, ["datadog_agent"], ["envoy.tracers.datadog", "web.default"]),
        ({"statsdUdpAddress": "10.0.0.1:8125"}, [], ["envoy.stat_sinks.statsd", "10.0.0.1"]),
        (
            {"envoyMetricsService": {"address": "m:1", "tlsSettings": {"mode": "ISTIO_MUTUAL"}}},
            ["envoy_metrics_service"],
            ["envoy.stat_sinks.metrics_service", "ROOTCA"],
        ),
        ({"envoyAccessLogService": {"address": "[::1]:1"}}, ["envoy_accesslog_service"], ['"address": "::1"']),
        ({"runtimeValues": {"x.y": "true"}}, [], ['"x.y": true']),
        ({"connectionSettings": {"globalDownstreamConnectionLimit": 7}}, [], ['_downstream_connections": 7']),
        ({"serviceCluster": "front"}, [], ['"cluster": "front"']),
        ({"tracingServiceName": "CANONICAL_NAME_ONLY"}, [], ['"cluster": "web"']),
        ({"proxyMetadata": {"ISTIO_META_COLOUR": "blue", "OTHER": "x"}}, [], ['"COLOUR": "blue"']),
        ({"meshId": "mesh1"}, [], ['"MESH_ID": "mesh1"']),
    ],
)
def test_fields_of_the_proxy_config_are_in_the_bootstrap(
    settings: AgentSettings, config: dict[str, Any], clusters: list[str], parts: list[str]
) -> None:
    for bootstrap in (agent_bootstrap(with_config(settings, **config)), agent_bootstrap(settings, encoded(config))):
        assert names(bootstrap, "clusters") == CLUSTERS + clusters
        text = json.dumps(bootstrap)
        assert [part for part in parts if part not in text] == []


@pytest.mark.parametrize(
    "config",
    [
        {"statsdUdpAddress": "statsd:8125"},
        {"zipkinAddress": "zipkin"},
        {"tracing": {"zipkin": {"address": ":9411"}}},
        {"envoyMetricsService": {"address": "m:70000"}},
        {"envoyAccessLogService": {"address": "a:1", "tlsSettings": {"mode": "SIMPLE"}}},
        {"envoyAccessLogService": {"address": "a:1", "tlsSettings": {"mode": "SIMPLE", "caCertificates": "/none"}}},
        {"envoyMetricsService": {"address": "a:1", "tlsSettings": {"mode": "MUTUAL", "insecureSkipVerify": True}}},
        {"tracing": {"zipkin": {"address": "$(HOST_IP):9411"}}},
    ],
)
def test_a_server_that_cannot_be_reached_costs_only_itself(settings: AgentSettings, config: dict[str, Any]) -> None:
    is_tracer = bool({"tracing", "zipkinAddress"} & config.keys())
    good = {} if is_tracer else {"tracing": {"datadog": {"address": "d:1"}}}
    bootstrap: Any = agent_bootstrap(with_config(settings, **config, **good))
    assert names(bootstrap, "clusters") == CLUSTERS + (["datadog_agent"] if good else [])
    assert "stats_sinks" not in bootstrap


def test_bytes_that_are_no_proxy_config_leave_that_of_this_machine(settings: AgentSettings) -> None:
    settings = with_config(settings, meshId="mine")
    assert agent_bootstrap(settings, b"\xff\xff\xff") == agent_bootstrap(settings)


def test_an_empty_runtime_value_removes_a_default(settings: AgentSettings) -> None:
    def layer(**config: Any) -> dict[str, Any]:
        bootstrap: Any = agent_bootstrap(with_config(settings, **config))
        found: dict[str, Any] = bootstrap["layered_runtime"]["layers"][0]["static_layer"]
        return found

    assert "re2.max_program_size.error_level" in layer()
    assert "re2.max_program_size.error_level" not in layer(runtimeValues={"re2.max_program_size.error_level": ""})


def test_an_annotation_about_statistics_replaces_the_list_of_the_config(settings: AgentSettings) -> None:
    matcher = {"inclusionPrefixes": ["cluster.outbound"], "inclusionSuffixes": ["x"]}
    config = {"proxyStatsMatcher": matcher, "extraStatTags": ["a"]}
    found = patterns(agent_bootstrap(with_config(settings, **config)))
    assert {"prefix": "cluster.outbound"} in found
    assert {"suffix": "x"} in found
    assert {"prefix": "cluster_manager"} in found
    annotated = attrs.evolve(
        with_annotations(settings, statsInclusionPrefixes="http.{pod_ip},y", extraStatTags="b"), proxy_config=config
    )
    bootstrap: Any = agent_bootstrap(annotated)
    found = patterns(bootstrap)
    assert {"prefix": "cluster.outbound"} not in found
    assert {"prefix": "http.10.1.1.1"} in found
    assert {"suffix": "x"} in found
    tags = [tag["tag_name"] for tag in bootstrap["stats_config"]["stats_tags"]]
    assert {"a", "b"} < set(tags)


def test_flags_of_envoy_come_from_the_proxy_config(settings: AgentSettings) -> None:
    assert envoy_settings(settings).concurrency is None
    found = envoy_settings(
        with_config(settings, fileFlushInterval="2.5s", fileFlushMinSizeKb=64, parentShutdownDuration="90s"),
        encoded({"concurrency": 3, "drainDuration": "10s"}),
    )
    assert (found.concurrency, found.drain_seconds, found.parent_shutdown_seconds) == (3, 10.0, 90.0)
    assert found.extra_flags == ("--file-flush-interval-msec", "2500", "--file-flush-min-size-kb", "64")
    assert termination_drain_seconds(settings) == 5.0
    assert termination_drain_seconds(settings, encoded({"terminationDrainDuration": "30s"})) == 30.0


def custom(settings: AgentSettings, folder: Path, text: str) -> AgentSettings:
    file = folder / "custom.yaml"
    file.write_text(text)
    return attrs.evolve(settings, envoy=attrs.evolve(settings.envoy, custom_bootstrap=file))


def test_a_custom_bootstrap_is_merged_by_the_names_of_things(settings: AgentSettings, tmp_path: Path) -> None:
    text = """
    staticResources:
      clusters:
      - {name: xds-grpc, connectTimeout: 9s}
      - {name: mine, type: STATIC}
    stats_config:
      stats_tags: [{tag_name: mine, regex: "(x)"}, {tag_name: cache, regex: "(y)"}]
    """
    bootstrap: Any = agent_bootstrap(custom(settings, tmp_path, text))
    assert names(bootstrap, "clusters") == [*CLUSTERS, "mine"]
    first = bootstrap["static_resources"]["clusters"][0]
    assert first["connect_timeout"] == "9s"
    assert "load_assignment" in first
    tags = {tag["tag_name"]: tag["regex"] for tag in bootstrap["stats_config"]["stats_tags"]}
    assert (tags["mine"], tags["cache"]) == ("(x)", "(y)")
    assert "staticResources" not in bootstrap


def test_a_custom_bootstrap_that_resolves_names_itself_says_so(settings: AgentSettings, tmp_path: Path) -> None:
    for text, own in (("typedDnsResolverConfig: {name: x}", "true"), ("stats_flush_interval: 5s", None)):
        bootstrap: Any = agent_bootstrap(custom(settings, tmp_path, text))
        assert bootstrap["node"]["metadata"].get("OWN_DNS_RESOLVER") == own


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("statics_resources: {}", "did you mean static_resources"),
        ("- a", "expected the fields"),
        ("a: [", "not YAML"),
        (None, "No such file"),
    ],
)
def test_a_custom_bootstrap_that_is_none_is_one_line(
    settings: AgentSettings, tmp_path: Path, text: str | None, reason: str
) -> None:
    settings = custom(settings, tmp_path, text or "")
    if text is None:
        (tmp_path / "custom.yaml").unlink()
    with pytest.raises(AgentError, match=reason) as caught:
        agent_bootstrap(settings)
    assert "\n" not in str(caught.value)


def judged(envoy: Path, bootstrap: object, folder: Path) -> str:
    file = folder / "envoy.json"
    file.write_text(json.dumps(bootstrap))
    done = subprocess.run(
        [str(envoy), "--mode", "validate", "-c", str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.envoy
@pytest.mark.parametrize(
    "config",
    [{}, {**EVERYTHING, "statsdUdpAddress": "127.0.0.1:1"}, {"tracing": {"datadog": {"address": "d:1"}}}],
    ids=["default", "everything", "datadog"],
)
def test_envoy_finds_nothing_wrong_and_nothing_deprecated(
    envoy_binary: Path, tmp_path: Path, settings: AgentSettings, config: dict[str, Any]
) -> None:
    if "tracing" in config and "tlsSettings" in config["tracing"]:
        tls = {"mode": "ISTIO_MUTUAL", "subjectAltNames": ["a"]}
        config = {**config, "tracing": {**config["tracing"], "tlsSettings": tls}}
    said = judged(envoy_binary, agent_bootstrap(with_config(settings, **config)), tmp_path)
    deprecated = set(re.findall(r"deprecated option '([\w.]+)'", said))
    # Older Envoys, which are in use, know no other form of these.
    assert deprecated <= {"envoy.config.cluster.v3.Cluster.dns_lookup_family", TRACING}


TRACING = "envoy.config.bootstrap.v3.Bootstrap.tracing"

STATIC = """
static_resources:
  clusters:
  - name: outbound|80|v1|reviews.ssl.example.com
    type: STATIC
    load_assignment: &nobody {cluster_name: x, endpoints: []}
  - name: inbound|8080||
    alt_stat_name: inbound|8080||;
    type: STATIC
    load_assignment: *nobody
  listeners:
  - name: out
    address: {socket_address: {address: 127.0.0.1, port_value: 0}}
    stat_prefix: 127.0.0.1_80
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: outbound_0.0.0.0_80
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes:
              - match: {prefix: /}
                route: {cluster: "outbound|80|v1|reviews.ssl.example.com"}
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
"""


@pytest.mark.envoy
async def test_a_real_envoy_has_its_ports_and_the_tags_of_its_statistics(
    envoy_binary: Path, tmp_path: Path, settings: AgentSettings, free_ports: Callable[[int], list[int]]
) -> None:
    status, readiness, prometheus, admin = free_ports(4)
    settings = custom(settings, tmp_path, STATIC)
    settings = attrs.evolve(
        settings,
        ports=Ports(admin=admin, status=status, readiness=readiness, prometheus=prometheus, dns=0),
        proxy_config={"proxyStatsMatcher": {"inclusionPrefixes": ["cluster.", "http.", "listener."]}},
    )

    async def answer(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\nready")
        await stream.aclose()

    async with trio.open_nursery() as nursery, httpx.AsyncClient(trust_env=False, timeout=60) as client:
        await nursery.start(partial(trio.serve_tcp, answer, status, host="127.0.0.1"))
        bootstrap = agent_bootstrap(settings)
        del bootstrap["dynamic_resources"]  # its listeners would wait for the control plane
        del bootstrap["cluster_manager"]  # and load reports would be sent
        async with running_envoy(bootstrap, tmp_path) as envoy:

            async def is_ready() -> bool:
                try:
                    return (await client.get(f"http://127.0.0.1:{readiness}/healthz/ready")).text == "ready"
                except httpx.TransportError:
                    return False

            await eventually(is_ready)
            assert (await client.get(f"http://127.0.0.1:{readiness}/other")).status_code == 404
            out = (await envoy.listening())["out"]
            assert (await client.get(f"http://{out}/")).status_code == 503
            reply = await client.get(f"http://127.0.0.1:{prometheus}/stats/prometheus")
        nursery.cancel_scope.cancel()
    text = reply.text
    host = "outbound|80|v1|reviews.ssl.example.com"
    assert f'envoy_cluster_upstream_cx_none_healthy{{cluster_name="{host}"}} 1' in text
    assert f'envoy_cluster_external_upstream_rq{{response_code="503",cluster_name="{host}"}} 1' in text
    assert 'envoy_cluster_membership_total{cluster_name="inbound|8080||"} 0' in text
    assert 'envoy_cluster_upstream_cx_total{cluster_name="xds-grpc"}' in text
    tags = 'response_code_class="5xx",http_conn_manager_prefix="outbound_0.0.0.0_80"'
    assert f"envoy_http_downstream_rq{{{tags}}} 1" in text
    untagged = re.findall(r"^envoy_cluster_\w*(?:outbound|inbound|xds)\w*", text, re.MULTILINE)
    assert untagged == []


def test_traffic_is_counted_unless_it_is_off(settings: AgentSettings) -> None:
    on: Any = agent_bootstrap(settings)
    off: Any = agent_bootstrap(attrs.evolve(settings, traffic=False))
    assert on["node"]["metadata"]["RBAC_RULE_STATS"] == "true"
    assert TRAFFIC in patterns(on)
    assert on["deferred_stat_options"] == {"enable_deferred_creation_stats": True}
    assert TRAFFIC not in patterns(off)
    assert not {"cluster_manager", "deferred_stat_options"} & off.keys()
    assert "RBAC_RULE_STATS" not in off["node"]["metadata"]
    assert metrics_filter(off) == ""
    assert ["?filter=" in json.dumps(each["static_resources"]["listeners"]) for each in (on, off)] == [True, False]


def test_statistics_that_a_user_names_are_there_before_there_is_traffic(settings: AgentSettings) -> None:
    named = with_config(settings, proxyStatsMatcher={"inclusionPrefixes": ["cluster.outbound"]})
    assert "deferred_stat_options" not in agent_bootstrap(named)
    annotated = with_annotations(settings, statsInclusionSuffixes="upstream_rq_5xx")
    assert "deferred_stat_options" not in agent_bootstrap(annotated)


USUAL = ("server.uptime", "cluster.xds-grpc.upstream_rq_5xx", "http.inbound_0.0.0.0_80.rbac.denied", "istio.x")
OF_REPORTS = (
    "cluster.outbound|80||a.upstream_rq_5xx",
    "http.inbound_0.0.0.0_80.no_route",
    "http.in.rbac.policy.p.denied",
)


@pytest.mark.parametrize(
    ("config", "shown"),
    [
        ({}, ()),
        ({"proxyStatsMatcher": {"inclusionSuffixes": ["upstream_rq_5xx"]}}, OF_REPORTS[:1]),
        ({"proxyStatsMatcher": {"inclusionPrefixes": ["http.in"]}}, OF_REPORTS[1:]),
        ({"proxyStatsMatcher": {"inclusionRegexps": [r"http\..*\.no_route"]}}, OF_REPORTS[1:2]),
    ],
)
def test_metrics_have_statistics_of_reports_only_if_they_are_named(
    settings: AgentSettings, config: dict[str, Any], shown: tuple[str, ...]
) -> None:
    bootstrap = agent_bootstrap(with_config(settings, **config))
    regex = re.compile(metrics_filter(bootstrap))
    assert [name for name in (*USUAL, *OF_REPORTS) if regex.search(name)] == [*USUAL, *shown]


def test_metrics_have_the_statistics_of_a_custom_bootstrap(settings: AgentSettings, tmp_path: Path) -> None:
    more = "stats_config: {stats_matcher: {inclusion_list: {patterns: [{exact: http.a.no_route}, {contains: b.up}]}}}"
    bootstrap = agent_bootstrap(custom(settings, tmp_path, more))
    regex = re.compile(metrics_filter(bootstrap))
    every = ("http.a.no_route", "http.c.no_route", "cluster.b.upstream_rq_5xx", "cluster.c.upstream_rq_5xx")
    assert [name for name in every if regex.search(name)] == [every[0], every[2]]


@pytest.mark.envoy
@pytest.mark.parametrize("traffic", [True, False])
async def test_a_real_envoy_counts_for_reports_what_its_metrics_do_not_show(
    envoy_binary: Path, tmp_path: Path, settings: AgentSettings, free_ports: Callable[[int], list[int]], traffic: bool
) -> None:
    prometheus, admin = free_ports(2)
    settings = attrs.evolve(
        custom(settings, tmp_path, STATIC),
        ports=Ports(admin=admin, status=0, readiness=0, prometheus=prometheus, dns=0),
        traffic=traffic,
    )
    bootstrap = agent_bootstrap(settings)
    del bootstrap["dynamic_resources"]  # its listeners would wait for the control plane
    bootstrap.pop("cluster_manager", None)
    async with running_envoy(bootstrap, tmp_path) as envoy, httpx.AsyncClient(trust_env=False, timeout=60) as client:
        out = (await envoy.listening())["out"]
        assert (await client.get(f"http://{out}/")).status_code == 503

        async def page(path: str) -> str:
            return (await client.get(f"http://127.0.0.1:{prometheus}/stats/prometheus{path}")).text

        own = (await client.get(f"http://127.0.0.1:{admin}/stats?usedonly")).text
        counted = "cluster.outbound|80|v1|reviews.ssl.example.com.upstream_rq_5xx: 1"
        assert (counted in own) is traffic
        assert ("http.outbound_0.0.0.0_80.downstream_rq_5xx: 1" in own) is traffic
        everything, used = await page(""), await page("?usedonly")
        for text in (everything, used):
            assert "envoy_server_uptime" in text
            assert "reviews" not in text and "downstream_rq" not in text
        assert len(used) < len(everything)
        assert ("reviews" in await page("?filter=upstream_rq_5xx")) is traffic
