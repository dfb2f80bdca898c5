"""Dashboards and alert rules on a real Prometheus that scrapes a real control plane, a proxy, an Envoy and an agent."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import yaml
from envoy.service.discovery.v3.discovery_pb2 import DiscoveryRequest, DiscoveryResponse
from google.rpc.status_pb2 import Status

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode, envoy_bootstrap
from mesh_pilot.agent.bootstrap.statistics_config import stats_config
from mesh_pilot.agent.identity.identity import IdentityStatistics
from mesh_pilot.agent.registration.definition import service_definition
from mesh_pilot.agent.relay.relay import RelayStatistics
from mesh_pilot.agent.status.agent_metrics import agent_metrics
from mesh_pilot.app.control_plane import control_plane
from mesh_pilot.cli.demo.envoy_process import running_envoy
from mesh_pilot.model.events import Endpoints, EventSender, Synced, Upsert
from mesh_pilot.model.resource import CLUSTER, ENDPOINT, LISTENER
from mesh_pilot.model.service import Endpoint, Port, Protocol, Service, ServiceKey
from mesh_pilot.net.otlp.push import PushStatistics
from mesh_pilot.net.rpc import Cardinality, open_channel
from mesh_pilot.safety.state.settings import StateSettings
from mesh_pilot.sources.base.contract import SourceStatistics
from tests.support.binaries import require_binary
from tests.support.planes import SERVICE, settings
from tests.support.prometheus import prometheus
from tests.support.small_http import Said, small_http

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "samples" / "monitoring"
DOCS = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
ALERTS = [rule for group in yaml.safe_load((SAMPLES / "alerts.yml").read_text())["groups"] for rule in group["rules"]]
DASHBOARD = json.loads((SAMPLES / "dashboard.json").read_text())
ADS = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"

PANELS: dict[str, list[str]] = {
    "Pilot Versions": ['sum by (tag) (istio_build{component="pilot"})'],
    "Memory Usage": [],
    "Memory Allocations": [],
    "CPU Usage": [],
    "Goroutines": [],
    "XDS Pushes": ["sum by (type) (irate(pilot_xds_pushes[1m]))"],
    "Events": [
        "sum by (type, event) (rate(pilot_k8s_reg_events[1m]))",
        "sum by (type, event) (rate(pilot_k8s_cfg_events[1m]))",
        "sum by (type) (rate(pilot_push_triggers[1m]))",
    ],
    "Connections": ['sum(envoy_cluster_upstream_cx_active{cluster_name="xds-grpc"})', "sum(pilot_xds)"],
    "Push Errors": ["sum by (type) (pilot_total_xds_rejects)", "pilot_total_xds_internal_errors"],
    "Push Time": ["sum(rate(pilot_xds_push_time_bucket{}[1m])) by (le)"],
    "Push Size": ["sum(rate(pilot_xds_config_size_bytes_bucket{}[1m])) by (le)"],
    "Validation": ["sum(rate(galley_validation_passed[1m]))", "sum(rate(galley_validation_failed[1m]))"],
    "Injection": [],
}
"""The panels of Istio's control plane dashboard, each with the expressions that give data here."""

WITH_WEBHOOKS = ["Injection"]
"""Panels that show data where there are webhooks; the test's control plane has none."""

NOW = {
    "MeshPilotObjectsRefused",
    "MeshPilotNacks",
    "MeshPilotQuarantine",
    "MeshPilotWorkloadCertificateEnds",
    "MeshPilotAgentOffline",
}
"""The alerts whose expression is true in the test, for its invalid object, its refusing proxy and its agent."""

ELSEWHERE = {
    "mesh_pilot_agents": "with an agent",
    "mesh_pilot_worker_up": "with several workers",
    "mesh_pilot_config_warnings": "while there is a warning",
    "mesh_pilot_signer_errors": "after an error of a CA elsewhere",
    "mesh_pilot_refused_callers": "after a caller was refused",
    "grpc_server_handled_total": "after a call ended",
}
"""Metrics of rules and panels that the test's control plane does not have, and when one has."""


class Registry:
    """A source with a service."""

    name = "registry"

    def seed(self, items: object) -> None: ...

    def statistics(self) -> SourceStatistics:
        return SourceCounts(items=2, rejected=0, synced=True, waiting_for="")

    async def run(self, events: EventSender, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        await events.send(Upsert(self.name, Service("web.consul", "shop", (Port(80, "http", Protocol.HTTP),))))
        web = Endpoints(ServiceKey("web.consul", "shop"), (Endpoint("10.0.0.7", 80, "http"),))
        await events.send(Upsert(self.name, web))
        await events.send(Synced(self.name))
        await trio.sleep_forever()


@attrs.frozen
class SourceCounts:
    items: int
    rejected: int
    synced: bool
    waiting_for: str


class Proxy:
    """A client that accepts clusters and refuses endpoints when it may."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.may_refuse = trio.Event()

    async def run(self) -> None:
        kinds = (Cardinality.STREAM_STREAM, DiscoveryRequest, DiscoveryResponse)
        async with open_channel(self._address) as channel, channel.request(ADS, *kinds) as call:
            node = {"id": "sidecar~10.9.9.9~web-1.shop~shop.svc.cluster.local"}
            await call.send_message(DiscoveryRequest(node=node, type_url=CLUSTER))
            names = ["outbound|9080||reviews.test"]
            while (answer := await call.recv_message()) is not None:
                request = DiscoveryRequest(type_url=answer.type_url, response_nonce=answer.nonce)
                if answer.type_url == ENDPOINT:
                    request.resource_names.extend(names)
                    if answer.resources:  # not once the service is in quarantine
                        await self.may_refuse.wait()
                        request.error_detail.CopyFrom(Status(code=13, message="no"))
                await call.send_message(request)
                if answer.type_url == CLUSTER:
                    await call.send_message(DiscoveryRequest(type_url=ENDPOINT, resource_names=names))
                    await call.send_message(DiscoveryRequest(type_url=LISTENER))


def shown(panels: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Titles and expressions of our dashboard, as Grafana asks them for all control planes."""
    for panel in panels:
        for target in panel.get("targets", ()):
            expression = target["expr"].replace("$instance", ".*").replace("$__rate_interval", "1m")
            yield panel["title"], expression


def metrics_of(expression: str) -> set[str]:
    """The names of the metrics in an expression."""
    plain = re.sub(r'"[^"]*"|\bby \([^)]*\)', "", expression)
    return set(re.findall(r"\b((?:pilot|istiod?|mesh_pilot|citadel|galley|xds|grpc|process|envoy)_\w+)", plain))


@pytest.mark.envoy
async def test_panels_show_data_and_the_right_alerts_are_true(
    tmp_path: Path, free_ports: Callable[[int], list[int]], envoy_binary: Path
) -> None:
    config = tmp_path / "config"
    config.mkdir()
    (config / "a.yaml").write_text(SERVICE)
    (config / "b.yaml").write_text(SERVICE.replace("name: reviews", "name: ratings").replace("9080", "many"))
    require_binary("prometheus")
    identity = IdentityStatistics("spiffe://cluster.local/ns/a/sa/b", 1.0, True, 1, 0, "", 1, 1, 0)
    parts = {
        "identity": lambda: identity,
        "relay": lambda: RelayStatistics(
            streams=1, offline=1, offline_streams_total=1, accepted=1, refused=0, kept=1, age_seconds=1.0
        ),
        "health": lambda: {"is_healthy": True},
        "registration": lambda: {"is_registered": True},
        "metrics_push": lambda: PushStatistics(1, 1, 1, 0, 1.0, ""),
    }
    state = StateSettings(folder=tmp_path / "state")
    async with (
        control_plane(settings(config, state=state), more_sources=[Registry()]) as plane,
        small_http({"/metrics": Said(agent_metrics(parts), "text/plain; version=0.0.4")}) as agent,
        trio.open_nursery() as nursery,
    ):
        with trio.fail_after(30):
            await plane.wait_ready()
        proxy = Proxy(plane.addresses.grpc)
        nursery.start_soon(proxy.run)
        bootstrap: Any = envoy_bootstrap(EnvoyNode("web-2", "shop", "10.9.9.8"), plane.addresses.grpc)
        bootstrap |= stats_config({}, {}, ["10.9.9.8"], counts_drain=False)
        async with running_envoy(bootstrap, tmp_path, name="envoy") as envoy:
            jobs = {
                "mesh-pilot": [plane.addresses.monitoring],
                "mesh-pilot-agents": [f"127.0.0.1:{agent.port}"],
                "mesh-pilot-envoys": [f"{envoy.admin}/stats/prometheus"],
            }
            async with prometheus(tmp_path, *free_ports(1), jobs) as server:
                await server.has('pilot_total_xds_rejects{type="eds"} == 0')
                proxy.may_refuse.set()
                await server.has('increase(pilot_total_xds_rejects{type="eds"}[1m]) > 0')
                await server.has("mesh_pilot_quarantined_objects > 0")
                (config / "c.yaml").write_text(SERVICE.replace("reviews", "details"))
                await server.has('rate(pilot_k8s_cfg_events{event="add"}[1m]) > 0')
                for expression in (each for expressions in PANELS.values() for each in expressions):
                    await server.has(expression)
                there = await server.names()
                empty = [(title, each) for title, each in shown(DASHBOARD["panels"]) if not await server.query(each)]
                assert [each for each in empty if metrics_of(each[1]).isdisjoint(ELSEWHERE)] == []
                used = {name for rule in ALERTS for name in metrics_of(rule["expr"])}
                used |= {name for _, expression in shown(DASHBOARD["panels"]) for name in metrics_of(expression)}
                assert used - there == set(ELSEWHERE)
                true = {rule["alert"] for rule in ALERTS if await server.query(rule["expr"])}
                assert true == NOW
        nursery.cancel_scope.cancel()


FIRED: dict[str, list[tuple[str, str]]] = {
    "MeshPilotDown": [('up{job="mesh-pilot",instance="a"}', "0x60")],
    "MeshPilotSourceStale": [('mesh_pilot_source_stale_seconds{source="consul"}', "0+60x60")],
    "MeshPilotSourceNotSynced": [('mesh_pilot_source_synced{source="consul"}', "0x60")],
    "MeshPilotSourceRestarts": [('mesh_pilot_source_restarts{source="consul"}', "0+1x60")],
    "MeshPilotSourceHeld": [('mesh_pilot_source_held_objects{source="consul"}', "38x60")],
    "MeshPilotObjectsRefused": [("mesh_pilot_rejected_objects", "1x60")],
    "MeshPilotNacks": [('pilot_total_xds_rejects{type="rds"}', "0x55 1x5")],
    "MeshPilotQuarantine": [('mesh_pilot_quarantined_objects{kind="Gateway"}', "1x60")],
    "MeshPilotRefusalsHeld": [("mesh_pilot_refusals_held", "1x60")],
    "MeshPilotProxiesWarming": [('mesh_pilot_proxies{sync="warming"}', "2x60")],
    "MeshPilotProxiesBehind": [('mesh_pilot_proxies{sync="behind"}', "3x60")],
    "MeshPilotProxiesLost": [('pilot_xds{version="1.31.0"}', "1000x50 100x10")],
    "MeshPilotConvergenceSlow": [
        ('pilot_proxy_convergence_time_bucket{le="10"}', "0+1x60"),
        ('pilot_proxy_convergence_time_bucket{le="30"}', "0+100x60"),
        ('pilot_proxy_convergence_time_bucket{le="+Inf"}', "0+100x60"),
    ],
    "MeshPilotInternalErrors": [('mesh_pilot_failing_resources{type="cds",state="kept"}', "1x60")],
    "MeshPilotStateNotWritten": [("mesh_pilot_state_failing_seconds", "0+60x60")],
    "MeshPilotWithoutLeader": [
        ('mesh_pilot_leader{job="mesh-pilot",instance="a"}', "0x60"),
        ('mesh_pilot_leader{job="mesh-pilot",instance="b"}', "0x60"),
    ],
    "MeshPilotWorkerDown": [('mesh_pilot_worker_up{worker="2"}', "0x60")],
    "MeshPilotConnectionsRefused": [('mesh_pilot_grpc_connections_refused{reason="share"}', "0x55 7x5")],
    "MeshPilotKeySetsFail": [("pilot_jwks_resolver_network_fetch_fail_total", "0+1x60")],
    "MeshPilotMetricsMissing": [("mesh_pilot_missing_metrics", "1x60")],
    "MeshPilotMetricsNotPushed": [('mesh_pilot_metrics_pushes{result="failed",instance="a"}', "0+1x60")],
    "MeshPilotRootEnds": [("citadel_server_root_cert_expiry_seconds", "2500000x60")],
    "MeshPilotChainEnds": [("citadel_server_cert_chain_expiry_seconds", "600000x60")],
    "MeshPilotCaFilesRefused": [("mesh_pilot_ca_refused_files", "1x60")],
    "MeshPilotSigningFails": [('citadel_server_csr_sign_err_count{error="signer"}', "0x55 1x5")],
    "MeshPilotAgentDown": [('up{job="mesh-pilot-agents",instance="a"}', "0x60")],
    "MeshPilotAgentOffline": [("mesh_pilot_agent_relay_offline", "1x60")],
    "MeshPilotWorkloadCertificateEnds": [("mesh_pilot_agent_identity_ends", "7200x60")],
    "MeshPilotEnvoyCertificateEnds": [("envoy_server_days_until_first_cert_expiring", "0x800")],
    "MeshPilotWorkloadIll": [("mesh_pilot_agent_health_is_healthy", "0x60")],
    "MeshPilotWorkloadNotRegistered": [("mesh_pilot_agent_registration_is_registered", "0x60")],
}
"""Series a minute apart, in Prometheus' notation, with which an alert fires at the end."""

QUIET: list[tuple[str, str]] = [
    ('up{job="mesh-pilot",instance="a"}', "1x60"),
    ('up{job="mesh-pilot-agents",instance="a"}', "1x60"),
    ('mesh_pilot_source_stale_seconds{source="consul"}', "0x60"),
    ('mesh_pilot_source_synced{source="consul"}', "1x60"),
    ('mesh_pilot_source_restarts{source="consul"}', "2x60"),
    ('mesh_pilot_source_held_objects{source="consul"}', "0x60"),
    ("mesh_pilot_rejected_objects", "0x60"),
    ('pilot_total_xds_rejects{type="rds"}', "5x60"),
    ("mesh_pilot_refusals_held", "0x60"),
    ('mesh_pilot_proxies{sync="synced"}', "1000x60"),
    ('mesh_pilot_proxies{sync="behind"}', "0x60"),
    ('mesh_pilot_proxies{sync="warming"}', "0x60"),
    ('pilot_xds{version="1.31.0"}', "1000+1x60"),
    ('pilot_proxy_convergence_time_bucket{le="0.1"}', "0+100x60"),
    ('pilot_proxy_convergence_time_bucket{le="+Inf"}', "0+100x60"),
    ('mesh_pilot_failing_resources{type="cds",state="kept"}', "0x60"),
    ("mesh_pilot_intake_errors", "0x60"),
    ("mesh_pilot_state_failing_seconds", "0x60"),
    ('mesh_pilot_leader{job="mesh-pilot",instance="a"}', "1x60"),
    ('mesh_pilot_leader{job="mesh-pilot",instance="b"}', "0x60"),
    ('mesh_pilot_worker_up{worker="1"}', "1x60"),
    ('mesh_pilot_grpc_connections_refused{reason="share"}', "0x60"),
    ("pilot_jwks_resolver_network_fetch_fail_total", "3x60"),
    ("mesh_pilot_missing_metrics", "0x60"),
    ('mesh_pilot_metrics_pushes{result="failed",instance="a"}', "0+1x60"),
    ('mesh_pilot_metrics_pushes{result="exported",instance="a"}', "0+1x60"),
    ("mesh_pilot_agent_metrics_push_failures_total", "3x60"),
    ("citadel_server_root_cert_expiry_seconds", "300000000x60"),
    ("citadel_server_cert_chain_expiry_seconds", "300000000x60"),
    ("mesh_pilot_ca_refused_files", "0x60"),
    ('citadel_server_csr_sign_err_count{error="signer"}', "2x60"),
    ("pilot_sds_certificate_errors_total", "0x60"),
    ("mesh_pilot_agent_relay_offline", "0x60"),
    ('mesh_pilot_agent_identity_ends{instance="a"}', "86400+60x60"),
    ('mesh_pilot_agent_identity_ends{instance="none"}', "0x60"),
    ("envoy_server_days_until_first_cert_expiring", "3x60"),
    ("mesh_pilot_agent_health_is_healthy", "1x60"),
    ("mesh_pilot_agent_registration_is_registered", "1x60"),
]
"""A mesh in which all is well."""


@pytest.mark.process
def test_each_alert_fires_when_it_should_and_all_are_quiet_when_all_is_well(tmp_path: Path) -> None:
    require_binary("prometheus")
    promtool = require_binary("promtool")
    assert FIRED.keys() == {rule["alert"] for rule in ALERTS}

    def case(series: Iterable[tuple[str, str]], minutes: int, fired: Iterable[str]) -> dict[str, Any]:
        samples = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in fired]
        question = 'group by (alertname) (ALERTS{alertstate="firing"})'
        return {
            "interval": "1m",
            "input_series": [{"series": name, "values": values} for name, values in series],
            "promql_expr_test": [{"expr": question, "eval_time": f"{minutes}m", "exp_samples": samples}],
        }

    slow = "MeshPilotEnvoyCertificateEnds"
    firing = case(
        (each for name, series in FIRED.items() if name != slow for each in series), 59, FIRED.keys() - {slow}
    )
    up = ('up{job="mesh-pilot"}', "1x800")
    alone = [('up{job="mesh-pilot"}', "1x60"), ('pilot_xds{version="1.31.0"}', "1000x45 stale")]
    gone = case(alone, 59, ["MeshPilotProxiesLost"])
    cases = [firing, gone, case([*FIRED[slow], up], 800, [slow]), case(QUIET, 59, ())]
    rules = {"rule_files": [str(SAMPLES / "alerts.yml")], "tests": cases}
    (tmp_path / "test.yml").write_text(yaml.safe_dump(rules))
    done = subprocess.run([promtool, "test", "rules", tmp_path / "test.yml"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    config = subprocess.run([promtool, "check", "config", SAMPLES / "prometheus.yml"], capture_output=True, text=True)
    assert config.returncode == 0, config.stdout + config.stderr


def test_each_alert_has_a_severity_and_a_place_in_the_manual() -> None:
    described = re.findall(r"^### (MeshPilot\w+)$", DOCS, re.MULTILINE)
    assert described == [rule["alert"] for rule in ALERTS]
    for rule in ALERTS:
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"]["runbook"] == f"docs/metrics.md#{rule['alert'].lower()}"
        assert rule["annotations"].keys() == {"summary", "description", "runbook"}
    parts = re.split(r"^### ", DOCS, flags=re.MULTILINE)[1:]
    assert [part.split()[0] for part in parts if "*Do:* " not in part] == []


def test_the_manual_says_which_of_istios_panels_show_data() -> None:
    without = [panel for panel, expressions in PANELS.items() if not expressions and panel not in WITH_WEBHOOKS]
    said = f"shows data, but for {', '.join(without[:-1])} and {without[-1]}; {WITH_WEBHOOKS[0]} has data with"
    assert said in DOCS


def test_the_picture_of_the_dashboard_has_its_panels() -> None:
    picture = (ROOT / "docs" / "monitoring" / "dashboard.svg").read_text(encoding="utf-8")
    titles = [panel["title"] for panel in DASHBOARD["panels"]]
    assert re.findall(r'<text class="t"[^>]*>([^<]*)', picture) == titles, "python -m tools.picture_monitoring"


def test_agents_are_found_in_consul_at_the_address_of_their_service() -> None:
    (job,) = yaml.safe_load((SAMPLES / "prometheus-consul.yml").read_text())["scrape_configs"][1:]
    keep = job["relabel_configs"][0]
    assert (keep["action"], keep["regex"]) == ("keep", ".+")
    written = service_definition({"Name": "web", "Port": 80}, EnvoyNode("web-1", "shop", "10.0.0.1"))["Meta"]
    assert keep["source_labels"] == [f"__meta_consul_service_metadata_{key}" for key in written if key == "namespace"]
    rule = next(rule for rule in job["relabel_configs"] if rule.get("target_label") == "__address__")
    replacement = re.sub(r"\$\{(\d)\}", r"\\g<\1>", rule["replacement"])
    for service, node, address in (("10.0.0.8", "10.0.0.1", "10.0.0.8:15020"), ("", "10.0.0.1", "10.0.0.1:15020")):
        found = re.fullmatch(rule["regex"], f"{service};{node}")
        assert found is not None and found.expand(replacement) == address
