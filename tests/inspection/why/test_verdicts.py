"""The headline of ``why`` is what becomes of most requests that fail; a denial says what the caller lacks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mesh_pilot.explain.inspection.dump import dump_of
from mesh_pilot.explain.inspection.why.answer import WhyAnswer
from mesh_pilot.explain.inspection.why.evidence import DumpEvidence
from mesh_pilot.explain.inspection.why.request import parse_request
from mesh_pilot.explain.inspection.why.story import explain
from mesh_pilot.explain.plan.past_world import resources_of
from mesh_pilot.model.resource import ENVOY_TYPES
from mesh_pilot.xds.ads.config_dump import config_dump
from mesh_pilot.xds.ads.status import TypeDump
from tests.support.worlds import sidecar, world_of

WEB = "spiffe://cluster.local/ns/shop/sa/web"


def told(kind: str, name: str, spec: Any, api: str = "networking.istio.io/v1") -> str:
    metadata = {"name": name, "namespace": "shop"}
    return "\n---\n" + json.dumps({"apiVersion": api, "kind": kind, "metadata": metadata, "spec": spec})


SERVICE = told("ServiceEntry", "web", {
    "hosts": ["web.test"], "location": "MESH_INTERNAL", "resolution": "STATIC",
    "ports": [{"number": 80, "name": "http", "protocol": "HTTP"}],
    "endpoints": [{"address": "10.0.0.1", "labels": {"version": "v1"}}],
})  # fmt: skip
SUBSETS = told("DestinationRule", "web", {
    "host": "web.test",
    "subsets": [{"name": "v1", "labels": {"version": "v1"}}, {"name": "v2", "labels": {"version": "v2"}}],
})  # fmt: skip


def asked(config: str, target: str, **more: Any) -> WhyAnswer:
    """The answer of a sidecar at 10.0.0.1."""
    resources = resources_of(world_of(config), sidecar("10.0.0.1", namespace="shop"))
    dumps = (TypeDump(url, "1", True, tuple(r.values())) for url, r in resources.items() if url in ENVOY_TYPES)
    dump = dump_of(config_dump(tuple(dumps)))
    assert dump is not None
    return explain(DumpEvidence(dump), parse_request(target, **more))


def routed(*routes: Any) -> str:
    return SERVICE + SUBSETS + told("VirtualService", "web", {"hosts": ["web.test"], "http": [*routes]})


def to(subset: str, weight: int = 0) -> Any:
    return {"destination": {"host": "web.test", "subset": subset}, "weight": weight}


@pytest.mark.parametrize(
    ("route", "outcome"),
    [
        (
            {"route": [to("v3", 90), to("v1", 10)]},
            "90 % answered with 503: the proxy has no cluster for web.test:80 subset v3; "
            "10 % forwarded to web.test:80 subset v1",
        ),
        ({"route": [to("v2")]}, "answered with 503: web.test:80 subset v2 has no endpoints"),
        ({"route": [to("v3", 0), to("v1", 100)]}, "forwarded to web.test:80 subset v1"),
        (
            {"route": [to("v1")], "fault": {"abort": {"httpStatus": 500, "percentage": {"value": 25}}}},
            "25 % aborted with 500, by a fault of the route; 75 % forwarded to web.test:80 subset v1",
        ),
        ({"directResponse": {"status": 204}}, "answered with 204 by the proxy itself"),
        (
            {"match": [{"uri": {"prefix": "/other"}}], "route": [to("v1")]},
            "answered with 404: the virtual host web.test:80 has the host, but none of its 1 route matches",
        ),
    ],
)
def test_the_headline_is_the_worst_outcome_that_has_weight(route: Any, outcome: str) -> None:
    answer = asked(routed(route), "web.test/")
    assert answer.outcome == outcome
    assert any(each.fails for each in answer.outcomes) is outcome.partition(" with ")[2].startswith(("4", "5"))


def test_a_host_that_is_declared_nowhere_is_told_so_where_others_are_refused() -> None:
    only = told("Sidecar", "default", {"outboundTrafficPolicy": {"mode": "REGISTRY_ONLY"}})
    said = "the host is declared nowhere, and such hosts are refused (REGISTRY_ONLY)"
    assert asked(SERVICE + only, "nobody.test/").outcome == f"answered with 502 by the proxy itself: {said}"
    assert asked(SERVICE + only, "tcp://nobody.test:5432").outcome == f"closed: {said}"


def source(**fields: Any) -> Any:
    return {"from": [{"source": fields}]}


def operation(**fields: Any) -> Any:
    return {"to": [{"operation": fields}]}


IS_WEB = f"the caller is {WEB}; rule 0 of AuthorizationPolicy/shop/p wants"


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        (source(principals=["cluster.local/ns/shop/sa/wbe"]), f"{IS_WEB} spiffe://cluster.local/ns/shop/sa/wbe"),
        (source(principals=["*/sa/wbe"]), f"{IS_WEB} an identity that ends with /sa/wbe"),
        (source(namespaces=["shp", "a-*"]), f"{IS_WEB} an identity of namespace shp or an identity of namespace a-*"),
        (source(notNamespaces=["shop"]), f"{IS_WEB} not an identity of namespace shop"),
        (source(serviceAccounts=["wbe"]), f"{IS_WEB} the service account shop/wbe"),
        (source(trustDomains=["other.test"]), f"{IS_WEB} an identity of trust domain other.test"),
        (
            source(principals=["cluster.local/ns/shop/sa/web"]) | operation(methods=["POST"]),
            'the method is "GET"; rule 0 of AuthorizationPolicy/shop/p wants that the method is "POST"',
        ),
        (operation(ports=["8080"]), "the port is 80; rule 0 of AuthorizationPolicy/shop/p wants port 8080"),
        (
            {"when": [{"key": "request.headers[x-api-key]", "values": ["hush"]}]},
            "the header x-api-key is none; rule 0 of AuthorizationPolicy/shop/p wants another value of x-api-key",
        ),
        (None, "rule 0 of AuthorizationPolicy/shop/p wants nothing"),
    ],
)
def test_a_denial_says_what_the_request_has_and_what_the_nearest_rule_wants(rule: Any, reason: str) -> None:
    assert denied(rule, "ALLOW") == f"answered with 403: {reason}"


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        (source(principals=["*"]), f": the caller is {WEB}"),
        (operation(paths=["/x*"]), ': the path is "/x"'),
        (source(notPrincipals=["cluster.local/ns/shop/sa/wbe"]), f": the caller is {WEB}"),
        ({}, ""),
    ],
)
def test_a_rule_that_denies_is_named_with_what_it_meets(rule: Any, reason: str) -> None:
    assert denied(rule, "DENY") == f"answered with 403: rule 0 of AuthorizationPolicy/shop/p denies it{reason}"


def test_a_caller_without_mtls_has_no_identity() -> None:
    found = denied(source(principals=["*"]), "ALLOW", mtls=False)
    assert "the caller has no identity: it does not come by mTLS; rule 0" in found
    assert found.endswith("wants any identity")


def denied(rule: Any, action: str, **more: Any) -> str:
    rules = {} if rule is None else {"rules": [rule]}
    policy = told("AuthorizationPolicy", "p", {"action": action, **rules}, "security.istio.io/v1")
    return asked(SERVICE + policy, "web.test/x", inbound=True, principal=WEB, **more).outcome


@pytest.mark.parametrize("action", ["ALLOW", "DENY"])
def test_a_policy_that_depends_on_what_is_not_known_is_in_the_headline(action: str) -> None:
    end = "; a policy may deny it: rule 0 of AuthorizationPolicy/shop/p may match: it depends on"
    claims = denied(source(requestPrincipals=["issuer/web"]), action)
    assert claims == f"forwarded to inbound|80||{end} claims of a token, or other metadata"
    address = denied(source(ipBlocks=["10.9.0.0/16"]), action)
    assert address == f"forwarded to inbound|80||{end} the client's address (--source-ip)"
    assert "may deny" not in denied(source(ipBlocks=["10.9.0.0/16"]), action, source="10.8.0.1")


def test_a_policy_that_depends_is_not_told_where_everything_fails() -> None:
    unsure = told(
        "AuthorizationPolicy", "p", {"rules": [source(requestPrincipals=["issuer/web"])]}, "security.istio.io/v1"
    )
    denies = told("AuthorizationPolicy", "q", {"action": "DENY", "rules": [{}]}, "security.istio.io/v1")
    answer = asked(SERVICE + unsure + denies, "web.test/x", inbound=True, principal=WEB)
    assert answer.outcome.startswith("answered with 403") and "may deny" not in answer.outcome
