"""ReferenceGrants permit what they say: kinds of the Gateway API to refer to objects of the core, no others."""

from __future__ import annotations

import pytest

from mesh_pilot.istio.gateway_api.grants import ALL, Permission, permissions
from tests.support.worlds import configs

GRANT = """
apiVersion: gateway.networking.k8s.io/v1beta1
kind: ReferenceGrant
metadata: {name: grant, namespace: data}
spec:
  from: [{group: FROM, kind: HTTPRoute, namespace: shop}]
  to: [{group: TO, kind: Service}]
"""
OURS = "gateway.networking.k8s.io"


@pytest.mark.parametrize(
    ("source", "target", "is_permitted"),
    [(OURS, '""', True), ("routes.example.com", '""', False), (OURS, "services.example.com", False)],
)
def test_a_kind_of_another_group_is_another_kind(source: str, target: str, is_permitted: bool) -> None:
    (grant,) = configs(GRANT.replace("FROM", source).replace("TO", target))
    expected = [Permission("HTTPRoute", "shop", "Service", "data", ALL)] if is_permitted else []
    assert list(permissions(grant)) == expected
