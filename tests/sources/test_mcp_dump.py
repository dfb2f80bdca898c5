"""A dump shows each object under the version that it was asked for in."""

from __future__ import annotations

import pytest

from mesh_pilot.sources.mcp.dump import as_document
from mesh_pilot.xds.mcp.messages import McpResource


@pytest.mark.parametrize(
    ("collection", "version", "kind"),
    [
        ("networking.istio.io/v1/Gateway", "networking.istio.io/v1", "Gateway"),
        ("networking.istio.io/v1alpha3/Gateway", "networking.istio.io/v1alpha3", "Gateway"),
        ("security.istio.io/v1/AuthorizationPolicy", "security.istio.io/v1", "AuthorizationPolicy"),
        ("istio/networking/v1alpha3/gateways", "networking.istio.io/v1alpha3", "Gateway"),
        ("core/v1alpha1/MeshConfig", "v1", "ConfigMap"),
    ],
)
def test_an_object_has_the_version_of_its_collection(collection: str, version: str, kind: str) -> None:
    found = dict(as_document(collection, McpResource("shop/edge", "1", "type.googleapis.com/x", b"")))
    assert (found["apiVersion"], found["kind"]) == (version, kind)
