"""Tracing of listeners, as Telemetry and the mesh config say."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from envoy.config.listener.v3.listener_pb2 import Listener
from envoy.config.trace.v3.datadog_pb2 import DatadogConfig
from envoy.config.trace.v3.opentelemetry_pb2 import OpenTelemetryConfig
from envoy.config.trace.v3.zipkin_pb2 import ZipkinConfig
from envoy.extensions.request_id.uuid.v3.uuid_pb2 import UuidRequestIdConfig
from envoy.extensions.tracers.opentelemetry.samplers.v3.dynatrace_sampler_pb2 import DynatraceSamplerConfig
from google.protobuf import duration_pb2, unknown_fields

from mesh_pilot.envoy.gateway.listeners import gateway_listeners
from mesh_pilot.envoy.telemetry.tracing import TRACING_PROVIDER_FIELDS, tracing_settings
from mesh_pilot.mesh.policies.context import TrafficSide
from mesh_pilot.mesh.proxy.span_source import workload_tags
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.world import World
from tests.support.listeners import is_http, listeners, manager, target
from tests.support.plans import outbound_listeners
from tests.support.telemetry import PROVIDERS, SERVICES, context, http_chain, telemetry
from tests.support.worlds import sidecar, world_of


def test_tracing_is_as_the_mesh_says() -> None:
    chosen = tracing_settings(world_of().view, context())
    assert chosen is not None and chosen.sampling == 1.0 and not chosen.provider
    assert tracing_settings(world_of(mesh="enableTracing: false").view, context()) is None


def test_telemetry_about_tracing_without_any_provider_ends_it() -> None:
    world = world_of(telemetry("shop", "shop", "tracing: [{randomSamplingPercentage: 50}]"))
    assert tracing_settings(world.view, context()) is None


def test_the_narrower_telemetry_adds_to_what_the_wider_says_of_tracing() -> None:
    world = world_of(
        telemetry("mesh", "istio-system", "tracing: [{providers: [{name: zipkin}], randomSamplingPercentage: 10}]")
        + telemetry("shop", "shop", "tracing: [{customTags: {a: {literal: {value: b}}}}]")
        + telemetry("web", "shop", "tracing: [{match: {mode: SERVER}, disableSpanReporting: true}]", "{app: web}")
    )
    chosen = tracing_settings(world.view, context())
    assert chosen is not None
    assert (chosen.provider, chosen.sampling, list(chosen.tags)) == ("zipkin", 10, ["a"])
    assert tracing_settings(world.view, context(TrafficSide.INBOUND)) is None


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("providers: [{name: zipkin}]", {"env": "prod"}),
        ("providers: [{name: zipkin}], customTags: {a: {literal: {value: b}}, none: {}}", {"a": "b"}),
    ],
)
def test_tags_of_the_mesh_config_hold_until_a_telemetry_has_its_own(entry: str, expected: dict[str, str]) -> None:
    mesh = "defaultConfig: {tracing: {customTags: {env: {literal: {value: prod}}}}}"
    assert tags(http_chain(traced_world(entry, mesh=mesh))) == expected


def traced(provider: str) -> Any:
    world = world_of(
        SERVICES + telemetry("shop", "shop", f"tracing: [{{providers: [{{name: {provider}}}]}}]"), mesh=PROVIDERS
    )
    return http_chain(world)


def test_spans_go_to_the_cluster_of_the_providers_service() -> None:
    tracing = traced("zipkin").tracing
    assert tracing.max_path_tag_length.value == 7
    config = ZipkinConfig.FromString(tracing.provider.typed_config.value)
    assert config.collector_cluster == "outbound|9411||collector.example"


def test_entries_of_one_telemetry_add_up_for_their_side() -> None:
    entries = (
        "{providers: [{name: zipkin}], randomSamplingPercentage: 10}",
        "{match: {mode: CLIENT}, randomSamplingPercentage: 20}",
        "{match: {mode: SERVER}, disableSpanReporting: true}",
        "{match: {mode: CLIENT}, useRequestIdForTraceSampling: false}",
    )
    world = world_of(telemetry("shop", "shop", f"tracing: [{', '.join(entries)}]"))
    chosen = tracing_settings(world.view, context())
    assert chosen is not None
    assert (chosen.provider, chosen.sampling, chosen.by_request_id) == ("zipkin", 20, False)
    assert tracing_settings(world.view, context(TrafficSide.INBOUND)) is None


def test_a_telemetry_about_clients_ends_the_mesh_configs_tracing_at_servers() -> None:
    world = world_of(telemetry("shop", "shop", "tracing: [{match: {mode: CLIENT}, providers: [{name: zipkin}]}]"))
    assert tracing_settings(world.view, context(TrafficSide.INBOUND)) is None
    assert tracing_settings(world_of().view, context(TrafficSide.INBOUND)) is not None


def otel(provider: str) -> OpenTelemetryConfig:
    return OpenTelemetryConfig.FromString(traced(provider).tracing.provider.typed_config.value)


def test_detectors_of_resources_are_declared() -> None:
    kind = "envoy.tracers.opentelemetry.resource_detectors."
    assert [each.name.removeprefix(kind) for each in otel("otel-all").resource_detectors] == [
        "environment",
        "dynatrace",
    ]
    assert not otel("otel-http").resource_detectors


def test_dynatraces_sampler_decides_alone_and_asks_its_api() -> None:
    own = DynatraceSamplerConfig.FromString(otel("dynatrace").sampler.typed_config.value)
    assert (own.tenant, own.cluster_id, own.root_spans_per_minute) == ("abc", 7, 50)
    assert own.http_service.http_uri.uri == "http://collector.example:9411/api/v2/samplingConfiguration"
    assert [each.header.key for each in own.http_service.request_headers_to_add] == ["x-key"]
    other = DynatraceSamplerConfig.FromString(otel("dynatrace-api").sampler.typed_config.value)
    assert other.http_service.http_uri.uri == "http://collector.example:9411/api"
    assert traced("dynatrace").tracing.random_sampling.value == 100
    assert not traced("dynatrace-lost").HasField("tracing")


@pytest.mark.parametrize(
    ("metadata", "labels", "name"),
    [
        ({"ANNOTATIONS": {"resource.opentelemetry.io/service.name": "named"}}, {}, "named"),
        (
            {"WORKLOAD_NAME": "web-vm"},
            {"app.kubernetes.io/instance": "web-eu", "app.kubernetes.io/name": "web"},
            "web-eu",
        ),
        ({"WORKLOAD_NAME": "web-vm"}, {"app.kubernetes.io/name": "web"}, "web"),
        ({"WORKLOAD_NAME": "web-vm"}, {}, "web-vm"),
        ({"ANNOTATIONS": "no object"}, {}, "vm"),
    ],
)
def test_a_service_is_named_by_opentelemetrys_conventions_where_a_provider_says_so(
    metadata: dict[str, Any], labels: dict[str, str], name: str
) -> None:
    proxy = attrs.evolve(sidecar(namespace="shop", labels=labels, **metadata), name="vm.shop", cluster="web.shop")
    for provider, expected in (("otel-all", name), ("otel-http", "web.shop")):
        world = traced_world(f"providers: [{{name: {provider}}}]")
        config = manager(listeners(world, proxy)["0.0.0.0_80"].filter_chains[0]).tracing.provider.typed_config
        assert OpenTelemetryConfig.FromString(config.value).service_name == expected


def test_a_gateways_requests_to_upstreams_are_spans_of_their_own() -> None:
    world = traced_world("providers: [{name: zipkin}]", more=GATEWAY)
    router = sidecar("10.1.1.9", namespace="shop", labels={"app": "web"}, node_type="router")
    queries = gateway_listeners(world.view, target(world, router).workload).values()
    (front,) = (query.get(world.view) for query in queries)
    assert manager(Listener.FromString(front.body).filter_chains[0]).tracing.spawn_upstream_span.value


@pytest.mark.parametrize("provider", ["otel", "otel-http", "datadog", "skywalking"])
def test_other_tracers_are_known(provider: str) -> None:
    assert provider.partition("-")[0] in traced(provider).tracing.provider.typed_config.type_url.lower().replace(
        "opentelemetry", "otel"
    )


def test_a_provider_whose_service_is_not_there_traces_nothing() -> None:
    # Envoy would refuse the whole listener for a cluster that it does not have.
    assert not traced("lost").HasField("tracing")


def test_the_kinds_of_tracers_are_those_that_are_generated() -> None:
    names = ("zipkin", "otel", "datadog", "skywalking")
    assert len(TRACING_PROVIDER_FIELDS) == len(names) and all(traced(name).HasField("tracing") for name in names)


# -- what proxies say of themselves in spans

GATEWAY = """
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: front, namespace: shop}
spec:
  selector: {app: web}
  servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ["*"]}]
"""


def traced_world(entry: str, *, mesh: str = "", more: str = "") -> World:
    config = telemetry("shop", "shop", f"tracing: [{{{entry}}}]") if entry else ""
    return world_of(SERVICES + config + more, mesh=PROVIDERS + mesh)


def proxy_in(cluster: str, ip: str = "10.9.9.9", **labels: str) -> Proxy:
    """A proxy of namespace shop whose node is of an Envoy cluster."""
    node = sidecar(ip, namespace="shop", labels={"app": "web", **labels}, MESH_ID="m", CLUSTER_ID="c")
    return attrs.evolve(node, cluster=cluster)


def managers(world: World, proxy: Proxy) -> list[Any]:
    """The HTTP connection managers of a sidecar at 10.1.1.1 for its own port 80 and for that of others."""
    found = listeners(world, proxy)
    chains = [*found["0.0.0.0_80"].filter_chains, *found["virtualInbound"].filter_chains]
    http = [manager(chain) for chain in chains if is_http(chain)]
    assert {m.stat_prefix for m in http} >= {"outbound_0.0.0.0_80", "inbound_0.0.0.0_80"}
    return http


HTTP = {"0.0.0.0_80", "0.0.0.0_4317", "0.0.0.0_9411"}
OTHERS = {"virtualOutbound"}


def shared(world: World, one: Proxy, other: Proxy) -> set[str]:
    """The names of the outbound listeners that two proxies have in common."""
    plans = []
    for proxy in (one, other):
        seen = target(world, proxy)
        plans.append(outbound_listeners(world.view, seen.scope, seen.workload.spans))
    return {name for name, call in plans[0].items() if plans[1].get(name) == call}


@pytest.mark.parametrize(
    ("provider", "config"),
    [("otel", OpenTelemetryConfig), ("OTEL-HTTP", OpenTelemetryConfig), ("datadog", DatadogConfig)],
)
def test_spans_name_the_cluster_of_the_proxys_node_as_their_service(provider: str, config: Any) -> None:
    world = traced_world(f"providers: [{{name: {provider}}}]", more=GATEWAY)
    found = managers(world, proxy_in("web.shop", "10.1.1.1"))
    router = sidecar("10.1.1.9", namespace="shop", labels={"app": "web"}, node_type="router")
    workload = target(world, attrs.evolve(router, cluster="web.shop")).workload
    (listener,) = (query.get(world.view) for query in gateway_listeners(world.view, workload).values())
    found.append(manager(Listener.FromString(listener.body).filter_chains[0]))
    names = {config.FromString(m.tracing.provider.typed_config.value).service_name for m in found}
    assert names == {"web.shop"}


def test_the_service_is_named_for_a_default_provider_too() -> None:
    world = traced_world("", mesh="defaultProviders: {tracing: [otel]}")
    (service,) = {
        OpenTelemetryConfig.FromString(m.tracing.provider.typed_config.value).service_name
        for m in managers(world, proxy_in("web.shop", "10.1.1.1"))
    }
    assert service == "web.shop"


def test_a_proxy_without_a_cluster_leaves_the_name_to_envoy_where_envoy_has_one() -> None:
    otel = traced("otel").tracing.provider.typed_config.value
    assert OpenTelemetryConfig.FromString(otel).service_name == ""
    datadog = traced("datadog").tracing.provider.typed_config.value
    assert DatadogConfig.FromString(datadog).service_name == "envoy"


def test_proxies_share_http_listeners_unless_their_spans_name_different_services() -> None:
    one, replica, other = proxy_in("web.shop"), proxy_in("web.shop", "10.9.9.8"), proxy_in("api.shop", "10.9.9.7")
    for provider, common in (("zipkin", HTTP | OTHERS), ("otel", OTHERS)):
        world = traced_world(f"providers: [{{name: {provider}}}]")
        assert shared(world, one, replica) == HTTP | OTHERS
        assert shared(world, one, other) == common


def test_a_tracer_of_another_namespace_does_not_keep_proxies_from_sharing() -> None:
    elsewhere = telemetry("far", "far", "tracing: [{providers: [{name: otel}], enableIstioTags: true}]")
    world = traced_world("", more=elsewhere)
    assert shared(world, proxy_in("web.shop"), proxy_in("api.shop")) == HTTP | OTHERS


# -- SkyWalking


def test_requests_to_upstreams_are_spans_of_their_own_with_skywalking_only() -> None:
    assert traced("skywalking").tracing.spawn_upstream_span.value
    assert not traced("zipkin").tracing.HasField("spawn_upstream_span")


# -- fields of an entry


def by_request_id(found: Any) -> bool:
    return UuidRequestIdConfig.FromString(
        found.request_id_extension.typed_config.value
    ).use_request_id_for_trace_sampling.value


def test_request_ids_decide_of_sampling_unless_telemetry_says_otherwise() -> None:
    provider = "providers: [{name: zipkin}]"
    assert by_request_id(http_chain(traced_world(provider)))
    assert not by_request_id(http_chain(traced_world(f"{provider}, useRequestIdForTraceSampling: false")))
    ended = f"{provider}, useRequestIdForTraceSampling: false, disableSpanReporting: true"
    assert by_request_id(http_chain(traced_world(ended)))


def unknown(message: Any) -> dict[int, object]:
    """The fields that this version of the API's classes does not have."""
    return {field.field_number: field.data for field in unknown_fields.UnknownFieldSet(message)}


def test_context_propagation_can_be_disabled() -> None:
    provider = "providers: [{name: zipkin}]"
    assert unknown(http_chain(traced_world(f"{provider}, disableContextPropagation: true")).tracing) == {13: 1}
    assert unknown(http_chain(traced_world(f"{provider}, disableContextPropagation: false")).tracing) == {}
    assert unknown(http_chain(traced_world(provider)).tracing) == {}


def test_the_narrower_telemetry_wins_for_these_fields() -> None:
    wide = "tracing: [{providers: [{name: zipkin}], FIELDS}]".replace(
        "FIELDS", "useRequestIdForTraceSampling: false, disableContextPropagation: true, enableIstioTags: true"
    )
    narrow = "useRequestIdForTraceSampling: true, disableContextPropagation: false, enableIstioTags: false"
    world = world_of(
        telemetry("mesh", "istio-system", wide) + telemetry("web", "shop", f"tracing: [{{{narrow}}}]", "{app: web}"),
        mesh=PROVIDERS,
    )
    chosen = tracing_settings(world.view, context())
    assert chosen is not None
    assert (chosen.by_request_id, chosen.context_disabled, chosen.istio_tags) == (True, False, False)
    chosen = tracing_settings(world.view, attrs.evolve(context(), labels=frozenset()))
    assert chosen is not None
    assert (chosen.by_request_id, chosen.context_disabled, chosen.istio_tags) == (False, True, True)


# -- Istio's tags


def tags(found: Any) -> dict[str, str]:
    return {t.tag: t.literal.value or t.metadata.metadata_key.path[0].key for t in found.tracing.custom_tags}


ISTIO_TAGS = {
    "istio.authorization.dry_run.allow_policy.name": "istio_dry_run_allow_shadow_effective_policy_id",
    "istio.authorization.dry_run.allow_policy.result": "istio_dry_run_allow_shadow_engine_result",
    "istio.authorization.dry_run.deny_policy.name": "istio_dry_run_deny_shadow_effective_policy_id",
    "istio.authorization.dry_run.deny_policy.result": "istio_dry_run_deny_shadow_engine_result",
    "istio.canonical_revision": "v2",
    "istio.canonical_service": "web",
    "istio.cluster_id": "c",
    "istio.mesh_id": "m",
    "istio.namespace": "shop",
}


@pytest.mark.parametrize(
    ("entry", "mesh"),
    [
        ("providers: [{name: zipkin}], enableIstioTags: true", ""),
        ("", "defaultConfig: {tracing: {enableIstioTags: true}}"),
        ("providers: [{name: zipkin}]", "defaultConfig: {tracing: {enableIstioTags: true}}"),
    ],
)
def test_spans_have_istios_tags_where_that_is_said(entry: str, mesh: str) -> None:
    proxy = proxy_in("web.shop", "10.1.1.1", version="v2")
    for found in managers(traced_world(entry, mesh=mesh), proxy):
        assert tags(found) == ISTIO_TAGS
        assert [t.tag for t in found.tracing.custom_tags] == sorted(ISTIO_TAGS)


@pytest.mark.parametrize("setting", ["", ", enableIstioTags: false"])
def test_without_that_they_have_none_so_that_listeners_are_shared(setting: str) -> None:
    world = traced_world(f"providers: [{{name: zipkin}}]{setting}")
    assert tags(http_chain(world)) == {}


def test_the_labels_for_the_canonical_service_count_before_others() -> None:
    labels = {"app": "web", "service.istio.io/canonical-name": "shop", "service.istio.io/canonical-revision": "v3"}
    found = dict(workload_tags("", frozenset(labels.items()), "", ""))
    assert found == {
        "istio.canonical_revision": "v3",
        "istio.canonical_service": "shop",
        "istio.cluster_id": "unknown",
        "istio.mesh_id": "unknown",
        "istio.namespace": "default",
    }
    found = dict(workload_tags("shop", frozenset(), "", ""))
    assert (found["istio.canonical_service"], found["istio.canonical_revision"]) == ("unknown", "latest")


def test_a_tag_of_ones_own_stands_among_them() -> None:
    custom = "customTags: {istio.custom: {literal: {value: x}}}"
    world = traced_world(f"providers: [{{name: zipkin}}], enableIstioTags: true, {custom}")
    (found, *_) = managers(world, proxy_in("web.shop", "10.1.1.1", version="v2"))
    assert tags(found) == {**ISTIO_TAGS, "istio.custom": "x"}


def test_a_proxy_can_enable_them_for_itself() -> None:
    settings = {"tracing": {"enableIstioTags": True}}
    one = sidecar("10.9.9.9", namespace="shop", labels={"app": "web"}, PROXY_CONFIG=settings)
    other = sidecar("10.9.9.8", namespace="shop", labels={"app": "web"})
    world = traced_world("")
    found = [tags(manager(listeners(world, p)["0.0.0.0_80"].filter_chains[0])) for p in (one, other)]
    assert (found[0]["istio.canonical_service"], found[0]["istio.mesh_id"]) == ("web", "unknown")
    assert found[1] == {}


# -- fields of providers


def test_zipkin_has_a_timeout_and_headers_where_they_are_given() -> None:
    config = ZipkinConfig.FromString(traced("zipkin-more").tracing.provider.typed_config.value)
    service = config.collector_service
    assert (service.http_uri.uri, service.http_uri.cluster, service.http_uri.timeout.seconds) == (
        "http://collector.example/spans",
        "outbound|9411||collector.example",
        2,
    )
    # A header of the proxy's environment, which is not known here, is left out.
    assert [(h.header.key, h.header.value) for h in service.request_headers_to_add] == [("x-key", "k")]
    assert config.trace_context_option == ZipkinConfig.USE_B3_WITH_W3C_PROPAGATION
    # For Envoys that are too old for a collector service.
    assert (config.collector_cluster, config.collector_endpoint) == ("outbound|9411||collector.example", "/spans")
    plain = ZipkinConfig.FromString(traced("zipkin").tracing.provider.typed_config.value)
    assert plain.collector_service.http_uri.timeout.seconds == 5


def test_opentelemetry_has_a_timeout_and_metadata_where_they_are_given() -> None:
    config = OpenTelemetryConfig.FromString(traced("otel-more").tracing.provider.typed_config.value)
    assert config.grpc_service.timeout == duration_pb2.Duration(seconds=3)
    assert [(h.key, h.value) for h in config.grpc_service.initial_metadata] == [("x-key", "k")]
    plain = OpenTelemetryConfig.FromString(traced("otel").tracing.provider.typed_config.value)
    assert not plain.grpc_service.HasField("timeout")
