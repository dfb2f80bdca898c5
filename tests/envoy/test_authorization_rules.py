"""What rules of AuthorizationPolicies come to in Envoy's RBAC, for requests, connections and gRPC servers."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from envoy.config.rbac.v3.rbac_pb2 import RBAC, Principal
from google.protobuf.json_format import MessageToDict

from mesh_pilot.api.istio.security import v1beta1 as api
from mesh_pilot.envoy.filters.rbac.operations import path
from mesh_pilot.envoy.filters.rbac.principals import (
    identity,
    request_identity,
    service_account,
    trust_domain,
    with_aliases,
)
from mesh_pilot.envoy.filters.rbac.rules import EnforcementPoint, RuleContext, rbac_policy
from mesh_pilot.istio.rules.authorization_policy import ATTRIBUTES
from tests.support import golden


def of(rule: str, action: RBAC.Action = RBAC.ALLOW, point: EnforcementPoint = EnforcementPoint.HTTP) -> Any:
    """The permissions and principals of a rule, without the lists of one that stand around everything."""
    made = rbac_policy(api.Rule.from_dict(yaml.safe_load(rule)), action, RuleContext("shop", ("cluster.local",), point))
    if made is None:
        return None
    found = MessageToDict(made, preserving_proto_field_name=True)
    return [_bare(p) for p in found["permissions"]], [_bare(p) for p in found["principals"]]


def _bare(node: Any) -> Any:
    if not isinstance(node, dict):
        return node
    for outer, inner in (("and_rules", "rules"), ("or_rules", "rules"), ("and_ids", "ids"), ("or_ids", "ids")):
        if outer in node:
            members = [_bare(member) for member in node[outer][inner]]
            return members[0] if len(members) == 1 else {outer.partition("_")[0]: members}
    return {key: _bare(value) for key, value in node.items()}


ANY = {"any": True}


def text(principal: Principal) -> Any:
    """How a certificate's name is compared."""
    matcher = MessageToDict(principal)["authenticated"]["principalName"]
    return matcher.get("safeRegex", {}).get("regex") or next(iter(matcher.items()))


@pytest.mark.parametrize(
    ("build", "value", "meant"),
    [
        (identity, "td/ns/a/sa/b", ("exact", "spiffe://td/ns/a/sa/b")),
        (identity, "td/ns/a/*", ("prefix", "spiffe://td/ns/a/")),
        (identity, "*/sa/b.c", r"spiffe://.*/sa/b\.c"),
        (identity, "*", ".+"),
        (trust_domain, "td.example", r"spiffe://td\.example/.*"),
        (trust_domain, "td*", "spiffe://td[^/]*/.*"),
        (trust_domain, "*", "spiffe://[^/]+/.*"),
        (lambda v: service_account(v, "shop"), "web", "spiffe://.+/ns/shop/(.+/|)sa/web(/.+)?"),
        (lambda v: service_account(v, "shop"), "other/web", "spiffe://.+/ns/other/(.+/|)sa/web(/.+)?"),
    ],
)
def test_identities_are_compared_as_names_in_certificates(
    build: Callable[[str], Principal], value: str, meant: Any
) -> None:
    assert text(build(value)) == meant


SEGMENT = "[a-zA-Z0-9._~%!$&'()+,;:@=-]"
SEGMENTS = SEGMENT.replace("-]", "/-]")


@pytest.mark.parametrize(
    ("value", "meant"),
    [
        ("/a/{*}/b", f"/a/{SEGMENT}+/b"),
        ("/a/{**}", f"/a/{SEGMENTS}*"),
        ("/{*}/a.b/{**}/c", rf"/{SEGMENT}+/a\.b/{SEGMENTS}*/c"),
        ("*", ".+"),
    ],
)
def test_paths_with_templates_are_expressions(value: str, meant: str) -> None:
    assert path(value).url_path.path.safe_regex.regex == meant


def test_an_identity_of_the_mesh_is_known_under_all_its_names() -> None:
    names = ("new.example", "old.example")
    assert with_aliases(["cluster.local/ns/a/sa/b"], names) == ("new.example/ns/a/sa/b", "old.example/ns/a/sa/b")
    assert with_aliases(["old.example/ns/a/*"], names) == ("new.example/ns/a/*", "old.example/ns/a/*")
    assert with_aliases(["*.example/ns/a/sa/b"], names) == ("*.example/ns/a/sa/b",)
    for kept in ("*", "*/sa/b", "foreign/ns/a/sa/b", "*/ns/a/sa/b", "web"):
        assert with_aliases([kept], names) == (kept,)


def claims(principal: Principal) -> Any:
    """Claims and what they must be: ``iss=a&sub=b`` of every way in which a token may fit."""
    found = MessageToDict(principal)
    ways = found.get("orIds", {}).get("ids", [found])
    return [
        "&".join(
            f"{part['metadata']['path'][-1]['key']}{_sign(part['metadata']['value']['stringMatch'])}"
            for part in way.get("andIds", {}).get("ids", [way])
        )
        for way in ways
    ]


def _sign(matcher: dict[str, Any]) -> str:
    (kind, value), *_ = matcher.items()
    return {"exact": f"={value}", "prefix": f"={value}*", "suffix": f"=*{value}", "safeRegex": "=*"}[kind]


@pytest.mark.parametrize(
    ("value", "meant"),
    [
        ("*", ["iss=*&sub=*"]),
        ("issuer/alice", ["iss=issuer&sub=alice"]),
        ("https://a.b/alice", ["iss=https://a.b&sub=alice"]),
        ("https://a.b/c/alice", ["iss=https://a.b/c&sub=alice"]),
        ("issuer/*", ["iss=issuer&sub=*"]),
        ("issuer/al*", ["iss=issuer&sub=al*"]),
        ("iss*", ["iss=iss*&sub=*"]),
        ("*/alice", ["iss=*&sub=alice"]),
        ("*suer/alice", ["iss=*suer&sub=alice"]),
        ("*ice", ["iss=*&sub=*ice"]),
        ("nobody", ["iss=nobody&sub="]),
    ],
)
def test_a_request_principal_is_an_issuer_and_a_subject(value: str, meant: list[str]) -> None:
    assert claims(request_identity(value)) == meant


METADATA = {"filter": "envoy.filters.http.jwt_authn", "path": [{"key": "payload"}, {"key": "a"}, {"key": "b"}]}


def test_conditions_on_claims_fit_texts_and_lists() -> None:
    permissions, principals = of('when: [{key: "request.auth.claims[a][b]", values: [x]}]')
    text_match = {"string_match": {"exact": "x"}}
    both = {"or_match": {"value_matchers": [{"list_match": {"one_of": text_match}}, text_match]}}
    assert (permissions, principals) == ([ANY], [{"metadata": {**METADATA, "value": both}}])


def test_the_name_of_a_header_is_all_between_the_outer_brackets() -> None:
    _, (principal,) = of('when: [{key: "request.headers[a][b]", values: [x]}]')
    assert principal["header"]["name"] == "a][b"


PATH = "to: [{operation: {paths: [/x]}}]"
BOTH = 'to: [{operation: {paths: [/x], ports: ["80"]}}, {operation: {ports: ["81"]}}]'
TOKEN = 'from: [{source: {requestPrincipals: ["*"], ipBlocks: [10.0.0.0/8]}}]'
HEADER = 'when: [{key: "request.headers[x-a]", values: [b]}, {key: source.ip, values: [10.0.0.0/8]}]'
SNI = "when: [{key: connection.sni, values: [a]}]"
PRIVATE = 'when: [{key: "request.headers[grpc-a]", values: [b]}]'
TEN = {"direct_remote_ip": {"address_prefix": "10.0.0.0", "prefix_len": 8}}
P80, P81 = {"destination_port": 80}, {"destination_port": 81}


@pytest.mark.parametrize(
    ("rule", "point", "denied"),
    [
        (PATH, EnforcementPoint.TCP, ([ANY], [ANY])),
        (BOTH, EnforcementPoint.TCP, ([P80, P81], [ANY])),
        (TOKEN, EnforcementPoint.TCP, ([ANY], [TEN])),
        (TOKEN, EnforcementPoint.GRPC_SERVER, ([ANY], [TEN])),
        (HEADER, EnforcementPoint.TCP, ([ANY], [TEN])),
        (SNI, EnforcementPoint.GRPC_SERVER, ([ANY], [ANY])),
        (PRIVATE, EnforcementPoint.GRPC_SERVER, ([ANY], [ANY])),
    ],
)
def test_what_can_not_be_looked_at_allows_nothing_and_denies_all_the_same(
    rule: str, point: EnforcementPoint, denied: Any
) -> None:
    assert of(rule, RBAC.ALLOW, point) is None
    assert of(rule, RBAC.DENY, point) == denied
    assert of(rule, RBAC.LOG, point) == denied
    assert of(rule, RBAC.ALLOW) is not None


def test_a_condition_may_ask_for_the_trust_domain() -> None:
    by_condition = of("{when: [{key: source.trustDomain, values: [td], notValues: ['*.old']}]}")
    by_source = of("{from: [{source: {trust_domains: [td], not_trust_domains: ['*.old']}}]}")
    assert by_condition == by_source != of("{}")


def test_an_empty_rule_is_everything() -> None:
    assert of("{}") == ([ANY], [ANY])
    assert of("{}", point=EnforcementPoint.TCP) == ([ANY], [ANY])


def without_tokens(document: Any, scenario: str) -> Any:
    """A dump without what says something of tokens: a stock Envoy has other words for it."""
    name = "ns[shop]-policy[api]-rule"
    for node in _nodes(document):
        policies = node.get("policies", {})
        if scenario == "sec-authz-sources":
            policies.pop(f"{name}[2]", None)
        elif f"{name}[1]" in policies:
            del policies[f"{name}[1]"]["principals"]
    return document


def _nodes(node: Any) -> Any:
    if isinstance(node, dict):
        yield node
        node = list(node.values())
    if isinstance(node, list):
        for part in node:
            yield from _nodes(part)


@pytest.mark.parametrize("scenario", ["sec-authz-sources", "sec-authz-conditions"])
def test_but_for_tokens_rules_are_those_of_istio(scenario: str) -> None:
    golden.adsdump.load_all_protos()
    (entry,) = golden.proxies(scenario)
    expected = json.loads(golden.read(golden.ROOT / scenario / "expect" / f"{entry['name']}.json"))
    ours = golden.Dump(golden.load(scenario), golden.proxy_of(entry)).run()
    documents = [without_tokens(json.loads(json.dumps(d)), scenario) for d in (expected, ours)]
    report = io.StringIO()
    equal, total = golden.xdsdiff.compare(*documents, only=["listeners"], out=report)
    assert equal == total > 0, report.getvalue()


@pytest.mark.parametrize("attribute", ATTRIBUTES)
def test_every_attribute_that_a_policy_may_name_narrows_what_it_allows(attribute: str) -> None:
    """One that is let through and not carried out would open a door."""
    key = f"{attribute}[x]" if attribute in ("request.headers", "request.auth.claims") else attribute
    value = {"destination.ip": "10.0.0.1", "source.ip": "10.0.0.1", "remote.ip": "10.0.0.1"}.get(attribute, "80")
    context = RuleContext("shop", ("cluster.local",), EnforcementPoint.HTTP)
    rule = api.Rule(when=[api.Condition(key=key, values=[value])])
    assert rbac_policy(rule, RBAC.ALLOW, context) != rbac_policy(api.Rule(), RBAC.ALLOW, context)
