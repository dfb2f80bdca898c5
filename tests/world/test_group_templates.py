"""Labels of WorkloadEntries in a group: the entry's own come before the template's, those before the group's."""

from __future__ import annotations

from mesh_pilot.world.service_entries import from_template
from tests.support.worlds import configs

TEXT = """
apiVersion: networking.istio.io/v1
kind: WorkloadGroup
metadata: {name: web, namespace: shop}
spec:
  metadata: {labels: {a: group, b: group, c: group}}
  template: {labels: {a: template, b: template}, ports: {http: 1, admin: 1}}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: vm-1, namespace: shop}
spec: {address: 10.0.0.1, labels: {a: entry}, ports: {http: 2}}
"""


def test_what_is_nearer_to_the_workload_has_precedence() -> None:
    group, workload = configs(TEXT)
    found = from_template(workload, group).spec
    assert found.labels == {"a": "entry", "b": "template", "c": "group"}
    assert found.ports == {"http": 2, "admin": 1}
