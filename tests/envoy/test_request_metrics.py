"""Metrics of requests: which a proxy has, with which labels, and what they change."""

from __future__ import annotations

import attrs
import pytest
from envoy.config.common.mutation_rules.v3 import mutation_rules_pb2
from envoy.config.listener.v3.listener_pb2 import Listener
from envoy.extensions.filters.http.header_mutation.v3.header_mutation_pb2 import HeaderMutation

from mesh_pilot.envoy.endpoints.assignments import assignment
from mesh_pilot.envoy.filters.peer_names import PEER_NAMES
from mesh_pilot.envoy.gateway.listeners import gateway_listeners
from mesh_pilot.envoy.listeners.hcm import HTTP_CONNECTION_MANAGER
from mesh_pilot.envoy.telemetry.metrics import PEER_HEADERS, tag_format, tag_reason
from mesh_pilot.envoy.telemetry.problems import default_provider_problems, telemetry_problems
from mesh_pilot.mesh.policies.context import PolicyContext, TrafficSide
from mesh_pilot.mesh.policies.metrics import Metric, MetricSettings, metric_settings
from mesh_pilot.mesh.proxy.metric_source import MetricSource, endpoint_names, metric_source
from mesh_pilot.mesh.proxy.span_source import SpanSource
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.resource import LISTENER, Resource
from mesh_pilot.model.service import ServiceKey
from mesh_pilot.world import World
from tests.support import routing
from tests.support.listeners import manager, resources, target
from tests.support.plans import outbound_clusters
from tests.support.telemetry import SERVICES, telemetry
from tests.support.worlds import sidecar, update, world_of

PROMETHEUS = "defaultProviders: {metrics: [prometheus]}"
NAMED = "providers: [{name: prometheus}]"
LABELS = frozenset({("app", "web")})
ALL = frozenset(Metric)


def context(side: TrafficSide = TrafficSide.OUTBOUND) -> PolicyContext:
    return PolicyContext(side, "shop", LABELS, spans=SpanSource(metrics=MetricSource((), True)))


def chosen(world: World, side: TrafficSide = TrafficSide.OUTBOUND) -> dict[Metric, MetricSettings]:
    return {each.metric: each for each in metric_settings(world.view, context(side))}


@pytest.mark.parametrize(
    ("mesh", "entry", "there"),
    [
        ("", "", False),
        (PROMETHEUS, "", True),
        ("", NAMED, True),
        ("", "overrides: [{match: {mode: CLIENT}}]", False),
        (PROMETHEUS, "overrides: [{match: {mode: CLIENT}}]", True),
        ("", "providers: [{name: nobody}]", False),
        (PROMETHEUS, "providers: [{name: envoy}]", False),
        ("extensionProviders: [{name: ours, prometheus: {}}]", "providers: [{name: Ours}]", True),
        (PROMETHEUS, f"{NAMED}}}, {{providers: [{{name: envoy}}]", False),
        (PROMETHEUS, "overrides: [{disabled: true}]", False),
    ],
)
def test_metrics_are_there_if_a_provider_of_them_is_in_force(mesh: str, entry: str, there: bool) -> None:
    world = world_of(telemetry("shop", "shop", f"metrics: [{{{entry}}}]") if entry else "", mesh=mesh)
    assert set(chosen(world)) == (ALL if there else set())


def test_overrides_are_for_their_metric_and_side_and_the_narrower_win() -> None:
    world = world_of(
        telemetry("mesh", "istio-system", f"metrics: [{{{NAMED}, overrides: [{{disabled: true}}]}}]")
        + telemetry(
            "shop",
            "shop",
            "metrics: [{overrides: [{match: {metric: REQUEST_COUNT}, disabled: false, tagOverrides: "
            "{a: {value: request.host}, b: {operation: REMOVE}}}, "
            "{match: {customMetric: istio_request_bytes, mode: SERVER}, disabled: false}]}]",
        )
        + telemetry("web", "shop", "metrics: [{overrides: [{tagOverrides: {a: {value: '\"x\"'}}}]}]", "{app: web}")
    )
    assert chosen(world) == {
        Metric.REQUEST_COUNT: MetricSettings(Metric.REQUEST_COUNT, (("a", '"x"'), ("b", None))),
    }
    assert set(chosen(world, TrafficSide.INBOUND)) == {Metric.REQUEST_COUNT, Metric.REQUEST_SIZE}
    assert set(chosen(world, TrafficSide.GATEWAY)) == {Metric.REQUEST_COUNT}


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("request.host", "%REQ(:AUTHORITY):128%"),
        (" request.headers['x-a'] ", "%REQ(x-a):128%"),
        ('response.headers["x-a"]', "%RESP(x-a):128%"),
        ('"50%"', "50%%"),
        ("'a'", "a"),
        ("response.code", "%RESPONSE_CODE%"),
        ("node.metadata['A']", "%CEL(xds.node.metadata['A']):128%"),
        (
            """node .id == '/node.js' || request.path == "node['a\\"]" || x.node.y""",
            """%CEL(xds.node .id == '/node.js' || request.path == "node['a\\"]" || x.node.y):128%""",
        ),
        ("request.headers['no name']", "%CEL(request.headers['no name']):128%"),
        ("'a' + 'b'", "%CEL('a' + 'b'):128%"),
    ],
)
def test_expressions_become_formats(expression: str, expected: str) -> None:
    assert (tag_format(expression), tag_reason(expression)) == (expected, "")


@pytest.mark.parametrize("expression", ["", "''", "((", "5 % 2", "'a'.b(", "a\n+ b"])
def test_what_is_no_expression_has_a_reason_and_no_format(expression: str) -> None:
    assert tag_format(expression) == "" and tag_reason(expression)


def test_what_cannot_be_carried_out_is_warned_of_with_its_place() -> None:
    entry = (
        "metrics: [{overrides: [{match: {customMetric: mine}}, {match: {metric: GRPC_REQUEST_MESSAGES}}, "
        "{tagOverrides: {a: {value: ((}, b: {operation: REMOVE}, c: {value: request.host}}}]}, "
        "{providers: [{name: envoy}, {name: none}, {name: prometheus}]}]"
    )
    world = world_of(telemetry("shop", "shop", entry), mesh="defaultProviders: {metrics: [zipkin]}")
    key = ConfigKey("Telemetry", "shop", "shop")
    assert [problem.path for problem in telemetry_problems(world.view, key)] == [
        "spec.metrics[0].overrides[0].match.customMetric",
        "spec.metrics[0].overrides[1].match.metric",
        "spec.metrics[0].overrides[2].tagOverrides[a].value",
        "spec.metrics[1].providers[0].name",
        "spec.metrics[1].providers[1].name",
    ]
    assert [problem.path for problem in default_provider_problems(world.view)] == ["defaultProviders.metrics[0]"]
    world = world_of(telemetry("shop", "shop", "metrics: [{overrides: [{disabled: true}]}]"))
    assert [problem.path for problem in telemetry_problems(world.view, key)] == ["spec.metrics[0]"]


@pytest.mark.parametrize(
    ("version", "limited"), [("1.40.0", True), ("1.41.1", True), ("1.38.3", False), ("1.37.9", None), ("", None)]
)
def test_envoys_get_what_they_know(version: str, limited: bool | None) -> None:
    source = metric_source(version, ())
    assert (source.limited if source else None) is limited


def proxy(name: str, version: str = "1.40.0") -> Proxy:
    return attrs.evolve(sidecar("10.9.9.9", name=name, namespace="shop", labels={"app": name}), version=version)


def made(world: World, client: Proxy) -> dict[str, Resource]:
    """Its listeners, clusters and endpoints, by name; those of endpoints begin with ``endpoints of``."""
    keys = target(world, client)
    plan = outbound_clusters(world.view, keys.scope, keys.locality)
    found: dict[str, Resource | None] = {**resources(world, client)}
    found |= {name: query.get(world.view) for name, query in plan.items()}
    found |= {f"endpoints of {name}": assignment(world.view, keys.scope, keys.locality, name) for name in plan}
    return {name: resource for name, resource in found.items() if resource is not None}


def test_nothing_changes_without_a_provider_and_proxies_of_one_workload_share_with_one() -> None:
    without = world_of(SERVICES)
    assert made(without, proxy("a")) == made(without, proxy("b"))
    text = repr(sorted(r.body for r in made(without, proxy("a")).values()))
    assert "wasmcustom" not in text and "x-mesh-peer" not in text and "workload_namespace" not in text
    world = world_of(SERVICES, mesh=PROMETHEUS)
    assert made(world, proxy("a")) == made(world, proxy("a"))
    a, b = made(world, proxy("a")), made(world, proxy("b"))
    assert {name for name in a if a[name] != b[name]} == {name for name in a if b"wasmcustom" in a[name].body}
    upstreams = [name for name in a if name.startswith(("outbound|", "endpoints of"))]
    assert len(upstreams) == 6 and all(b"workload_namespace" in a[n].body for n in upstreams if " of " in n)
    assert all(b"service_namespace" in a[n].body for n in upstreams if " of " not in n)
    assert all(b"wasmcustom" not in each.body for each in made(world, proxy("a", "1.36.2")).values())


GROUPED = """
---
apiVersion: networking.istio.io/v1
kind: WorkloadGroup
metadata: {name: reviews-vms, namespace: shop}
spec: {metadata: {labels: {app: reviews}}, template: {serviceAccount: sa-reviews}}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: reviews-10.9.9.9, namespace: shop, annotations: {istio.io/autoRegistrationGroup: reviews-vms}}
spec: {address: 10.9.9.9}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: reviews, namespace: shop}
spec:
  hosts: [reviews.test]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  workloadSelector: {labels: {app: reviews}}
"""


@pytest.mark.parametrize("labels", [{}, {"app": "reviews"}, {"service.istio.io/canonical-name": "other"}])
@pytest.mark.parametrize("metadata", [{}, {"WORKLOAD_NAME": "reviews-10.9.9.9"}, {"WORKLOAD_NAME": "made-up"}])
def test_both_ends_name_an_instance_of_a_group_by_its_group(labels: dict[str, str], metadata: dict[str, str]) -> None:
    world = world_of(GROUPED, mesh=PROMETHEUS)
    node = sidecar("10.9.9.9", name="vm", namespace="shop", labels=labels, **metadata)
    own = target(world, attrs.evolve(node, version="1.40.0")).workload.spans.metrics
    (endpoint,) = world.endpoints.peek(ServiceKey("reviews.test", "shop"))
    assert own is not None and dict(own.names)["workload"] == "reviews-vms"
    assert dict(endpoint_names(endpoint, "shop"))["workload"] == "reviews-vms"


def mutations_of(resource: Resource) -> list[mutation_rules_pb2.HeaderMutation]:
    """The mutations of names of peers in a listener."""
    if resource.type_url != LISTENER:
        return []
    chains = Listener.FromString(resource.body).filter_chains
    managers = (manager(chain) for chain in chains if chain.filters[-1].name == HTTP_CONNECTION_MANAGER)
    found = (each for one in managers for each in one.http_filters if each.name == PEER_NAMES.name)
    configs = (HeaderMutation.FromString(each.typed_config.value) for each in found)
    return [mutation for config in configs for mutation in config.mutations.request_mutations]


def test_proxies_without_metrics_remove_names_once_others_have_them() -> None:
    text = SERVICES + telemetry("other", "other", f"metrics: [{{{NAMED}}}]")
    for world in (world_of(text), world_of(SERVICES, mesh=PROMETHEUS)):
        found = [m for each in made(world, proxy("a", "1.36.2")).values() for m in mutations_of(each)]
        assert found and {m.remove for m in found} == set(PEER_HEADERS.values())
    gateway = "{selector: {istio: edge}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ['*']}]}"
    world = world_of(text + routing.config("Gateway", "gw", gateway, namespace="edge"))
    plan = gateway_listeners(world.view, routing.target(world, routing.router()).workload)
    (listener,) = (call.get(world.view) for call in plan.values())
    assert listener is not None and {m.remove for m in mutations_of(listener)} == set(PEER_HEADERS.values())


def test_names_that_are_no_header_are_removed() -> None:
    labels = {"app": "caf\u00e9", "version": "1\n2", "service.istio.io/canonical-name": "50%"}
    strange = attrs.evolve(sidecar("10.9.9.9", namespace="shop", labels=labels), version="1.40.0")
    found = [m for each in made(world_of(SERVICES, mesh=PROMETHEUS), strange).values() for m in mutations_of(each)]
    assert {"x-mesh-peer-app", "x-mesh-peer-version"} <= {m.remove for m in found}
    said = {m.append.header.key: m.append.header.value for m in found}
    assert said["x-mesh-peer-canonical-service"] == "50%%" and "x-mesh-peer-app" not in said


def test_an_override_changes_listeners_alone() -> None:
    world = world_of(SERVICES, mesh=PROMETHEUS)
    before = made(world, proxy("a"))
    update(world, telemetry("shop", "shop", "metrics: [{overrides: [{tagOverrides: {a: {value: request.host}}}]}]"))
    after = made(world, proxy("a"))
    changed = {name for name in before if before[name] != after[name]}
    assert changed and all(b"wasmcustom" in after[name].body for name in changed)
    update(world, telemetry("other", "other", "metrics: [{overrides: [{disabled: true}]}]"))
    assert made(world, proxy("a")) == after
