"""The security kinds of Istio 1.1, from Consul's KV store and from Kubernetes (from a Galley: `test_mcp_galley`)."""

from __future__ import annotations

import pytest

from mesh_pilot.consul.source.configs import read_config
from mesh_pilot.istio.reading.decode import decode
from mesh_pilot.model.config import ConfigError, ConfigKey, Origin

PREFIX = "mesh-pilot/config"


def text(group: str, kind: str, spec: str = "{}") -> bytes:
    return f"apiVersion: {group}/v1alpha1\nkind: {kind}\nspec: {spec}\n".encode()


@pytest.mark.parametrize(
    ("path", "body", "key"),
    [
        ("Policy/shop/default", text("authentication.istio.io", "Policy"), ConfigKey("Policy", "shop", "default")),
        (
            "servicerole/shop/reader",
            text("rbac.istio.io", "ServiceRole", "{rules: [{services: ['*']}]}"),
            ConfigKey("ServiceRole", "shop", "reader"),
        ),
        ("MeshPolicy/default", text("authentication.istio.io", "MeshPolicy"), ConfigKey("MeshPolicy", "", "default")),
        (
            "ClusterRbacConfig/default",
            text("rbac.istio.io", "ClusterRbacConfig", "{mode: 'ON'}"),
            ConfigKey("ClusterRbacConfig", "", "default"),
        ),
        (
            "ClusterRbacConfig/any/default",
            text("rbac.istio.io", "ClusterRbacConfig"),
            ConfigKey("ClusterRbacConfig", "", "default"),
        ),
    ],
)
def test_the_key_value_store_has_them(path: str, body: bytes, key: ConfigKey) -> None:
    assert read_config(PREFIX, f"{PREFIX}/{path}", body, "consul").key == key


def test_an_object_of_a_namespace_needs_it_in_its_key() -> None:
    for path in ("Policy/default", "MeshPolicy", "MeshPolicy/"):
        with pytest.raises(ConfigError, match="the key must be"):
            read_config(PREFIX, f"{PREFIX}/{path}", text("authentication.istio.io", "Policy"), "consul")


def test_kubernetes_has_them() -> None:
    metadata = {"name": "default", "resourceVersion": "7", "uid": "x"}
    document = {"apiVersion": "rbac.istio.io/v1alpha1", "kind": "ClusterRbacConfig", "metadata": metadata}
    config = decode({**document, "spec": {"mode": "ON_WITH_INCLUSION"}}, origin=Origin("kubernetes"))
    assert config.key == ConfigKey("ClusterRbacConfig", "", "default")
