"""CUSTOM policies for which nobody can be asked are told, each with the reason and whom it is about."""

from __future__ import annotations

import pytest

from mesh_pilot.envoy.catalog.catalog import WorldCatalog
from mesh_pilot.ops.observers.problem_log import ProblemLog
from mesh_pilot.ops.values.problems import at_proxies
from tests.support.rows import rows
from tests.support.worlds import sidecar, world_of

SERVICE = """
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: opa, namespace: shop}
spec:
  hosts: [opa.example.com]
  resolution: STATIC
  ports: [{number: 9191, name: grpc, protocol: GRPC}]
  endpoints: [{address: 10.9.9.9}]
"""
MESH = """
extensionProviders:
- {name: opa, envoyExtAuthzGrpc: {service: opa.example.com, port: 9191}}
- {name: also, envoyExtAuthzGrpc: {service: opa.example.com, port: 9191}}
- {name: lost, envoyExtAuthzGrpc: {service: lost.example.com, port: 9191}}
- {name: logs, envoyFileAccessLog: {path: /dev/stdout}}
- {name: empty, envoyExtAuthzGrpc: {service: opa.example.com, port: 9191, includeRequestBodyInCheck: {}}}
- {name: path, envoyExtAuthzHttp: {service: opa.example.com, port: 9191, pathPrefix: check}}
- name: header
  envoyExtAuthzHttp: {service: opa.example.com, port: 9191, includeAdditionalHeadersInCheck: {x: "%FOO%"}}
"""


def custom(name: str, provider: str) -> str:
    return f"""
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {{name: {name}, namespace: shop}}
spec: {{action: CUSTOM, provider: {{name: {provider}}}, rules: [{{}}]}}
"""


def catalog(*policies: str) -> WorldCatalog:
    found = WorldCatalog(world_of(SERVICE + "".join(policies), mesh=MESH))
    found.open(sidecar(name="web", namespace="shop"))
    found.open(sidecar(name="other", namespace="other"))
    return found


@pytest.mark.parametrize(
    ("policies", "reason"),
    [
        ((custom("a", "opa"),), ""),
        ((custom("a", "nobody"),), "the mesh config has no extension provider nobody"),
        ((custom("a", "logs"),), "extension provider logs is neither envoyExtAuthzHttp nor envoyExtAuthzGrpc"),
        ((custom("a", "lost"),), "extension provider lost: no service lost.example.com with port 9191"),
        (
            (custom("a", "empty"),),
            "extension provider empty: includeRequestBodyInCheck.maxRequestBytes is missing or 0",
        ),
        ((custom("a", "path"),), 'extension provider path: pathPrefix "check" does not start with "/"'),
        (
            (custom("a", "header"),),
            "extension provider header: includeAdditionalHeadersInCheck[x] '%FOO%' is not a command that Envoy has; "
            'write a percent sign as "%%"',
        ),
        ((custom("a", "opa"), custom("b", "also")), "there can be one provider for a workload, not opa, also"),
        (
            (custom("a", "opa"), custom("b", "lost")),
            "extension provider lost: no service lost.example.com with port 9191",
        ),
    ],
)
def test_the_reason_is_told_with_the_policies_and_the_proxies(policies: tuple[str, ...], reason: str) -> None:
    found = rows(at_proxies(catalog(*policies).diagnostics().denied()))
    assert [(entry["reason"], entry["proxies"], entry["proxies_in_all"]) for entry in found] == (
        [(reason, ["web.shop"], 1)] if reason else []
    )


def test_a_grpc_server_can_ask_nobody() -> None:
    found = WorldCatalog(world_of(SERVICE + custom("a", "opa"), mesh=MESH))
    found.open(sidecar(name="grpc", namespace="shop", GENERATOR="grpc"))
    assert [entry["reason"] for entry in rows(at_proxies(found.diagnostics().denied()))] == [
        "a gRPC server has no way to ask"
    ]


def test_it_is_logged_once(capsys: pytest.CaptureFixture[str]) -> None:
    world = world_of(SERVICE + custom("a", "lost"), mesh=MESH)
    opened = WorldCatalog(world)
    opened.open(sidecar(name="web", namespace="shop"))
    problems = ProblemLog(opened, world)
    problems.log_new()
    problems.log_new()
    assert capsys.readouterr().out.count("CUSTOM authorization provider unavailable") == 1
