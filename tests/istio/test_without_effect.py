"""Fields that nothing carries out are named, with the reason; an object that has one is in force all the same."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

import mesh_pilot
from mesh_pilot.api.istio.mesh import v1alpha1 as mesh
from mesh_pilot.api.istio.mesh.v1alpha1 import MeshConfig, MeshNetworks
from mesh_pilot.istio.kinds import ISTIO_KINDS, KINDS
from mesh_pilot.istio.meaning.descriptors import descriptor_of
from mesh_pilot.istio.reading.decode import Metadata, decode_binary
from mesh_pilot.istio.reading.decode_json import read_message
from mesh_pilot.istio.reading.field_warnings import DEPRECATED, WITHOUT_EFFECT
from mesh_pilot.istio.reading.mesh import decode_mesh, decode_networks
from mesh_pilot.model.config import ConfigError, Origin, Problem, Severity
from tests.support.rules import problems_of

ROOT = Path(mesh_pilot.__file__).parent


def mesh_warnings(document: object) -> dict[str, str]:
    found: list[Problem] = []
    decode_mesh(document, origin=Origin("test"), warnings=found)
    assert all(problem.severity is Severity.WARNING for problem in found)
    return {problem.path: problem.reason for problem in found}


def test_the_tables_name_fields_that_there_are() -> None:
    for table in (WITHOUT_EFFECT, DEPRECATED):
        for message, fields in table.items():
            assert set(fields) <= {field.proto_name for field in descriptor_of(message).fields}, message


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ({"hboneIdleTimeout": "3s"}, "hboneIdleTimeout"),
        ({"hbone_idle_timeout": "3s"}, "hbone_idle_timeout"),
        ({"defaultConfig": {"statusPort": 4}}, "defaultConfig.statusPort"),
        (
            {"extensionProviders": [{"name": "a", "opencensus": {"service": "a.b", "port": 1}}]},
            "extensionProviders[0].opencensus",
        ),
        (
            {
                "extensionProviders": [
                    {"name": "a", "lightstep": {"service": "a.b", "port": 1, "accessToken": "secret"}}
                ]
            },
            "extensionProviders[0].lightstep",
        ),
        (
            {"configSources": [{"address": "xds://a:1", "subscribedResources": ["SERVICE_REGISTRY"]}]},
            "configSources[0].subscribedResources",
        ),
        ({"defaultConfig": {"tracing": {"stackdriver": {}}}}, "defaultConfig.tracing.stackdriver"),
        (
            {"defaultConfig": {"connectionSettings": {"listenerConnectionLimit": 5}}},
            "defaultConfig.connectionSettings.listenerConnectionLimit",
        ),
    ],
)
def test_a_mesh_wide_setting_without_effect_is_named(document: object, path: str) -> None:
    found = mesh_warnings(document)
    assert list(found) == [path]
    assert found[path].startswith("has no effect: ")


def test_settings_with_an_effect_are_not_named() -> None:
    assert mesh_warnings({"enableAutoMtls": True, "defaultConfig": {"gatewayTopology": {"numTrustedProxies": 1}}}) == {}


def test_objects_that_have_such_a_field_are_in_force() -> None:
    (image,) = problems_of("ProxyConfig", {"concurrency": 2, "image": {"imageType": "debug"}})
    assert (image.path, image.severity) == ("spec.image", Severity.WARNING)
    assert image.reason.startswith("has no effect: ")
    assert problems_of("WorkloadGroup", {"template": {}, "probe": {"httpGet": {"port": 80}}}) == []


@pytest.mark.parametrize(
    ("kind", "spec", "paths"),
    [
        ("Telemetry", {"metrics": [{"reportingInterval": "5s"}]}, ["metrics[0].reportingInterval"]),
        (
            "Gateway",
            {
                "servers": [
                    {
                        "port": {"number": 443, "name": "a", "protocol": "HTTPS"},
                        "hosts": ["*"],
                        "defaultEndpoint": "127.0.0.1:80",
                        "tls": {
                            "mode": "SIMPLE",
                            "tlsCertificates": [{"serverCertificate": "c", "privateKey": "k", "caCertificates": "d"}],
                        },
                    }
                ]
            },
            ["servers[0].defaultEndpoint", "servers[0].tls.tlsCertificates[0].caCertificates"],
        ),
        (
            "Sidecar",
            {
                "ingress": [
                    {"port": {"number": 6379, "name": "a", "protocol": "REDIS"}, "connectionPool": {"http": {}}},
                    {"port": {"number": 80, "name": "b", "protocol": "GRPC"}, "connectionPool": {"http": {}}},
                    {"port": {"number": 81, "name": "c"}, "connectionPool": {"http": {}}},
                ]
            },
            ["ingress[0].connectionPool.http"],
        ),
        ("WorkloadGroup", {"template": {}, "metadata": {"annotations": {"a": "b"}}}, ["metadata.annotations"]),
        (
            "GatewayClass",
            {"controllerName": "a.test/b", "parametersRef": {"group": "a.test", "kind": "A", "name": "a"}},
            ["parametersRef"],
        ),
        (
            "BackendTLSPolicy",
            {
                "targetRefs": [{"group": "", "kind": "Service", "name": "a"}],
                "validation": {"wellKnownCACertificates": "System", "hostname": "a.test"},
                "options": {"a.test/b": "c"},
            },
            ["options"],
        ),
        (
            "XBackendTrafficPolicy",
            {
                "targetRefs": [{"group": "", "kind": "Service", "name": "a"}],
                "retryConstraint": {"budget": {"percent": 30, "interval": "10s"}, "minRetryRate": {"interval": "1s"}},
            },
            ["retryConstraint.minRetryRate.interval"],
        ),
        (
            "IngressClass",
            {"controller": "a.test/b", "parameters": {"kind": "A", "name": "a"}},
            ["parameters"],
        ),
    ],
)
def test_a_field_of_an_object_without_effect_is_named(kind: str, spec: object, paths: list[str]) -> None:
    found = problems_of(kind, spec)
    assert [problem.path for problem in found] == [f"spec.{path}" for path in paths]
    assert all(p.severity is Severity.WARNING and p.reason.startswith("has no effect: ") for p in found)


PASSED_ON = {"WorkloadGroup.probe"}
"""Fields that agents get whole."""

FOR_AGENTS = mesh.ProxyConfig
"""The message of which, and of whose parts, agents read some fields, by their names in YAML."""


def names_in(*files: Path) -> set[str]:
    """Attributes, and constant texts."""
    found = set()
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute):
                found.add(node.attr)
            elif isinstance(node, ast.Constant):
                found.add(str(node.value))
    return found


def names_that_agents_use() -> set[str]:
    """Names in the code of agents."""
    files = [*(ROOT / "agent").rglob("*.py"), *(ROOT / "cli" / "proxy").glob("*.py")]
    return names_in(*files)


REFUSED = {"HttpFaultInjectionDelay.exponential_delay", "HttpFaultInjectionAbort.http2_error"}
"""Fields whose use validation refuses."""


def test_every_field_is_read_somewhere_or_told_to_have_no_effect() -> None:
    """By name: a field that shares its name with one that is read is not found out."""
    read = names_in(
        *(
            path
            for path in ROOT.rglob("*.py")
            if path.relative_to(ROOT).parts[0] not in ("api", "config")
            or (path.parent.name == "meaning" and path.name.startswith("legacy_"))
        )
    )
    read_by_agents = names_that_agents_use()
    messages = [kind.message for kind in ISTIO_KINDS.values()]
    messages += [MeshConfig, MeshNetworks]
    for_agents: list[Any] = [FOR_AGENTS]
    for message in messages:  # grows
        for field in descriptor_of(message).fields:
            if field.proto_name in {*WITHOUT_EFFECT.get(message, ()), *DEPRECATED.get(message, ())}:
                continue
            if f"{message.__name__}.{field.proto_name}" in PASSED_ON:
                continue
            unread = field.python_name not in read
            if unread and message in for_agents:
                unread = field.json_name not in read_by_agents
            assert not unread or f"{message.__name__}.{field.proto_name}" in REFUSED, field.proto_name
            for inner in (field.message, field.value and field.value.message):
                if inner is not None and inner not in messages:
                    messages.append(inner)
                if inner is not None and message in for_agents:
                    for_agents.append(inner)


def test_a_deprecated_field_that_is_not_carried_out_says_so() -> None:
    outliers = {"host": "a", "trafficPolicy": {"outlierDetection": {"consecutiveErrors": 5}}}
    (problem,) = problems_of("DestinationRule", outliers)
    assert "no effect" in problem.reason and "consecutive5xxErrors" in problem.reason


def test_where_an_object_is_refused_the_errors_come_first() -> None:
    with pytest.raises(ConfigError) as caught:
        decode_mesh({"enablePrometheusMerge": True, "connectTimeout": "soon"}, origin=Origin("test"))
    assert [p.path for p in caught.value.problems] == ["connectTimeout", "enablePrometheusMerge"]


def test_a_gateway_of_a_network_may_have_a_name_but_its_locality_has_no_effect() -> None:
    found: list[Problem] = []
    networks = {"networks": {"east": {"gateways": [{"address": "gw.example", "port": 1, "locality": "eu"}]}}}
    decode_networks(networks, origin=Origin("test"), warnings=found)
    assert [p.path for p in found] == ["networks[east].gateways[0].locality"]


def test_such_fields_are_named_in_binary_objects_too() -> None:
    for kind, data, path in (
        ("WorkloadGroup", {"template": {}, "metadata": {"annotations": {"a": "b"}}}, "spec.metadata.annotations"),
        ("ProxyConfig", {"image": {"imageType": "debug"}}, "spec.image"),
        (
            "DestinationRule",
            {"host": "a", "trafficPolicy": {"outlierDetection": {"consecutiveErrors": 5}}},
            "spec.trafficPolicy.outlierDetection.consecutiveErrors",
        ),
    ):
        (written,) = problems_of(kind, data)
        spec: list[Problem] = []
        body = bytes(read_message(KINDS[kind].message, data, "spec", spec) or b"")
        config = decode_binary(KINDS[kind], body, Metadata("x", "shop"), origin=Origin("test"))
        assert [(p.path, p.reason) for p in config.warnings] == [(path, written.reason)]
