"""MeshConfig and MeshNetworks: defaults, how a file is laid over them, and Istio's rules."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from mesh_pilot.api.istio.mesh.v1alpha1 import MeshConfig, MeshConfigOutboundTrafficPolicyMode
from mesh_pilot.istio.meaning.descriptors import descriptor_of
from mesh_pilot.istio.reading.field_warnings import REMOVED
from mesh_pilot.istio.reading.mesh import decode_mesh, decode_networks, default_mesh
from mesh_pilot.istio.reading.yaml import Document, load
from mesh_pilot.model.config import ConfigError, Origin, Problem
from tests.support.rules import changed

ORIGIN = Origin("mesh", "mesh.yaml")
GOLDEN = Path(__file__).parents[1] / "golden"


def mesh(data: object) -> MeshConfig:
    return decode_mesh(data, origin=ORIGIN)


def problems_of(data: object) -> list[str]:
    warnings: list[Problem] = []
    try:
        decode_mesh(data, origin=ORIGIN, warnings=warnings)
    except ConfigError as error:
        return [str(problem) for problem in error.problems]
    return [f"{problem.severity}: {problem}" for problem in warnings]


def test_nothing_said_is_the_defaults() -> None:
    assert mesh(None) == mesh({}) == default_mesh()
    assert problems_of({}) == []


def test_a_field_replaces_its_default() -> None:
    found = mesh({"connectTimeout": "4s", "outboundTrafficPolicy": {}, "trustDomainAliases": ["b", "a", "b"]})
    assert found.connect_timeout == timedelta(seconds=4)
    assert found.outbound_traffic_policy is not None
    assert found.outbound_traffic_policy.mode is MeshConfigOutboundTrafficPolicyMode.REGISTRY_ONLY
    assert found.trust_domain_aliases == ["a", "b"]
    assert found.root_namespace == "istio-system"


def test_an_explicit_false_is_not_the_default() -> None:
    assert mesh({"enableAutoMtls": False, "enable_tracing": False}).enable_auto_mtls is False
    assert mesh({"enable_tracing": False}).enable_tracing is False
    assert mesh({"enableAutoMtls": None}).enable_auto_mtls is True


def test_the_proxies_config_is_merged_field_by_field() -> None:
    proxy = mesh({"defaultConfig": {"concurrency": 0, "tracingServiceName": "CANONICAL_NAME_ONLY"}}).default_config
    assert proxy is not None
    assert (proxy.concurrency, proxy.status_port) == (0, 15020)
    assert proxy.service_cluster is None  # the other member of its oneof is set


def test_providers_are_merged_by_name() -> None:
    file = {"name": "envoy", "envoyFileAccessLog": {"path": "/tmp/log"}}
    found = mesh({"extensionProviders": [file, {"name": "mine", "prometheus": {}}]})
    assert [provider.name for provider in found.extension_providers] == ["prometheus", "stackdriver", "envoy", "mine"]
    log = found.extension_providers[2].envoy_file_access_log
    assert log is not None
    assert log.path == "/tmp/log"
    assert mesh({"defaultProviders": {"metrics": ["a"]}}).default_providers is not None


@pytest.mark.parametrize(
    "text",
    [
        "trustDomain: a.b\nrootNamespace: r\n",
        "mesh: |\n  trustDomain: a.b\n  rootNamespace: r\n",
        "kind: ConfigMap\napiVersion: v1\ndata:\n  mesh: |\n    trustDomain: a.b\n    rootNamespace: r\n",
    ],
)
def test_the_settings_may_be_inside_a_config_map(text: str) -> None:
    (document,) = load(text, ORIGIN)
    assert isinstance(document, Document)
    found = decode_mesh(document.data, origin=ORIGIN, line_of=document.line_of)
    assert (found.trust_domain, found.root_namespace) == ("a.b", "r")


def test_lines_inside_a_config_map_are_those_of_the_file() -> None:
    text = "kind: ConfigMap\ndata:\n  mesh: |\n    trustDomain: a\n    statNme: 5\n"
    (document,) = load(text, ORIGIN)
    assert isinstance(document, Document)
    with pytest.raises(ConfigError) as caught:
        decode_mesh(document.data, origin=ORIGIN, line_of=document.line_of)
    assert [problem.line for problem in caught.value.problems] == [5]
    (document,) = load("kind: ConfigMap\ndata:\n  mesh: |\n    a: [\n", ORIGIN)
    assert isinstance(document, Document)
    with pytest.raises(ConfigError, match=r"mesh\.yaml:5: not valid YAML"):
        decode_mesh(document.data, origin=ORIGIN, line_of=document.line_of)


def test_a_config_map_without_the_settings_is_refused() -> None:
    assert problems_of({"kind": "ConfigMap", "data": {}}) == [
        "data.mesh: is missing: the settings are expected there, as text"
    ]
    assert problems_of([]) == ["expected an object, got a list"]
    assert problems_of({"mesh": "a: 1\n---\nb: 2"}) == ["mesh: has a second document: only one is expected"]


@pytest.mark.parametrize(
    ("path", "good", "bad", "said"),
    [
        ("trustDomain", "a.b", "", "trustDomain: is empty: cluster.local is used"),
        ("trustDomain", "1.2", "a_b", 'trustDomain: "a_b" is not a trust domain'),
        ("trustDomainAliases", ["a"], ["a b"], "trustDomainAliases[0]: "),
        ("rootNamespace", "r", "r.s", "rootNamespace: "),
        ("trustDomian", None, "a", "did you mean trustDomain?"),
        ("proxyListenPort", 1, 0, "proxyListenPort: 0 is not a port"),
        ("proxyInboundListenPort", 1, 15001, "proxyInboundListenPort: 15001 is proxyListenPort already"),
        ("proxyHttpPort", 8080, 65536, "proxyHttpPort: "),
        ("connectTimeout", "1h", "61m", "connectTimeout: must be at most 1h"),
        ("connectTimeout", "1ms", "0s", "connectTimeout: must be at least 1ms"),
        ("protocolDetectionTimeout", "0s", "1us", "protocolDetectionTimeout: "),
        ("dnsRefreshRate", "5s", "0s", "dnsRefreshRate: "),
        ("defaultServiceExportTo", ["~"], ["a b"], "defaultServiceExportTo[0]: "),
        ("defaultVirtualServiceExportTo", ["."], [""], "defaultVirtualServiceExportTo[0]: "),
        ("defaultDestinationRuleExportTo", ["a"], ["a.b"], "defaultDestinationRuleExportTo[0]: "),
        (
            "localityLbSetting.failover",
            [{"from": "a", "to": "b"}],
            [{"from": "a", "to": "a"}],
            "localityLbSetting.failover[0]: ",
        ),
        ("defaultHttpRetryPolicy", {"attempts": 1}, {"attempts": -1}, "defaultHttpRetryPolicy.attempts: "),
        ("serviceSettings", [{"hosts": ["*.a"]}], [{"hosts": ["a_b"]}], "serviceSettings[0].hosts[0]: "),
        (
            "discoverySelectors",
            [{"matchLabels": {"a": "b"}}],
            [{"matchLabels": {"a b": "c"}}],
            "discoverySelectors[0].matchLabels[a b]: ",
        ),
        (
            "discoverySelectors",
            [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}],
            [{"matchExpressions": [{"key": "a", "operator": "In"}]}],
            "discoverySelectors[0].matchExpressions[0].values: is missing",
        ),
        (
            "discoverySelectors",
            [{"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}],
            [{"matchExpressions": [{"key": "a", "operator": "Like"}]}],
            '"Like" is not one of In, NotIn',
        ),
        (
            "discoverySelectors",
            [{"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}],
            [{"matchExpressions": [{"operator": "Exists", "values": ["x"]}]}],
            "discoverySelectors[0].matchExpressions[0].key: is missing",
        ),
        ("meshMTLS", {"minProtocolVersion": "TLSV1_3"}, {"ecdhCurves": ["P-256"]}, "meshMTLS.ecdhCurves: "),
        ("meshMTLS.minProtocolVersion", "TLSV1_2", "TLSV1_0", "allowed: TLS_AUTO, TLSV1_2, TLSV1_3"),
        (
            "tlsDefaults.ecdhCurves",
            ["P-256"],
            ["P-1"],
            'warning: tlsDefaults.ecdhCurves[0]: "P-1" is not a known curve',
        ),
        ("tlsDefaults.cipherSuites", ["AES128-SHA"], ["X"], "warning: tlsDefaults.cipherSuites[0]: "),
        ("trustDomain", "a.b", "a.b.", "warning: trustDomain: no SPIFFE name has"),
        ("defaultTrafficPolicy.connectionPool", {"tcp": {}}, {}, "defaultTrafficPolicy.connectionPool: "),
        ("verifyCertificateAtClient", None, True, "warning: verifyCertificateAtClient: is deprecated"),
        (
            "extensionProviders",
            [{"name": "a", "prometheus": {}}],
            [{"prometheus": {}}],
            "warning: extensionProviders[0].name: is missing",
        ),
        (
            "extensionProviders",
            [{"name": "a", "prometheus": {}}],
            [{"name": "a"}],
            "warning: extensionProviders[0]: needs one of envoyExtAuthzHttp",
        ),
        (
            "extensionProviders",
            [{"name": "a", "zipkin": {"service": "ns/z.ns", "port": 1}}],
            [{"name": "a", "zipkin": {"service": "z z", "port": 1}}],
            "warning: extensionProviders[0].zipkin.service: ",
        ),
        (
            "extensionProviders",
            [{"name": "a", "datadog": {"service": "10.0.0.1", "port": 1}}],
            [{"name": "a", "datadog": {"service": "z"}}],
            "warning: extensionProviders[0].datadog.port: ",
        ),
        (
            "extensionProviders",
            [{"name": "a", "envoyExtAuthzGrpc": {"service": "z", "port": 1, "statusOnError": "503"}}],
            [{"name": "a", "envoyExtAuthzGrpc": {"service": "z", "port": 1, "statusOnError": "5"}}],
            "warning: extensionProviders[0].envoyExtAuthzGrpc.statusOnError: ",
        ),
        (
            "extensionProviders",
            [{"name": "a", "envoyExtAuthzHttp": {"service": "z", "port": 1, "pathPrefix": "/a"}}],
            [{"name": "a", "envoyExtAuthzHttp": {"service": "z", "port": 1, "pathPrefix": "a"}}],
            "warning: extensionProviders[0].envoyExtAuthzHttp.pathPrefix: ",
        ),
        (
            "extensionProviders",
            [{"name": "a", "opentelemetry": {"service": "z", "port": 1}}],
            [{"name": "a", "opentelemetry": {"service": "z", "port": 1, "http": {}, "grpc": {}}}],
            "warning: extensionProviders[0].opentelemetry.grpc: ",
        ),
        ("defaultConfig.discoveryAddress", "a:15012", "a", "not of the form host:port"),
        ("defaultConfig.discoveryAddress", "[::1]:15012", "::1:15012", "IPv6 address in brackets"),
        ("defaultConfig.configPath", "a", "", "defaultConfig.configPath: must not be empty"),
        ("defaultConfig.serviceCluster", "a", "", "defaultConfig.serviceCluster: must not be empty"),
        ("defaultConfig.concurrency", 0, -1, "defaultConfig.concurrency: -1 is negative"),
        ("defaultConfig.proxyAdminPort", 1, 0, "defaultConfig.proxyAdminPort: "),
        ("defaultConfig.statusPort", 1, 0, "defaultConfig.statusPort: "),
        ("defaultConfig.drainDuration", "45s", "1500ms", "defaultConfig.drainDuration: must be in whole seconds"),
        ("defaultConfig.statsdUdpAddress", "10.0.0.1:8125", "a:b", '"b" is not a number'),
        ("defaultConfig.envoyMetricsService.address", "a:1", "a:0", "0 is not a port"),
        ("defaultConfig.envoyAccessLogService.address", "a:1", "_:1", "not a host name or an IP address"),
        (
            "defaultConfig.tracing",
            {"zipkin": {"address": "$(HOST_IP):9411"}},
            {"zipkin": {}},
            "defaultConfig.tracing.zipkin.address: is missing",
        ),
        (
            "defaultConfig.tracing",
            {"customTags": {"a": {"literal": {"value": "b"}}}},
            {"customTags": {"a": {"literal": {}}}},
            "defaultConfig.tracing.customTags[a].literal.value: is missing",
        ),
        (
            "outboundTrafficPolicy",
            {"mode": "ALLOW_ANY_DYNAMIC_DNS", "tls": {"mode": "SIMPLE"}},
            {"mode": "ALLOW_ANY", "tls": {"mode": "SIMPLE"}},
            "warning: outboundTrafficPolicy.tls: has no effect: it is for mode ALLOW_ANY_DYNAMIC_DNS",
        ),
        (
            "outboundTrafficPolicy",
            {"mode": "ALLOW_ANY_DYNAMIC_DNS"},
            {"mode": "ALLOW_ANY_DYNAMIC_DNS", "tls": {"mode": "MUTUAL"}},
            "outboundTrafficPolicy.tls.clientCertificate: is missing",
        ),
        (
            "serviceEntryVisibility",
            {"applyToSidecars": True, "defaultVisibility": "NONE"},
            {"defaultVisibility": "NONE"},
            "warning: serviceEntryVisibility: has no effect without applyToSidecars",
        ),
        (
            "serviceEntryVisibility",
            {"applyToSidecars": True, "policies": [{"visibility": "NONE"}]},
            {"applyToSidecars": True, "policies": [{"visibility": "NONE", "matchingRules": [{}]}]},
            "warning: serviceEntryVisibility.policies[0].matchingRules[0]: matches nothing",
        ),
        (
            "defaultTrafficPolicy",
            {"outlierDetection": {"interval": "1s"}},
            {"outlierDetection": {"interval": "0s"}},
            "defaultTrafficPolicy.outlierDetection.interval: must be at least",
        ),
        (
            "extensionProviders",
            [{"name": "a", "envoyFileAccessLog": {"path": "/a", "logFormat": {"text": "%REQ_WITHOUT_QUERY(a)%"}}}],
            [{"name": "a", "envoyFileAccessLog": {"path": "/a", "logFormat": {"text": "%FOO%"}}}],
            "warning: extensionProviders[0].envoyFileAccessLog.logFormat.text: '%FOO%' is not a command",
        ),
        (
            "extensionProviders",
            [
                {
                    "name": "a",
                    "envoyOtelAls": {"service": "a.b", "port": 1, "logFormat": {"labels": {"a": "%PROTOCOL%"}}},
                }
            ],
            [{"name": "a", "envoyOtelAls": {"service": "a.b", "port": 1, "logFormat": {"labels": {"a": "100%"}}}}],
            "warning: extensionProviders[0].envoyOtelAls.logFormat.labels.a: is left out: ",
        ),
        (
            "defaultConfig.connectionSettings",
            {"httpIdleTimeout": "0s", "http2InitialStreamWindowSize": 65535},
            {"http2InitialStreamWindowSize": 65534},
            "defaultConfig.connectionSettings.http2InitialStreamWindowSize: 65534 is not allowed; 65535 to 2147483647",
        ),
        (
            "defaultConfig.connectionSettings",
            {"httpMaxConcurrentStreams": 0},
            {"httpIdleTimeout": "-1s"},
            "defaultConfig.connectionSettings.httpIdleTimeout: allowed are 0s to ",
        ),
        (
            "defaultConfig.proxyHeaders",
            {"server": {"value": "a b"}},
            {"server": {"value": "a\n"}},
            "defaultConfig.proxyHeaders.server.value: has a line break",
        ),
        (
            "extensionProviders",
            [{"name": "a", "envoyExtAuthzHttp": {"service": "a.b", "port": 1, "timeout": "0s"}}],
            [{"name": "a", "envoyExtAuthzHttp": {"service": "a.b", "port": 1, "timeout": "-1s"}}],
            "warning: extensionProviders[0].envoyExtAuthzHttp.timeout: is not between 0s and 136 years: all that",
        ),
        ("defaultConfig.tracing", {"sampling": 100}, {"sampling": 101}, "defaultConfig.tracing.sampling: "),
        (
            "defaultConfig.tracing",
            {"lightstep": {"address": "a:1", "accessToken": "t"}},
            {"lightstep": {"address": "a:1"}},
            "defaultConfig.tracing.lightstep.accessToken: ",
        ),
        (
            "defaultConfig.tracing.tlsSettings",
            {"mode": "SIMPLE"},
            {"mode": "MUTUAL"},
            "defaultConfig.tracing.tlsSettings.privateKey: ",
        ),
        (
            "defaultConfig.privateKeyProvider",
            {"cryptomb": {"pollDelay": "10ms"}},
            {"cryptomb": {}},
            "defaultConfig.privateKeyProvider.cryptomb.pollDelay: ",
        ),
        (
            "defaultConfig.privateKeyProvider",
            {"qat": {"pollDelay": "10ms"}},
            {},
            "defaultConfig.privateKeyProvider: needs",
        ),
    ],
)
def test_a_rule_of_the_mesh_config_is_kept_or_named(path: str, good: Any, bad: Any, said: str) -> None:
    if good is not None:
        assert [p for p in problems_of(changed({}, path, good)) if ": has no effect: " not in p] == []
    assert any(said in problem for problem in problems_of(changed({}, path, bad))), problems_of(changed({}, path, bad))


@pytest.mark.parametrize(
    ("path", "good", "bad", "said"),
    [
        ("endpoints", [{"fromCidr": "10.0.0.0/8"}], [{"fromCidr": "a"}], "networks[n].endpoints[0].fromCidr: "),
        (
            "endpoints",
            [{"fromRegistry": "Kubernetes"}],
            [{"fromRegistry": "a b"}],
            "networks[n].endpoints[0].fromRegistry: ",
        ),
        ("endpoints", [{"fromRegistry": "a"}], [{}], "networks[n].endpoints[0]: needs fromCidr"),
        (
            "gateways",
            [{"address": "1.2.3.4", "port": 1}],
            [{"address": "a b", "port": 1}],
            "networks[n].gateways[0].address: ",
        ),
        ("gateways", [{"address": "gw.example.com", "port": 1}], [{"address": "a"}], "networks[n].gateways[0].port: "),
        (
            "gateways",
            [{"registryServiceName": "a.b", "port": 1}],
            [{"registryServiceName": "*", "port": 1}],
            "networks[n].gateways[0].registryServiceName: ",
        ),
        (
            "gateways",
            [{"registryServiceName": "a.b", "port": 1}],
            [{"port": 1}],
            "networks[n].gateways[0]: needs address",
        ),
    ],
)
def test_a_rule_of_networks_is_kept_or_named(path: str, good: Any, bad: Any, said: str) -> None:
    networks = decode_networks({"networks": {"n": {path: good}}}, origin=ORIGIN)
    assert list(networks.networks) == ["n"]
    with pytest.raises(ConfigError) as caught:
        decode_networks({"networks": {"n": {path: bad}}}, origin=ORIGIN)
    assert any(said in str(problem) for problem in caught.value.problems)


def test_no_networks_is_fine() -> None:
    assert decode_networks(None, origin=ORIGIN).networks == {}
    inside = {"kind": "ConfigMap", "data": {"meshNetworks": "networks: {}"}}
    assert decode_networks(inside, origin=ORIGIN).networks == {}
    with pytest.raises(ConfigError, match='unknown field "network"'):
        decode_networks({"network": {}}, origin=ORIGIN)


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*/mesh.yaml")) + sorted(GOLDEN.glob("mesh*.yaml")), ids=str)
def test_golden_mesh_configs_are_good(path: Path) -> None:
    (document,) = load(path.read_text(encoding="utf-8"), ORIGIN)
    assert isinstance(document, Document)
    assert mesh(document.data).trust_domain == "cluster.local"


ISTIO_1_1 = """\
disablePolicyChecks: false
enableTracing: true
accessLogFile: "/dev/stdout"
accessLogEncoding: 'TEXT'
mixerCheckServer: istio-policy.istio-system.svc.cluster.local:9091
mixerReportServer: istio-telemetry.istio-system.svc.cluster.local:9091
policyCheckFailOpen: false
connectTimeout: 4s
sdsUdsPath: ""
enableSdsTokenMount: false
sdsUseK8sSaJwt: false
trustDomain:
rootNamespace: istio-config
defaultConfig:
  connectTimeout: 10s
  parentShutdownDuration: 1m0s
  concurrency: 2
"""
"""What Istio 1.1 is installed with, in part."""

ISTIO_1_14 = {
    "thriftConfig": {},
    "defaultConfig": {"parentShutdownDuration": "60s", "drainDuration": "45s", "statNameLength": 189},
    "dnsRefreshRate": "60s",
}
"""In what Istio 1.14 dumps, among all else: defaults that are gone."""


def test_a_mesh_file_of_istio_1_1_is_read_and_says_what_is_gone() -> None:
    (document,) = load(ISTIO_1_1, ORIGIN)
    assert isinstance(document, Document)
    warnings: list[Problem] = []
    found = decode_mesh(document.data, origin=ORIGIN, line_of=document.line_of, warnings=warnings)
    assert (found.connect_timeout, found.root_namespace) == (timedelta(seconds=4), "istio-config")
    assert [(problem.path, problem.line) for problem in warnings if "removed in Istio" in problem.reason] == [
        ("disablePolicyChecks", 1),
        ("mixerCheckServer", 5),
        ("mixerReportServer", 6),
        ("policyCheckFailOpen", 7),
        ("sdsUdsPath", 9),
        ("enableSdsTokenMount", 10),
        ("sdsUseK8sSaJwt", 11),
        ("defaultConfig.connectTimeout", 15),
        ("defaultConfig.parentShutdownDuration", 16),
    ]
    assert all(len(str(problem)) < 200 for problem in warnings)


def test_the_defaults_of_istio_1_14_are_read() -> None:
    said = problems_of(ISTIO_1_14)
    assert [line.split(":")[1].strip() for line in said if "removed in" in line] == [
        "thriftConfig",
        "defaultConfig.parentShutdownDuration",
    ]


def test_a_removed_field_may_be_written_with_underscores_and_may_be_null() -> None:
    assert "removed in Istio 1.8" in problems_of({"mixer_check_server": "a"})[0]
    assert problems_of({"mixerCheckServer": None}) == []


def test_what_never_was_a_field_stays_an_error_without_a_list_of_all_there_are() -> None:
    assert problems_of({"meshExpansion": {}, "mixerChekServer": "a"}) == [
        'meshExpansion: unknown field "meshExpansion"',
        'mixerChekServer: unknown field "mixerChekServer"; did you mean mixerCheckServer?',
    ]


def test_removed_fields_are_not_there_any_more() -> None:
    for message, fields in REMOVED.items():
        assert not set(fields) & set(descriptor_of(message).by_name), message


@pytest.mark.parametrize("text", ["{bad json", "[]", '"a"', "1", "{" * 5000, '{"a": NaN}', '{"a": "\\ud800"}'])
def test_a_log_format_that_is_no_json_object_gives_way_to_the_default(text: str) -> None:
    data = {"accessLogFile": "/dev/stdout", "accessLogEncoding": "JSON", "accessLogFormat": text}
    (said,) = problems_of(data)
    assert said.startswith("warning: accessLogFormat: is not a JSON object") and "the default is used" in said
    assert mesh(data).access_log_format == ""


def test_other_log_formats_stay_as_they_are() -> None:
    for data in (
        {"accessLogEncoding": "JSON", "accessLogFormat": '{"a": {"b": "%PROTOCOL%"}}'},
        {"accessLogEncoding": "TEXT", "accessLogFormat": "{bad json"},
    ):
        assert problems_of(data) == []
        assert mesh(data).access_log_format == data["accessLogFormat"]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"accessLogFormat": "%FOO%"}, "accessLogFormat: '%FOO%' is not a command"),
        ({"accessLogFormat": "%REQ(a"}, "accessLogFormat: '%REQ(a' has a \"%\" that"),
        (
            {"accessLogEncoding": "JSON", "accessLogFormat": '{"a": "%PROTOCOL%", "b": {"c": ["%FOO%"]}}'},
            "accessLogFormat: field b: '%FOO%' is not a command",
        ),
    ],
)
def test_a_log_format_that_envoy_refuses_is_refused_where_it_is_used(data: dict[str, Any], said: str) -> None:
    assert problems_of(data) == [f"warning: {problem}" for problem in problems_of({**data, "accessLogFile": "a"})]
    (problem,) = problems_of({**data, "accessLogFile": "/dev/stdout"})
    assert problem.startswith(said)


def test_settings_of_calls_to_trace_collectors_that_envoy_would_refuse_are_warned_of() -> None:
    headers = [{"name": "a", "value": "b"}, {"name": "a b", "value": "c"}, {"name": "c", "value": "1%"}]
    providers = [
        {"name": "z", "zipkin": {"service": "a.b", "port": 1, "timeout": "-1s", "headers": headers}},
        {
            "name": "o",
            "opentelemetry": {"service": "a.b", "port": 1, "http": {"path": "/", "timeout": "0s", "headers": headers}},
        },
        {"name": "g", "opentelemetry": {"service": "a.b", "port": 1, "grpc": {"initialMetadata": headers}}},
    ]
    found: list[Problem] = []
    decode_mesh({"extensionProviders": providers}, origin=Origin("test"), warnings=found)
    assert [problem.path.partition(".")[2] for problem in found] == [
        "zipkin.timeout",
        "zipkin.headers[1]",
        "zipkin.headers[2]",
        "opentelemetry.http.headers[1]",
        "opentelemetry.http.headers[2]",
        "opentelemetry.grpc.initialMetadata[1]",
        "opentelemetry.grpc.initialMetadata[2]",
    ]
