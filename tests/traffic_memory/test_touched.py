"""The edges that a change of objects may bear on."""

from __future__ import annotations

import pytest

from mesh_pilot.mesh.names.resources import parse_cluster
from mesh_pilot.model.events import Endpoints, Item, MeshConfigValue, NewValue, Quarantine, RolloutPlan, RolloutState
from mesh_pilot.model.traffic import RowKind
from mesh_pilot.traffic.table import CallingWorkload
from mesh_pilot.traffic.touched import MAX_TOUCHED, TouchedEdges, touched_by
from mesh_pilot.world.names import full_host
from tests.support.manifests import manifest, routes, rule, service
from tests.support.quarantined import unchecked

WEB = CallingWorkload("shop", "web", labels=(("app", "web"),))
API = CallingWorkload("team", "api", labels=(("app", "api"),))


def touched(text: str, *more: Item) -> TouchedEdges:
    return touched_by(
        [*unchecked(text), *more], lambda host, namespace: full_host(host, namespace, "cluster.local"), "istio-system"
    )


def calls(found: TouchedEdges, host: str, workload: CallingWorkload = WEB) -> bool:
    return found.has(workload, RowKind.CLUSTER, parse_cluster(f"outbound|80|v1|{host}"))


def policies(found: TouchedEdges, workload: CallingWorkload) -> bool:
    answers = {
        found.has(workload, RowKind.POLICY, None),
        found.has(workload, RowKind.CLUSTER, parse_cluster("inbound|8080||")),
    }
    assert len(answers) == 1
    return answers.pop()


def test_routes_are_about_their_hosts_and_where_they_lead() -> None:
    found = touched(routes("reviews.test", "- {route: [{destination: {host: ratings}}], mirror: {host: audit.test}}"))
    for host in ("reviews.test", "ratings.shop.svc.cluster.local", "audit.test"):
        assert calls(found, host), host
        assert calls(found, host, API)
    assert not calls(found, "other.test")
    assert not policies(found, WEB)


@pytest.mark.parametrize("text", [rule("*.test", "{}"), service("reviews.test", 80)])
def test_a_rule_and_a_service_are_about_their_hosts(text: str) -> None:
    found = touched(text)
    assert calls(found, "reviews.test")
    assert not calls(found, "reviews.example")


def test_a_policy_is_about_what_arrives_at_the_workloads_that_it_selects() -> None:
    selecting = manifest("AuthorizationPolicy", "web", "selector: {matchLabels: {app: web}}")
    of_namespace = manifest("AuthorizationPolicy", "all", "action: DENY", namespace="team")
    of_mesh = manifest("RequestAuthentication", "all", "{}", namespace="istio-system")
    found = [touched(text) for text in (selecting, of_namespace, of_mesh)]
    assert [(policies(each, WEB), policies(each, API)) for each in found] == [
        (True, False),
        (False, True),
        (True, True),
    ]
    assert not any(calls(each, "reviews.test") for each in found)


def test_a_sidecar_is_about_all_that_its_workloads_call() -> None:
    found = touched(manifest("Sidecar", "web", "{workloadSelector: {labels: {app: web}}, egress: [{hosts: ['*/*']}]}"))
    assert calls(found, "reviews.test")
    assert not calls(found, "reviews.test", API)


@pytest.mark.parametrize(
    "text",
    [
        manifest("EnvoyFilter", "f", "configPatches: []"),
        manifest("Gateway", "g", "servers: []"),
        "".join(rule(f"{number}.test", "{}") for number in range(MAX_TOUCHED + 1)),
    ],
)
def test_some_are_about_everything(text: str) -> None:
    found = touched(text)
    assert found.is_everything and calls(found, "any.test") and policies(found, API)


def test_the_mesh_config_is_about_everything_and_endpoints_about_nothing() -> None:
    assert touched("", MeshConfigValue(None)).is_everything  # type: ignore[arg-type]  # what it says does not matter
    endpoints: Item = Endpoints(("shop", "web.test"), ())  # type: ignore[arg-type]
    assert not touched(manifest("WorkloadEntry", "w", "address: 10.0.0.1"), *(MAX_TOUCHED + 1) * [endpoints])
    assert not touched_by([None], lambda host, _: host, "")


def test_what_a_rollout_serves_is_about_the_objects_that_it_holds_back() -> None:
    (new,) = unchecked(routes("reviews.test", "- {route: [{destination: {host: a.test}}]}"))
    (old,) = unchecked(routes("reviews.test", "- {route: [{destination: {host: b.test}}]}"))
    change = NewValue(("config",), (new,), (old,))
    found = touched("", RolloutState(RolloutPlan(), (change,)))  # type: ignore[call-arg]
    assert calls(found, "a.test") and calls(found, "b.test")
    assert not touched("", Quarantine("", (), is_trial=True))


def test_two_changes_overlap_where_an_edge_may_be_of_both() -> None:
    reviews, stars, other = (
        touched(rule("reviews.test", "{}")),
        touched(rule("*.test", "{}")),
        touched(rule("a.b", "{}")),
    )
    policy = touched(manifest("AuthorizationPolicy", "web", "{}"))
    everything = TouchedEdges(is_everything=True)
    subdomains = touched(rule("*.reviews.test", "{}"))
    assert reviews.overlaps(stars) and stars.overlaps(reviews) and policy.overlaps(policy)
    assert subdomains.overlaps(stars) and stars.overlaps(subdomains) and not subdomains.overlaps(reviews)
    assert everything.overlaps(policy) and reviews.overlaps(everything)
    assert not reviews.overlaps(other) and not reviews.overlaps(policy) and not everything.overlaps(TouchedEdges())
