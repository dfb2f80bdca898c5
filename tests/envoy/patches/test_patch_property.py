"""Patches of any kind and value: none costs a resource, and what cannot be done is reported with its EnvoyFilter."""

from __future__ import annotations

from functools import cache
from typing import Any

from envoy.config.cluster.v3.cluster_pb2 import Cluster
from envoy.config.listener.v3.listener_pb2 import Listener
from envoy.config.route.v3.route_pb2 import RouteConfiguration
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from mesh_pilot.envoy.core.protobuf import find_type
from mesh_pilot.envoy.envoy_filter.parse import EFFECTIVE
from mesh_pilot.envoy.envoy_filter.patch import ApplyTo, Operation
from mesh_pilot.envoy.envoy_filter.values import MESSAGES
from mesh_pilot.model.config import ConfigError
from mesh_pilot.model.resource import CLUSTER, LISTENER, ROUTE
from tests.support.patching import API, EDGE, HCM, LUA, ROUTER, Shop, envoy_filter, in_filter, in_http_filter
from tests.support.sample import examples
from tests.support.worlds import configs

TYPES = (
    LUA,
    ROUTER,
    f"type.googleapis.com/envoy.extensions.filters.network.{HCM.rpartition('.')[2]}.v3.HttpConnectionManager",
    "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
    "type.googleapis.com/xds.type.v3.TypedStruct",
    "type.googleapis.com/google.protobuf.Struct",
    "type.googleapis.com/google.protobuf.Duration",
    "type.googleapis.com/google.protobuf.Any",
    "type.googleapis.com/acme.Own",
)
NAMES = ("envoy.filters.http.router", HCM, "envoy.filters.network.tcp_proxy", "own", "outbound|80||api", "tls", "")
TABLES = ("80", "9000", "http.8081", "http.80")

JUNK: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**40), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "5s", "500ms", "-1m", "9999999h", "\x00", "é", *NAMES, *TYPES]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["@type", "value", "type_url", "name", "typed_config", "x"]), inner, max_size=3
        )
    ),
    max_leaves=6,
)


@st.composite
def messages(draw: st.DrawFn, kind: Descriptor, depth: int = 0) -> Any:
    """JSON of a message of Envoy's, or nearly."""
    if kind.full_name == "google.protobuf.Any":
        url = draw(st.sampled_from(TYPES))
        inner = find_type(url)
        value = draw(messages(inner, depth + 1)) if inner is not None and inner.full_name != kind.full_name else {}
        return {"@type": draw(st.just(url) | JUNK), **(value if isinstance(value, dict) else {"value": value})}
    if kind.full_name.startswith("google.protobuf."):
        return draw(JUNK)
    fields = [f for f in kind.fields if f.name != "name"]
    chosen = draw(st.lists(st.sampled_from(fields), max_size=3, unique_by=lambda f: f.name)) if fields else []
    found = {f.name: draw(field_values(f, depth)) for f in chosen}
    if "name" in kind.fields_by_name and draw(st.booleans()):
        found["name"] = draw(st.sampled_from(NAMES) | JUNK)
    return found


@st.composite
def field_values(draw: st.DrawFn, field: FieldDescriptor, depth: int) -> Any:
    if depth > 4 or draw(st.integers(0, 5)) == 0:
        return draw(JUNK)
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        return {"k": draw(field_values(kind.fields_by_name["value"], depth + 1))}
    if kind is not None:
        one = messages(kind, depth + 1)
    elif field.enum_type is not None:
        one = st.sampled_from([v.name for v in field.enum_type.values])
    elif field.type == FieldDescriptor.TYPE_BOOL:
        one = st.booleans()
    elif field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
        one = st.sampled_from([*NAMES, "YQ==", "10.0.0.1"])
    else:
        one = st.integers(0, 70000)
    return draw(st.lists(one, max_size=2)) if field.is_repeated else draw(one)


@st.composite
def changes(draw: st.DrawFn) -> dict[str, Any]:
    """A patch that takes nothing away."""
    kind = draw(st.sampled_from(sorted(EFFECTIVE, key=int)))
    able = EFFECTIVE[kind] - {Operation.REMOVE}
    operation = draw(st.sampled_from(sorted(able, key=int)))
    match: dict[str, Any] = {}
    if kind is ApplyTo.HTTP_FILTER and draw(st.booleans()):
        match = {"listener": in_http_filter("envoy.filters.http.router")}
    elif kind is ApplyTo.NETWORK_FILTER and draw(st.booleans()):
        match = {"listener": in_filter(HCM)}
    value = draw(messages(MESSAGES[kind].DESCRIPTOR))
    return {
        "applyTo": kind.name,
        "match": match,
        "patch": {"operation": operation.name, "value": value if isinstance(value, dict) else {"value": value}},
    }


@cache
def plain_names(router: bool) -> dict[str, list[str]]:
    shop = Shop(proxy=EDGE if router else API)
    return {
        CLUSTER: shop.names(CLUSTER),
        LISTENER: shop.names(LISTENER),
        ROUTE: [t for t in TABLES if has_table(shop, t)],
    }


def has_table(shop: Shop, name: str) -> bool:
    return shop.resource(ROUTE, name) is not None


@given(st.lists(changes(), min_size=1, max_size=3), st.booleans())
@settings(
    max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
def test_no_patch_costs_its_resource(patches: list[dict[str, Any]], router: bool) -> None:
    kinds: dict[str, type[Message]] = {CLUSTER: Cluster, LISTENER: Listener, ROUTE: RouteConfiguration}
    namespace = "istio-system" if router else "shop"
    text = envoy_filter(*patches, namespace=namespace)
    try:
        configs(text)
    except ConfigError:
        return  # It is refused where it is read.
    with capture_logs() as entries:
        shop = Shop(text, proxy=EDGE if router else API)
        for type_url, expected in plain_names(router).items():
            for name in expected:
                found = shop.resource(type_url, name)
                assert found is not None, name
                # It can be decoded wherever it is put, as protobuf's limits on nesting allow.
                kinds[type_url].FromString(found.body)
        problems = shop.problems
    assert [e for e in entries if e["log_level"] == "error"] == []
    assert all(str(p.config) == f"EnvoyFilter/{namespace}/f" and 0 <= p.patch < len(patches) for p in problems)
