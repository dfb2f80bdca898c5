"""Rules for the security kinds of Istio 1.1: for each, a good and a bad object."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from mesh_pilot.api.istio.rbac.v1alpha1 import RbacConfigMode
from mesh_pilot.istio.kinds import KINDS
from mesh_pilot.istio.reading.decode_json import read_enum
from mesh_pilot.model.config import Severity
from tests.support.rules import ABSENT, Rule, holds, problems_of, warns

POLICY: dict[str, Any] = {"targets": [{"name": "web"}], "peers": [{"mtls": {}}]}
TOKENS: dict[str, Any] = {"targets": [{"name": "web"}], "origins": [{"jwt": {"issuer": "me"}}]}
ROLE: dict[str, Any] = {"rules": [{"services": ["*"]}]}
BINDING: dict[str, Any] = {"subjects": [{"user": "*"}], "roleRef": {"kind": "ServiceRole", "name": "reader"}}
JWT = "origins[0].jwt"
NOTHING = "grants nothing"


def trigger(*paths: str) -> list[Any]:
    return [{"excludedPaths": [{"exact": path}]} for path in paths]


CASES: list[tuple[str, str, dict[str, Any], Rule]] = [
    ("Policy", "x", POLICY, Rule("targets", [{"name": "web"}], ABSENT, "is missing")),
    ("Policy", "default", {}, Rule("targets", ABSENT, [{"name": "web"}], "no targets")),
    ("Policy", "x", POLICY, Rule("targets[0].name", "web.example.com", "*.example.com", "*", "targets[0].name")),
    ("Policy", "x", POLICY, Rule("targets[0].labels", ABSENT, {"app": "web"}, "not supported")),
    (
        "Policy",
        "x",
        POLICY,
        Rule("targets[0].ports", [{"name": "http"}], [{}], "number or a name", "targets[0].ports[0]"),
    ),
    (
        "Policy",
        "x",
        POLICY,
        Rule("targets[0].ports", [{"number": 80}], [{"number": 0}], "not a port", "targets[0].ports[0].number"),
    ),
    ("Policy", "x", POLICY, warns("peers[0]", {"mtls": None}, {"jwt": {"issuer": "me"}}, "STRICT", "peers[0].jwt")),
    ("Policy", "x", POLICY, warns("peers[0].mtls.allowTls", ABSENT, True, "STRICT")),
    ("Policy", "x", POLICY, warns("peers", [{"mtls": {}}], [{"mtls": {}}, {"mtls": {}}], "first", "peers[1]")),
    ("Policy", "x", TOKENS, Rule("origins[0]", {"jwt": {"issuer": "me"}}, {}, "is missing", JWT)),
    ("Policy", "x", TOKENS, Rule(f"{JWT}.issuer", "me", ABSENT, "is missing")),
    ("Policy", "x", TOKENS, Rule(f"{JWT}.jwksUri", "https://a.b", "ftp://a.b", "not an http or https URL")),
    ("Policy", "x", TOKENS, Rule(f"{JWT}.jwks", ABSENT, "{", "is not JSON")),
    ("Policy", "x", TOKENS, Rule(f"{JWT}.audiences", ["a"], [""], "must not be empty", f"{JWT}.audiences[0]")),
    ("Policy", "x", TOKENS, Rule(f"{JWT}.jwtHeaders", ["a"], ["a\nb"], "line breaks", f"{JWT}.jwtHeaders[0]")),
    ("Policy", "x", TOKENS, Rule(f"{JWT}.jwtParams", ["a"], [""], "must not be empty", f"{JWT}.jwtParams[0]")),
    (
        "Policy",
        "x",
        TOKENS,
        Rule(
            f"{JWT}.triggerRules",
            [{"includedPaths": [{"regex": "/a+"}]}],
            [{"includedPaths": [{"regex": "/(a"}]}],
            "",
            f"{JWT}.triggerRules[0].includedPaths[0].regex",
        ),
    ),
    ("Policy", "x", TOKENS, warns(f"{JWT}.triggerRules", trigger("/a"), trigger("/a", "/b"), "every path")),
    ("MeshPolicy", "default", {}, Rule("targets", ABSENT, [{"name": "web"}], "all services")),
    ("ServiceRole", "x", ROLE, Rule("rules", [{"services": ["*"]}], [], "needs a rule")),
    ("ServiceRole", "x", ROLE, Rule("rules[0].services", ["*"], ABSENT, "is missing")),
    ("ServiceRole", "x", ROLE, warns("rules[0].paths", ["/a*"], ["/{*}"], NOTHING, "rules[0].paths[0]")),
    ("ServiceRole", "x", ROLE, warns("rules[0].ports", [80], [0], NOTHING, "rules[0].ports[0]")),
    ("ServiceRole", "x", ROLE, warns("rules[0].methods", ["GET"], [""], NOTHING, "rules[0].methods[0]")),
    *(
        (
            "ServiceRole",
            "x",
            ROLE,
            warns(
                "rules[0].constraints",
                [{"key": good, "values": ["10.0.0.1", "10.0.0.0/8"]}],
                [{"key": bad, "values": ["x"]}],
                NOTHING,
                f"rules[0].constraints[0].{at}",
            ),
        )
        for good, bad, at in (
            ("destination.ip", "destination.ip", "values[0]"),
            ("request.headers[x]", "request.regex.headers[x]", "key"),
            ("destination.labels[version]", "destination.labels", "key"),
            ("destination.namespace", "destination.user", "key"),
            ("experimental.envoy.filters.a[b]", "something.else", "key"),
        )
    ),
    (
        "ServiceRoleBinding",
        "x",
        BINDING,
        warns(
            "subjects", [{"user": f"u{n}"} for n in range(100)], [{"group": f"g{n}"} for n in range(101)], "one by one"
        ),
    ),
    ("ServiceRoleBinding", "x", BINDING, Rule("subjects", [{"user": "*"}], [], "needs a subject")),
    ("ServiceRoleBinding", "x", BINDING, warns("subjects[0]", {"user": "a"}, {}, "matches no client")),
    ("ServiceRoleBinding", "x", BINDING, Rule("roleRef", {"name": "reader"}, ABSENT, "exactly one")),
    ("ServiceRoleBinding", "x", BINDING, Rule("role", ABSENT, "reader", "exactly one")),
    ("ServiceRoleBinding", "x", BINDING, Rule("roleRef.kind", "ServiceRole", "ClusterRole", "of a ServiceRole")),
    ("ServiceRoleBinding", "x", BINDING, Rule("roleRef.name", "reader", ABSENT, "is missing")),
    (
        "ServiceRoleBinding",
        "x",
        BINDING,
        warns("subjects[0].ips", ["10.0.0.0/8"], ["x"], NOTHING, "subjects[0].ips[0]"),
    ),
    *(
        (
            "ServiceRoleBinding",
            "x",
            BINDING,
            warns(
                "subjects[0]",
                {"properties": {good: "10.0.0.1"}},
                {"properties": {bad: "10.0.0"}},
                NOTHING,
                f"subjects[0].properties[{bad}]",
            ),
        )
        for good, bad in (
            ("source.ip", "source.ip"),
            ("request.headers[x]", "request.regex.headers[x]"),
            ("request.auth.claims[x]", "request.auth.claims"),
            ("request.auth.principal", "source.somebody"),
        )
    ),
    (
        "ClusterRbacConfig",
        "default",
        {"mode": "ON_WITH_INCLUSION", "inclusion": {"namespaces": ["shop"]}},
        warns("inclusion.namespaces[0]", "shop", "*", "wildcards"),
    ),
    (
        "ClusterRbacConfig",
        "default",
        {"mode": "ON_WITH_INCLUSION", "inclusion": {"namespaces": ["shop"]}},
        warns("mode", "ON_WITH_INCLUSION", "ON", "has no effect", "inclusion"),
    ),
    (
        "ClusterRbacConfig",
        "default",
        {"mode": "ON_WITH_EXCLUSION", "exclusion": {"namespaces": ["shop"]}},
        warns("exclusion", {}, ABSENT, "is missing"),
    ),
]


@pytest.mark.parametrize(("kind", "name", "base", "rule"), CASES, ids=lambda value: str(value)[:40])
def test_a_rule_holds(kind: str, name: str, base: dict[str, Any], rule: Rule) -> None:
    holds(kind, base, rule, name)


@pytest.mark.parametrize("kind", ["MeshPolicy", "ClusterRbacConfig", "RbacConfig"])
def test_there_is_one_for_the_mesh(kind: str) -> None:
    (problem,) = (p for p in problems_of(kind, {}, "other") if p.severity is Severity.ERROR)
    assert problem.path == "metadata.name" and '"default"' in problem.reason


@pytest.mark.parametrize("kind", [kind.name for kind in KINDS.values() if kind.legacy])
def test_each_object_says_once_that_its_kind_is_deprecated(kind: str) -> None:
    spec = {"ServiceRole": ROLE, "ServiceRoleBinding": BINDING}.get(kind, {})
    found = [p for p in problems_of(kind, spec, "default") if "is deprecated" in p.reason]
    assert [(p.path, p.severity) for p in found] == [("", Severity.WARNING)]


def test_what_grants_nothing_leaves_the_rest_of_the_object() -> None:
    rules = [{"services": ["*"], "paths": ["/{a}"]}, {"services": ["*"]}]
    found = problems_of("ServiceRole", {"rules": rules})
    assert {p.severity for p in found} == {Severity.WARNING}


@pytest.mark.parametrize(("written", "word"), [("ON", "ON"), ("off", "OFF")])
def test_a_mode_that_yaml_reads_as_a_boolean_is_to_be_quoted(written: str, word: str) -> None:
    with pytest.raises(ValueError, match=f'write "{word}", in quotes'):
        read_enum(RbacConfigMode, yaml.safe_load(written))
    assert read_enum(RbacConfigMode, word) is RbacConfigMode[word]
