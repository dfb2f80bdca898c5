"""Hosts and rules that are for their own namespace alone (``exportTo: ['.']``) know each other."""

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
