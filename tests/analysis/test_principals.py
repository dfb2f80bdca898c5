"""Identities in policies that are nearly those of workloads that are known."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest

from mesh_pilot.explain.analysis.analyze import analyze
from mesh_pilot.model.spiffe import Identity
from tests.support.worlds import sidecar, world_of

SERVICES = """
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: db, namespace: shop}
spec: {address: 10.0.0.3, labels: {app: db}, serviceAccount: database}
---
"""
WEB = attrs.evolve(sidecar(name="web", namespace="shop"), identity=str(Identity("cluster.local", "shop", "web")))


def said(rule: Any, *, live: bool = True, code: str = "MP0032") -> list[tuple[str, str]]:
    policy = {
        "apiVersion": "security.istio.io/v1",
        "kind": "AuthorizationPolicy",
        "metadata": {"name": "p", "namespace": "shop"},
        "spec": {"rules": [rule]},
    }
    found = analyze(world_of(SERVICES + json.dumps(policy)), (WEB,) if live else None)
    return [(message.path, message.text) for message in found if message.type.code == code]


def source(**fields: Any) -> Any:
    return {"from": [{"source": fields}]}


@pytest.mark.parametrize(
    ("rule", "path", "meant"),
    [
        (source(principals=["cluster.local/ns/shop/sa/wbe"]), "from[0].source.principals[0]", "shop/web"),
        (source(principals=["*", "cluster.local/ns/shp/sa/web"]), "from[0].source.principals[1]", "shop/web"),
        (
            source(notPrincipals=["cluster.local/ns/shop/sa/databse"]),
            "from[0].source.notPrincipals[0]",
            "shop/database",
        ),
        (source(serviceAccounts=["wbe"]), "from[0].source.serviceAccounts[0]", "shop/web"),
        (source(serviceAccounts=["shop/wbe"]), "from[0].source.serviceAccounts[0]", "shop/web"),
        (
            {"when": [{"key": "source.principal", "values": ["cluster.local/ns/shop/sa/wbe"]}]},
            "when[0].values[0]",
            "shop/web",
        ),
    ],
)
def test_a_misspelt_identity_is_told_with_the_one_that_was_meant(rule: Any, path: str, meant: str) -> None:
    ((where, message),) = said(rule)
    assert where == f"spec.rules[0].{path}"
    assert f"did you mean {meant}?" in message
    assert said(rule, live=False) == []


@pytest.mark.parametrize(
    "rule",
    [
        source(principals=["cluster.local/ns/shop/sa/web", "other.test/ns/shop/sa/database"]),
        source(principals=["cluster.local/ns/shop/sa/w*", "*/sa/wbe"]),
        source(principals=["cluster.local/ns/elsewhere/sa/batch"]),
        source(serviceAccounts=["web"]),
    ],
)
def test_identities_of_workloads_wildcards_and_strangers_are_not_told(rule: Any) -> None:
    assert said(rule) == []


@pytest.mark.parametrize(
    ("rule", "path"),
    [
        (source(namespaces=["*", "shp"]), "from[0].source.namespaces[1]"),
        (source(notNamespaces=["shp"]), "from[0].source.notNamespaces[0]"),
        ({"when": [{"key": "source.namespace", "values": ["shp"]}]}, "when[0].values[0]"),
    ],
)
def test_a_misspelt_namespace_is_told_with_the_one_that_was_meant(rule: Any, path: str) -> None:
    nearly = "no workload or object that is known is of namespace shp; did you mean shop?"
    assert said(rule, code="MP0036") == [(f"spec.rules[0].{path}", nearly)]
    assert said(rule, live=False, code="MP0036") == []


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (source(namespaces=["elsewhere"]), "in this namespace: elsewhere"),
        (source(principals=["cluster.local/ns/elsewhere/sa/batch"]), "with this identity: cluster.local/ns/elsewhere/"),
        (source(serviceAccounts=["elsewhere/batch"]), "with this identity: elsewhere/batch"),
    ],
)
def test_callers_of_whom_nobody_is_known_are_a_hint_of_a_live_plane(rule: Any, text: str) -> None:
    ((_, message),) = said(rule, code="MP0037")
    assert text in message
    assert said(rule, live=False, code="MP0037") == []


@pytest.mark.parametrize(
    "rule",
    [
        source(namespaces=["shop", "sh*", "*"]),
        source(principals=["cluster.local/ns/shop/sa/web", "other.test/ns/elsewhere/sa/batch", "*/sa/batch"]),
        source(serviceAccounts=["web", "database"]),
        source(namespaces=["istio-*"]),
    ],
)
def test_callers_who_are_known_or_cannot_be_are_no_hint(rule: Any) -> None:
    assert (said(rule, code="MP0036"), said(rule, code="MP0037")) == ([], [])
