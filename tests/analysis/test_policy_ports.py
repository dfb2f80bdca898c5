"""Ports in policies, and rules for requests at workloads that have TCP ports."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mesh_pilot.explain.analysis.analyze import analyze
from tests.support.worlds import world_of

SERVICES = """
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: app, namespace: shop}
spec:
  hosts: [app.test]
  addresses: [240.0.1.1]
  location: MESH_INTERNAL
  resolution: STATIC
  ports:
  - {number: 80, name: http, protocol: HTTP, targetPort: 9001}
  - {number: 3000, name: tcp, protocol: TCP}
  workloadSelector: {labels: {app: app}}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: app-1, namespace: shop}
spec: {address: 10.0.0.3, labels: {app: app}}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: web, namespace: shop}
spec:
  hosts: [web.test]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 8080, name: http, protocol: HTTP}]
  endpoints: [{address: 10.0.0.4, labels: {app: web}, ports: {http: 18080}}]
"""
MESH = "extensionProviders: [{name: grpc, envoyExtAuthzGrpc: {service: app.test, port: 80}}]"


def policy(
    rule: Any = None, action: str = "DENY", labels: Any = None, kind: str = "AuthorizationPolicy", **spec: Any
) -> str:
    selector = {} if labels == {} else {"selector": {"matchLabels": labels or {"app": "app"}}}
    more = {} if rule is None else {"action": action, "rules": [rule]}
    if action == "CUSTOM":
        more["provider"] = {"name": "grpc"}
    document = {
        "apiVersion": "security.istio.io/v1",
        "kind": kind,
        "metadata": {"name": "p", "namespace": "shop"},
        "spec": {**selector, **more, **spec},
    }
    return "\n---\n" + json.dumps(document)


def operation(**fields: Any) -> Any:
    return {"to": [{"operation": fields}]}


def said(code: str, *texts: str) -> list[tuple[str, str]]:
    found = analyze(world_of("".join((SERVICES, *texts)), mesh=MESH))
    return [(message.path, message.text) for message in found if message.type.code == code]


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (policy(operation(ports=["80"])), "spec.rules[0].to[0].operation.ports[0]"),
        (policy(operation(ports=["9001", "80"])), "spec.rules[0].to[0].operation.ports[1]"),
        (policy(operation(notPorts=["80"]), "ALLOW"), "spec.rules[0].to[0].operation.notPorts[0]"),
        (policy({"when": [{"key": "destination.port", "values": ["80"]}]}), "spec.rules[0].when[0].values[0]"),
        (policy({"when": [{"key": "destination.port", "notValues": ["80"]}]}), "spec.rules[0].when[0].notValues[0]"),
        (policy(operation(ports=["8080"]), "ALLOW", {"app": "web"}), "spec.rules[0].to[0].operation.ports[0]"),
        (policy(operation(ports=["80"]), labels={}), "spec.rules[0].to[0].operation.ports[0]"),
        (policy(operation(ports=["80"]), "CUSTOM"), "spec.rules[0].to[0].operation.ports[0]"),
        (
            policy(kind="PeerAuthentication", mtls={"mode": "STRICT"}, portLevelMtls={"80": {"mode": "DISABLE"}}),
            "spec.portLevelMtls[80]",
        ),
    ],
)
def test_the_port_of_a_service_in_a_policy_is_told_with_that_of_the_workload(text: str, path: str) -> None:
    ((where, message),) = said("MP0030", text)
    assert where == path
    assert ("9001" if "app" in message else "18080") in message


SIDECAR = """
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: s, namespace: shop}
spec: {ingress: [{port: {number: 80, name: http, protocol: HTTP}, defaultEndpoint: "127.0.0.1:9001"}]}
"""
GATEWAY = """
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: g, namespace: shop}
spec: {selector: {app: app}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ["*"]}]}
"""


@pytest.mark.parametrize(
    "texts",
    [
        (policy(operation(ports=["9001"])),),
        (policy(operation(ports=["3000"])),),
        (policy(operation(ports=["15020"])),),  # a port that no service has may be listened on all the same
        (policy(operation(ports=["80"]), labels={"app": "none"}),),
        (policy(operation(ports=["80"])), SIDECAR),
        (policy(operation(ports=["80"])), GATEWAY),
    ],
)
def test_a_port_that_a_selected_workload_may_listen_on_is_not_told(texts: tuple[str, ...]) -> None:
    assert said("MP0030", *texts) == []


@pytest.mark.parametrize(
    ("rule", "path"),
    [
        (operation(methods=["POST"]), "spec.rules[0].to[0].operation.methods"),
        (operation(notPaths=["/a"], ports=["3000"]), "spec.rules[0].to[0].operation.notPaths"),
        (operation(hosts=["a.test"], notPorts=["9001"]), "spec.rules[0].to[0].operation.hosts"),
        (
            {"from": [{"source": {"requestPrincipals": ["*"]}}], **operation(ports=["3000"])},
            "spec.rules[0].from[0].source.requestPrincipals",
        ),
        ({"from": [{"source": {"notRequestPrincipals": ["*"]}}]}, "spec.rules[0].from[0].source.notRequestPrincipals"),
        ({"when": [{"key": "request.headers[x]", "values": ["a"]}]}, "spec.rules[0].when[0].key"),
        ({"when": [{"key": "request.auth.claims[x]", "values": ["a"]}]}, "spec.rules[0].when[0].key"),
    ],
)
def test_a_rule_for_requests_that_closes_tcp_ports_is_told(rule: Any, path: str) -> None:
    ((where, message),) = said("MP0031", policy(rule))
    assert where == path
    assert message == "connections to the TCP ports 3000 (app.test) are denied, whatever this field says"


def test_a_provider_that_takes_connections_is_asked_about_them() -> None:
    ((where, message),) = said("MP0031", policy(operation(paths=["/a"]), "CUSTOM"))
    assert where == "spec.rules[0].to[0].operation.paths"
    assert "3000 (app.test) are passed to the provider" in message


@pytest.mark.parametrize(
    "text",
    [
        policy(operation(methods=["POST"], ports=["9001"])),
        policy(operation(methods=["POST"], notPorts=["3000"])),
        policy({**operation(methods=["POST"]), "when": [{"key": "destination.port", "values": ["9001"]}]}),
        policy({"from": [{"source": {"namespaces": ["other"]}}]}),  # a condition that connections can meet
        policy(operation(ports=["3000"])),
        policy(operation(methods=["POST"]), "ALLOW"),  # it allows no connection, which is what ALLOW says
        policy(operation(methods=["POST"]), labels={"app": "web"}),
    ],
)
def test_a_rule_that_says_what_it_does_is_not_told(text: str) -> None:
    assert said("MP0031", text) == []


def test_a_port_that_no_service_has_is_a_hint_of_a_live_plane() -> None:
    text = policy(operation(ports=["15020", "9001"]), "ALLOW")
    assert said("MP0038", text) == []
    found = [m for m in analyze(world_of(SERVICES + text, mesh=MESH), ()) if m.type.code == "MP0038"]
    assert [(m.path, m.text) for m in found] == [(
        "spec.rules[0].to[0].operation.ports[0]",
        "no service has port 15020 at the workloads that it selects: they serve 3000, 9001",
    )]  # fmt: skip
