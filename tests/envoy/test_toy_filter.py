"""To add an HTTP filter is to declare it and put it in order: listeners, routes, gRPC and EnvoyFilter follow."""

from __future__ import annotations

import attrs
import pytest
from envoy.extensions.filters.http.local_ratelimit.v3.local_rate_limit_pb2 import LocalRateLimit
from envoy.type.v3.token_bucket_pb2 import TokenBucket
from google.protobuf import any_pb2

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.envoy import filters
from mesh_pilot.envoy.catalog.catalog import WorldCatalog
from mesh_pilot.envoy.core.protobuf import any_of, seconds, uint32
from mesh_pilot.envoy.filters.translator import FilterClass, FilterTranslator
from mesh_pilot.mesh.policies.context import PolicyContext, TrafficSide
from mesh_pilot.model.resource import LISTENER, ROUTE
from mesh_pilot.model.service import Protocol
from mesh_pilot.world.view import View
from tests.support.patching import LUA, Shop, envoy_filter, managers, names, patch
from tests.support.routing import service, table, virtual_service
from tests.support.worlds import sidecar, world_of

HEADER = "x-requests-per-second"
NAME = "envoy.filters.http.local_ratelimit"
WEB = "web.shop.svc.cluster.local"
LIMITED = (
    f"{{hosts: [web], http: [{{headers: {{request: {{set: {{{HEADER}: '7'}}}}}}, match: [{{uri: {{prefix: /a}}}}],"
    " fault: {abort: {httpStatus: 500, percentage: {value: 1}}}, route: [{destination: {host: web}}]},"
    " {route: [{destination: {host: web}}]}]}"
)


def _hcm(view: View, context: PolicyContext, protocol: Protocol) -> any_pb2.Any | None:
    return None if context.side is TrafficSide.INBOUND else any_of(LocalRateLimit(stat_prefix="toy"))


def _per_route(spec: api.HttpRoute) -> any_pb2.Any | None:
    requests = spec.headers.request.set.get(HEADER) if spec.headers and spec.headers.request else None
    if requests is None:
        return None
    bucket = TokenBucket(max_tokens=int(requests), tokens_per_fill=uint32(int(requests)), fill_interval=seconds(1))
    return any_of(LocalRateLimit(stat_prefix="toy", token_bucket=bucket))


TOY = FilterTranslator(name=NAME, config=LocalRateLimit, hcm=_hcm, per_route=_per_route, filter_class=FilterClass.AUTHZ)


def register(monkeypatch: pytest.MonkeyPatch, toy: FilterTranslator = TOY) -> None:
    *others, router = filters.HTTP_FILTERS
    monkeypatch.setattr(filters, "HTTP_FILTERS", (*others, toy, router))


def test_listeners_have_the_filter_in_its_place_and_only_where_it_has_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch)
    shop = Shop()
    outbound = shop.http_filters("0.0.0.0_80")
    assert outbound and all(found[-2:] == [NAME, "envoy.filters.http.router"] for found in outbound)
    inbound = shop.http_filters("virtualInbound")
    assert inbound and all(NAME not in found for found in inbound)


def test_a_route_has_its_own_configuration_of_the_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch)
    world = world_of(service("web") + virtual_service("web", LIMITED))
    limited, rest = table(world)[f"{WEB}:80"].routes
    assert set(limited.typed_per_filter_config) == {NAME, "envoy.filters.http.fault"}
    assert not rest.typed_per_filter_config
    config = LocalRateLimit()
    assert limited.typed_per_filter_config[NAME].Unpack(config)
    assert config.token_bucket.max_tokens == 7


@pytest.mark.parametrize("supported", [True, False])
def test_grpc_clients_have_the_filter_if_they_support_it(monkeypatch: pytest.MonkeyPatch, supported: bool) -> None:
    register(monkeypatch, attrs.evolve(TOY, grpc_client=supported))
    world = world_of(service("web", ports="80 grpc GRPC") + virtual_service("web", LIMITED))
    resources = WorldCatalog(world).open(sidecar(namespace="shop", GENERATOR="grpc"))
    listeners, tables = resources.set(LISTENER), resources.set(ROUTE)
    assert listeners is not None and tables is not None
    listener, routes = listeners.get(f"{WEB}:80"), tables.get(f"outbound|80||{WEB}")
    assert listener is not None and routes is not None
    assert (NAME.encode() in listener.body) is supported
    assert (NAME.encode() in routes.body) is supported
    assert b"envoy.filters.http.fault" in listener.body and b"envoy.filters.http.fault" in routes.body


def test_what_an_envoy_filter_adds_after_its_class_goes_after_the_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch)
    lua = {"name": "lua", "typed_config": {"@type": LUA, "inline_code": ""}}
    change = patch("HTTP_FILTER", "ADD", lua)
    change["patch"]["filterClass"] = "AUTHZ"
    shop = Shop(envoy_filter(change))
    for manager in managers(shop.listener("0.0.0.0_80")):
        assert names(manager.http_filters)[-3:] == [NAME, "lua", "envoy.filters.http.router"]
