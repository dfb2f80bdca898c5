"""ServiceRoles of Istio 1.1: where access is controlled, and which rules of AuthorizationPolicies they become."""

from __future__ import annotations

from typing import Any

import pytest

from mesh_pilot.api.istio.rbac.v1alpha1 import ServiceRole, ServiceRoleBinding
from mesh_pilot.istio.meaning.legacy_roles import allow_rules
from mesh_pilot.mesh.legacy.authentication import ServedPort
from mesh_pilot.mesh.legacy.authorization import grants, is_controlled, is_dry_run
from mesh_pilot.mesh.legacy.ports import legacy_policies
from mesh_pilot.model.service import ServiceKey
from mesh_pilot.world import World
from tests.support.legacy import access, binding, mesh_policy, policy, role
from tests.support.worlds import configs, update, world_of

WEB = ServiceKey("web.shop.svc.cluster.local", "shop")
DATA = ServiceKey("data.shop.svc.cluster.local", "shop")
NONE = ServiceKey("", "shop")
ELSEWHERE = ServiceKey("web.other.svc.cluster.local", "other")
EVERYBODY = binding("all", "[{user: '*'}]")


def rules(access_rules: str, subjects: str, *, peer_bound: bool = False) -> list[Any]:
    """The rules of an AuthorizationPolicy, as plain data."""
    role_config, binding_config = configs(role("r", access_rules) + binding("r", subjects))
    role_spec, binding_spec = role_config.spec, binding_config.spec
    assert isinstance(role_spec, ServiceRole) and isinstance(binding_spec, ServiceRoleBinding)
    return [rule.to_dict() for rule in allow_rules(role_spec.rules, binding_spec.subjects, peer_bound=peer_bound)]


def allowed(world: World, service: ServiceKey, **labels: str) -> list[tuple[str, str, int]]:
    """Role, binding and number of rules of everything that is granted for a service."""
    found = grants(world.view, service, frozenset(labels.items()), False)
    return [(grant.role.name, grant.binding.name, len(grant.rules)) for grant in found]


@pytest.mark.parametrize(
    ("text", "controlled"),
    [
        ("", []),
        (access("OFF"), []),
        (access("ON"), [WEB, DATA, NONE, ELSEWHERE]),
        (access("ON_WITH_INCLUSION", f"inclusion: {{services: [{WEB.host}]}}"), [WEB]),
        (access("ON_WITH_INCLUSION", "inclusion: {namespaces: [shop]}"), [WEB, DATA, NONE]),
        (access("ON_WITH_INCLUSION"), []),
        (access("ON_WITH_INCLUSION", "exclusion: {namespaces: [shop]}"), []),
        (access("ON_WITH_EXCLUSION", f"exclusion: {{services: [{WEB.host}]}}"), [DATA, NONE, ELSEWHERE]),
        (access("ON_WITH_EXCLUSION", "exclusion: {namespaces: [shop]}"), [ELSEWHERE]),
        (access("ON_WITH_EXCLUSION"), [WEB, DATA, NONE, ELSEWHERE]),
        (access("ON", namespace="istio-system"), [WEB, DATA, NONE, ELSEWHERE]),
        (access("ON", namespace="shop"), []),
    ],
)
def test_the_mode_says_where_access_is_controlled(text: str, controlled: list[ServiceKey]) -> None:
    view = world_of(text).view
    assert [service for service in (WEB, DATA, NONE, ELSEWHERE) if is_controlled(view, service)] == controlled


def test_the_config_of_the_cluster_counts_before_that_of_the_root_namespace() -> None:
    assert is_controlled(world_of(access("ON") + access("OFF", namespace="istio-system")).view, WEB)


def test_an_access_rule_is_an_operation() -> None:
    everything = (
        "[{services: ['*'], hosts: [a], notHosts: [b], paths: [/c], notPaths: [/d], methods: [GET], notMethods: [PUT], "
        "ports: [80], notPorts: [81]}]"
    )
    assert rules(everything, "[{user: '*'}]") == [
        {
            "to": [
                {
                    "operation": {
                        "hosts": ["a"],
                        "notHosts": ["b"],
                        "paths": ["/c"],
                        "notPaths": ["/d"],
                        "methods": ["GET"],
                        "notMethods": ["PUT"],
                        "ports": ["80"],
                        "notPorts": ["81"],
                    }
                }
            ]
        }
    ]
    assert rules("[{services: ['*']}]", "[{user: '*'}]") == [{}]


def test_constraints_about_requests_are_conditions() -> None:
    constraints = (
        "[{key: 'request.headers[v]', values: [a, b]}, {key: destination.port, values: ['80']}, "
        "{key: destination.namespace, values: [shop]}]"
    )
    assert rules(f"[{{services: ['*'], constraints: {constraints}}}]", "[{user: '*'}]") == [
        {
            "when": [
                {"key": "request.headers[v]", "values": ["a", "b"]},
                {"key": "destination.port", "values": ["80"]},
            ]
        }
    ]


SUBJECTS = {
    "{user: a}": {"from": [{"source": {"principals": ["a"]}}]},
    "{names: [a], notNames: [b]}": {"from": [{"source": {"principals": ["a"], "notPrincipals": ["b"]}}]},
    "{namespaces: [a], notNamespaces: [b]}": {"from": [{"source": {"namespaces": ["a"], "notNamespaces": ["b"]}}]},
    "{ips: [10.0.0.1], notIps: [10.0.0.2]}": {
        "from": [{"source": {"ipBlocks": ["10.0.0.1"], "notIpBlocks": ["10.0.0.2"]}}]
    },
    "{group: a}": {"when": [{"key": "request.auth.claims[groups]", "values": ["a"]}]},
    "{groups: [a], notGroups: [b]}": {
        "when": [{"key": "request.auth.claims[groups]", "values": ["a"], "notValues": ["b"]}]
    },
    "{user: '*', properties: {source.namespace: a}}": {"when": [{"key": "source.namespace", "values": ["a"]}]},
    "{user: a, properties: {source.principal: b}}": {
        "from": [{"source": {"principals": ["a"]}}],
        "when": [{"key": "source.principal", "values": ["b"]}],
    },
    "{properties: {source.user: a, source.ip: 10.0.0.1}}": {
        "when": [{"key": "source.ip", "values": ["10.0.0.1"]}, {"key": "source.principal", "values": ["a"]}]
    },
    "{properties: {'request.auth.claims[iss]': a}}": {"when": [{"key": "request.auth.claims[iss]", "values": ["a"]}]},
}


@pytest.mark.parametrize("subject", SUBJECTS)
def test_all_that_a_subject_says_has_to_be_true(subject: str) -> None:
    assert rules("[{services: ['*']}]", f"[{subject}]") == [SUBJECTS[subject]]


def test_one_of_several_subjects_is_enough_and_an_empty_one_is_nobody() -> None:
    found = rules("[{services: ['*']}]", "[{user: a}, {namespaces: [b]}, {}, {group: c}]")
    assert found == [
        {"from": [{"source": {"principals": ["a"]}}, {"source": {"namespaces": ["b"]}}]},
        {"when": [{"key": "request.auth.claims[groups]", "values": ["c"]}]},
    ]
    assert rules("[{services: ['*']}]", "[{}]") == []


def test_the_principal_of_a_request_is_the_peer_unless_the_policy_binds_the_origin() -> None:
    subject = "[{properties: {request.auth.principal: a}}]"
    for peer_bound, key in ((True, "source.principal"), (False, "request.auth.principal")):
        assert rules("[{services: ['*']}]", subject, peer_bound=peer_bound) == [
            {"when": [{"key": key, "values": ["a"]}]}
        ]


@pytest.mark.parametrize(
    ("services", "there"),
    [
        ("['*']", [WEB, DATA, NONE]),
        ("[web]", [WEB]),
        (f"[{WEB.host}]", [WEB]),
        ("['web*']", [WEB]),
        ("['*.shop.svc.cluster.local']", [WEB, DATA]),
        ("[we, web.shop, 'x*', '*x']", []),
        (f"[{ELSEWHERE.host}]", []),
    ],
)
def test_a_role_is_about_services_of_its_namespace(services: str, there: list[ServiceKey]) -> None:
    world = world_of(access("ON") + role("all", f"[{{services: {services}}}]") + EVERYBODY)
    assert [service for service in (WEB, DATA, NONE, ELSEWHERE) if allowed(world, service)] == there


@pytest.mark.parametrize(
    ("key", "values", "good"),
    [
        ("destination.labels[version]", "[v1, 'v2*']", True),
        ("destination.labels[version]", "[v2]", False),
        ("destination.labels[absent]", "['*']", False),
        ("destination.namespace", "[shop]", True),
        ("destination.namespace", "[other]", False),
        ("destination.name", "[web]", True),
        ("destination.name", "[data]", False),
        ("destination.user", "[web]", False),
        ("no.such.key", "[web]", False),
    ],
)
def test_the_workload_decides_about_some_constraints(key: str, values: str, good: bool) -> None:
    rule = f"[{{services: ['*'], constraints: [{{key: '{key}', values: {values}}}]}}]"
    world = world_of(access("ON") + role("all", rule) + EVERYBODY)
    assert bool(allowed(world, WEB, version="v1")) is good


def test_bindings_are_of_roles_of_their_namespace_or_list_the_actions() -> None:
    every = "[{services: ['*']}]"
    world = world_of(role("reader", every) + role("reader", every, namespace="other"))
    assert allowed(world, WEB) == []
    update(world, binding("a", "[{user: a}]", role="reader") + binding("b", "[{user: b}]", more=f"actions: {every}"))
    assert allowed(world, WEB) == [("reader", "a", 1), ("b", "b", 1)]
    assert allowed(world, ELSEWHERE) == []
    update(world, binding("a", "[{user: a}]", role="nobody"))
    assert allowed(world, WEB) == [("b", "b", 1)]
    update(world, binding("a", "[{user: a}]").replace("roleRef: {kind: ServiceRole, name: a}", "role: reader"))
    assert allowed(world, WEB) == [("reader", "a", 1), ("b", "b", 1)]


def test_what_cannot_be_expressed_grants_nothing_and_leaves_the_rest() -> None:
    mixed = "[{services: ['*'], paths: ['/{x}']}, {services: ['*'], paths: [/y]}]"
    world = world_of(role("all", mixed) + binding("all", "[{ips: [x]}, {user: a}, {properties: {a.b: c}}]"))
    (grant,) = grants(world.view, WEB, frozenset(), False)
    assert [rule.to_dict() for rule in grant.rules] == [
        {"from": [{"source": {"principals": ["a"]}}], "to": [{"operation": {"paths": ["/y"]}}]}
    ]


def test_a_dry_run_is_of_a_binding_or_of_all() -> None:
    text = access("ON") + role("all", "[{services: ['*']}]") + binding("all", "[{user: a}]", more="mode: PERMISSIVE")
    world = world_of(text)
    assert [grant.dry_run for grant in grants(world.view, WEB, frozenset(), False)] == [True]
    assert not is_dry_run(world.view)
    update(world, access("ON", "enforcementMode: PERMISSIVE"))
    assert is_dry_run(world.view)


def served(*services: ServiceKey) -> tuple[ServedPort, ...]:
    return tuple(ServedPort(80, service, 80, "http") for service in services)


def test_a_port_of_several_services_has_the_demands_of_all() -> None:
    included = access("ON_WITH_INCLUSION", f"inclusion: {{services: [{WEB.host}]}}")
    tokens = policy("data", "targets: [{name: data}], origins: [{jwt: {issuer: me}}], principalBinding: USE_ORIGIN")
    view = world_of(included + tokens).view
    found = legacy_policies(view, "shop", served(WEB, DATA))
    assert found.controlled == (WEB, DATA)
    assert [key.name for key in found.tokens] == ["data"]
    assert found.token_required and not found.peer_bound
    assert legacy_policies(view, "shop", served(DATA)).controlled == ()
    assert legacy_policies(view, "shop", served(WEB)).tokens == ()


def test_a_port_of_no_service_has_the_demands_of_its_namespace() -> None:
    text = access("ON") + mesh_policy("origins: [{jwt: {issuer: me}}], originIsOptional: true")
    found = legacy_policies(world_of(text).view, "shop", ())
    assert found.controlled == (NONE,)
    assert [str(key) for key in found.tokens] == ["MeshPolicy//default"]
    assert not found.token_required and found.peer_bound
