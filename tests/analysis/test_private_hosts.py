"""Hosts as the rules that name them find them: those of their own namespace alone, below a wildcard, without a dot."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from mesh_pilot.explain.analysis.command_line import analyze

MESH = """\
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: reviews, namespace: shop}
spec: {hosts: [reviews.shop.test], exportTo: ['.'], resolution: DNS, ports: [{number: 80, name: http, protocol: HTTP}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: reviews, namespace: NAMESPACE}
spec:
  hosts: [reviews.shop.test]
  exportTo: ['.']
  http: [{route: [{destination: {host: reviews.shop.test}}]}]
"""


@pytest.mark.parametrize(("namespace", "codes"), [("shop", []), ("other", ["IST0101"])])
def test_a_rule_of_the_namespace_sees_its_private_host(namespace: str, codes: list[str], tmp_path: Path) -> None:
    (tmp_path / "mesh.yaml").write_text(MESH.replace("NAMESPACE", namespace))
    found = analyze([str(tmp_path / "mesh.yaml")], io.BytesIO())
    assert [finding.code for finding in found.findings] == codes


def messages(text: str, folder: Path) -> list[tuple[str, str, str]]:
    (folder / "mesh.yaml").write_text(text)
    return [(f.code, f.reason, f.fix) for f in analyze([str(folder / "mesh.yaml")], io.BytesIO()).findings]


@pytest.mark.parametrize(
    ("ports", "hosts", "left_out"),
    [
        ("{number: 80, name: http}", "www.shop.test", ""),
        ("{number: 80, name: http}, {number: 9090, name: http-alt}", "www.shop.test", "9090"),
        ("{number: 8080, protocol: HTTP, name: a}, {number: 9000, name: tcp}", "www.shop.test", "8080"),
        ("{number: 8080, name: http}", "'*.shop.test'", ""),
    ],
)
def test_routes_for_a_host_below_a_wildcard_apply_to_port_80_only(
    ports: str, hosts: str, left_out: str, tmp_path: Path
) -> None:
    text = MESH.replace("hosts: [reviews.shop.test], exportTo", "hosts: ['*.shop.test'], exportTo")
    text = text.replace("hosts: [reviews.shop.test]", f"hosts: [{hosts}]").replace("NAMESPACE", "shop")
    text = text.replace("resolution: DNS", "resolution: NONE").replace(
        "{number: 80, name: http, protocol: HTTP}", ports
    )
    found = [(reason, fix) for code, reason, fix in messages(text, tmp_path) if code == "MP0019"]
    fix = f"Declare www.shop.test in a ServiceEntry: its routes do not apply to {left_out} of *.shop.test."
    assert found == ([("no service has the host www.shop.test; did you mean *.shop.test?", fix)] if left_out else [])


def test_a_name_without_a_dot_in_a_service_entry_is_not_that_of_a_rule(tmp_path: Path) -> None:
    rule = """
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: db, namespace: shop}
spec: {host: db}
"""
    entry = MESH.partition("---")[0].replace("reviews.shop.test", "db")
    assert [code for code, _, _ in messages(entry + rule, tmp_path)] == ["IST0174"]


TCP = """
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop}
spec:
  selector: {istio: edge}
  servers:
  - {port: {number: 5591, name: tcp, protocol: TCP}, hosts: ["*"]}
  - {port: {number: 5592, name: other, protocol: TCP}, hosts: ["*"]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: db, namespace: shop}
spec: {hosts: [db.test], addresses: [10.1.1.1], resolution: DNS, ports: [{number: 1, name: tcp, protocol: TCP}]}
""" + "".join(
    f"""
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {{name: {name}, namespace: shop}}
spec:
  hosts: [{name}.test]
  gateways: [edge]
  tcp: [{{MATCH_{name} route: [{{destination: {{host: db.test}}}}]}}]
"""
    for name in ("a", "b")
)


@pytest.mark.parametrize(
    ("a", "b", "is_shadowed"),
    [
        ("", "", True),
        ("", "match: [{port: 5592}],", True),
        ("match: [{port: 5591}],", "match: [{port: 5592}],", False),
        ("match: [{port: 5591}],", "", False),
        ("match: [{sourceSubnet: 10.0.0.0/8}],", "", False),
        ("match: [{port: 5591}, {port: 5592, sourceSubnet: 10.0.0.0/8}],", "match: [{port: 5592}],", False),
    ],
)
def test_tcp_rules_of_a_gateways_port_are_not_told_apart_by_host(
    a: str, b: str, is_shadowed: bool, tmp_path: Path
) -> None:
    found = messages(TCP.replace("MATCH_a", a).replace("MATCH_b", b), tmp_path)
    reason = "is never used: tcp[0] of shop/a matches every request that this one does"
    assert [(code, text) for code, text, _ in found] == ([("MP0020", reason)] if is_shadowed else [])


def test_a_host_below_a_wildcard_service_is_no_destination_and_has_no_rule(tmp_path: Path) -> None:
    """Proxies have one cluster for the service, by its own host."""
    text = MESH.replace("hosts: [reviews.shop.test], exportTo", "hosts: ['*.shop.test'], exportTo")
    text = text.replace("resolution: DNS", "resolution: NONE").replace("NAMESPACE", "shop")
    rule = (
        "---\napiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: reviews, namespace: shop}\n"
    )
    rule += "spec: {host: %s}\n"
    found = [(code, fix) for code, _, fix in messages(text + rule % "reviews.shop.test", tmp_path)]
    assert sorted(found) == [
        ("MP0001", "Write *.shop.test, the host of the service."),
        ("MP0001", "Write *.shop.test."),
    ]
    right = text.replace("host: reviews.shop.test", "host: '*.shop.test'")
    assert messages(right + rule % "'*.shop.test'", tmp_path) == []
