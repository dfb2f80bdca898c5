"""Extension providers whose service or port does not exist."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mesh_pilot.explain.analysis.analyze import analyze
from tests.support.worlds import world_of

SERVICE = """
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: there, namespace: shop}
spec: {hosts: [there.test], resolution: DNS, ports: [{number: 9000, name: grpc, protocol: GRPC}]}
"""
POLICY = """
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: ext, namespace: shop}
spec:
  action: CUSTOM
  provider: {name: p}
  rules: [{to: [{operation: {paths: ["/admin*"]}}]}]
"""
KINDS: dict[str, dict[str, Any]] = {
    "envoyExtAuthzGrpc": {},
    "envoyExtAuthzHttp": {},
    "zipkin": {},
    "skywalking": {},
    "opentelemetry": {},
    "envoyHttpAls": {},
    "envoyTcpAls": {},
    "envoyOtelAls": {},
}


def said(kind: str, service: str, port: int, text: str = SERVICE, **more: Any) -> list[tuple[str, str, str, str]]:
    provider = {"name": "p", kind: {"service": service, "port": port, **more}}
    found = analyze(world_of(text, mesh=json.dumps({"extensionProviders": [provider]})))
    return [(m.type.code, m.config.key.kind, m.path, m.text) for m in found if m.type.code in ("MP0008", "MP0022")]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("service", "port", "field", "reason"),
    [
        ("none.example", 9000, "service", "no service none.example is known"),
        ("ther.test", 9000, "service", "did you mean there.test?"),
        ("other/there.test", 9000, "service", "no service other/there.test is known"),
        ("there.test", 80, "port", "there.test has no port 80; its ports are 9000"),
    ],
)
def test_a_provider_whose_service_or_port_does_not_exist_is_told(
    kind: str, service: str, port: int, field: str, reason: str
) -> None:
    ((code, object, path, message),) = said(kind, service, port)
    assert (code, object, path) == ("MP0008", "MeshConfig", f"extensionProviders[p].{kind}.{field}")
    assert reason in message


@pytest.mark.parametrize("service", ["there.test", "shop/there.test"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_provider_that_can_be_called_is_not_told(kind: str, service: str) -> None:
    assert said(kind, service, 9000, SERVICE + POLICY) == []


@pytest.mark.parametrize("kind", ["envoyExtAuthzGrpc", "envoyExtAuthzHttp"])
@pytest.mark.parametrize(("service", "port"), [("none.example", 9000), ("there.test", 80)])
def test_a_policy_is_told_that_its_provider_cannot_be_asked(kind: str, service: str, port: int) -> None:
    found = said(kind, service, port, SERVICE + POLICY)
    ((_, _, path, message),) = [each for each in found if each[0] == "MP0022"]
    assert path == "spec.provider.name"
    assert "what the policy matches is denied" in message


def test_a_host_of_consul_may_be_there_where_no_consul_is_read() -> None:
    assert said("zipkin", "jaeger.service.consul", 9411) != []  # the World is whole: its Consul has no such service
