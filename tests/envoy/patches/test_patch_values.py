"""Values of patches: JSON as people write it becomes Envoy messages, or its error is reported."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from envoy.config.listener.v3.listener_pb2 import Listener
from envoy.extensions.filters.http.lua.v3.lua_pb2 import Lua
from envoy.extensions.filters.http.router.v3.router_pb2 import Router
from xds.type.v3.typed_struct_pb2 import TypedStruct

from mesh_pilot.model.config import ConfigError, Severity
from tests.support.patching import LUA, ROUTER, envoy_filter, parse, patch
from tests.support.worlds import configs

ANY_CLUSTER = {"connect_timeout": "3s"}


def value_of(*patches: dict[str, Any]) -> Any:
    found = parse(*patches)
    assert not found.problems
    return found.patches[0].value


def reason_of(bad: dict[str, Any]) -> str:
    """The problem of an invalid patch, next to a valid one that stays."""
    found = parse(patch("CLUSTER", "MERGE", ANY_CLUSTER), bad)
    assert [p.index for p in found.patches] == [0]
    (problem,) = found.problems
    assert problem.patch == 1
    assert problem.severity is Severity.ERROR
    assert str(problem).startswith("EnvoyFilter/shop/f: spec.configPatches[1]: ")
    return problem.reason


def test_fields_may_be_written_in_either_case_and_numbers_as_numbers() -> None:
    cluster = value_of(patch("CLUSTER", "MERGE", "{connectTimeout: 0.25s, max_requests_per_connection: 3, type: EDS}"))
    assert cluster.connect_timeout.nanos == 250_000_000
    assert cluster.max_requests_per_connection.value == 3
    assert cluster.type == 3


def test_the_type_of_an_extension_is_found_by_its_name() -> None:
    value = value_of(patch("HTTP_FILTER", "ADD", {"name": "lua", "typed_config": {"@type": LUA, "inlineCode": "x"}}))
    assert Lua.FromString(value.typed_config.value).inline_code == "x"


@pytest.mark.parametrize("wrapper", ["udpa.type.v1.TypedStruct", "xds.type.v3.TypedStruct"])
def test_a_typed_struct_of_a_known_type_becomes_that_type(wrapper: str) -> None:
    config = {"@type": f"type.googleapis.com/{wrapper}", "type_url": LUA, "value": {"inline_code": "x"}}
    value = value_of(patch("HTTP_FILTER", "ADD", {"name": "lua", "typed_config": config}))
    assert value.typed_config.type_url == LUA
    assert Lua.FromString(value.typed_config.value).inline_code == "x"


def test_a_typed_struct_of_an_unknown_type_stays_as_it_is() -> None:
    config = {"@type": "type.googleapis.com/xds.type.v3.TypedStruct", "type_url": "acme/acme.Own", "value": {"a": [1]}}
    value = value_of(patch("HTTP_FILTER", "ADD", {"name": "own", "typed_config": config}))
    struct = TypedStruct.FromString(value.typed_config.value)
    assert struct.type_url == "acme/acme.Own"
    assert struct.value["a"][0] == 1


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"connect_timeout": "soon"}, "connect_timeout"),
        ({"type": "SOMETHING"}, "SOMETHING"),
        ({"per_connection_buffer_limit_bytes": -1}, "per_connection_buffer_limit_bytes"),
        ({"health_checks": {}}, "must be in []"),
        ({"connect_timeout": "1d"}, "connect_timeout: '1d' is not a duration"),
        ({"connect_timeout": 5}, "connect_timeout"),
        *(
            (
                {"metadata": {"typed_filter_metadata": {"a": {"@type": odd}}}},
                "typed_filter_metadata[a].@type: has to be",
            )
            for odd in ({}, {"a": 1}, [], ["x/envoy.config.core.v3.Node"], 7, 0.5, True, None, "")
        ),
        ({"metadata": {"typed_filter_metadata": {"a": {"value": "x"}}}}, "typed_filter_metadata[a].@type: has to be"),
        ({"metadata": {"typed_filter_metadata": {"a": {"@type": "x/acme.v1.Own"}}}}, "x/acme.v1.Own: no such type"),
        ({"metadata": {"typed_filter_metadata": {"a": {"@type": "x/envoy.nowhere.v3.Own"}}}}, "no such type is known"),
    ],
)
def test_a_value_that_is_not_such_a_message_is_refused(value: dict[str, Any], reason: str) -> None:
    assert reason in reason_of(patch("CLUSTER", "MERGE", value))


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("500ms", 500_000_000),
        ("1m30s", 90_000_000_000),
        ("1.5h", 5_400_000_000_000),
        ("100us", 100_000),
        ("0.25s", 250_000_000),
        ("1.000000001s", 1_000_000_001),
        ("3s", 3_000_000_000),
        ("0s", 0),
    ],
)
def test_durations_may_be_written_as_in_go(text: str, nanoseconds: int) -> None:
    cluster = value_of(patch("CLUSTER", "MERGE", {"dns_jitter": text}))
    assert cluster.dns_jitter.ToNanoseconds() == nanoseconds


def test_durations_inside_a_typed_config_in_lists_and_in_maps_may_be_written_as_in_go() -> None:
    router = {"@type": ROUTER, "upstream_log_options": {"upstream_log_flush_interval": "500ms"}}
    value = value_of(patch("HTTP_FILTER", "ADD", {"name": "r", "typed_config": router}))
    assert (
        Router.FromString(value.typed_config.value).upstream_log_options.upstream_log_flush_interval.nanos
        == 500_000_000
    )
    thresholds = {"unhealthy_threshold": 1, "healthy_threshold": 1}
    checks = [{"timeout": "1m", "interval": "250ms", "tcp_health_check": {}, **thresholds}]
    (check,) = value_of(patch("CLUSTER", "MERGE", {"health_checks": checks})).health_checks
    assert (check.timeout.seconds, check.interval.nanos) == (60, 250_000_000)


def test_a_value_in_free_form_data_may_look_like_a_type_or_a_duration() -> None:
    value = {"metadata": {"filter_metadata": {"acme": {"@type": {}, "timeout": "500ms", "x": {"@type": "acme.Own"}}}}}
    acme = value_of(patch("CLUSTER", "MERGE", value)).metadata.filter_metadata["acme"]
    assert acme["timeout"] == "500ms" and acme["x"]["@type"] == "acme.Own"


def nested(levels: int, *, lists: bool = False) -> Any:
    value: Any = "deep"
    for _ in range(levels):
        value = [value] if lists else {"a": value}
    return value


@pytest.mark.parametrize("lists", [False, True])
@pytest.mark.parametrize("levels", [25, 35, 60, 90])
def test_a_deeply_nested_value_is_refused_where_envoy_could_not_read_it(levels: int, lists: bool) -> None:
    found = parse(
        patch("CLUSTER", "MERGE", {"metadata": {"filter_metadata": {"a": {"b": nested(levels, lists=lists)}}}})
    )
    for parsed in found.patches:
        around = Listener(metadata=parsed.message.metadata)  # type: ignore[attr-defined]
        assert Listener.FromString(around.SerializeToString()) == around
    assert [p.severity for p in found.problems] == [Severity.ERROR] * (1 - len(found.patches))
    assert bool(found.patches) == (levels < (40 if lists else 28))


def test_a_typed_config_inside_another_counts_from_its_own_type() -> None:
    inner = {"@type": LUA, "inline_code": "x"}
    for _ in range(3):
        rule = {"and_rules": {"rules": [{"matcher": {"name": "m", "typed_config": inner}}]}}
        rbac = {"rules": {"policies": {"p": {"permissions": [rule], "principals": [{"any": True}]}}}}
        inner = {"@type": "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC", **rbac}
    value_of(patch("HTTP_FILTER", "ADD", {"name": "rbac", "typed_config": inner}))


@pytest.mark.parametrize("levels", [300, 5000])
def test_a_value_nested_hundreds_deep_is_refused_where_it_is_read(levels: int) -> None:
    deep = '{"a": ' * levels + "1" + "}" * levels
    text = envoy_filter(patch("CLUSTER", "MERGE", {"metadata": "DEEP"})).replace("DEEP", deep)
    with pytest.raises(ConfigError, match="nested too deeply"):
        configs(text)


def test_a_field_that_is_unknown_is_named_and_the_rest_is_applied() -> None:
    found = parse(patch("CLUSTER", "MERGE", {**ANY_CLUSTER, "hosts": [{"address": "a"}]}))
    assert [p.message.connect_timeout.seconds for p in found.patches] == [3]  # type: ignore[attr-defined]
    (problem,) = found.problems
    assert problem.severity is Severity.WARNING
    assert "hosts (there is none in envoy.config.cluster.v3.Cluster)" in problem.reason
    assert "the rest of it is applied" in problem.reason


def test_every_field_that_is_unknown_is_named_with_its_path() -> None:
    value = {
        "name": "a",
        "typedConfig": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.fault.v3.HTTPFault",
            "abort": {"http_status": 503, "grpc": 1},
            "headers": [{"name": "x"}, {"name": "y", "odd": 1}],
        },
    }
    found = parse(patch("HTTP_FILTER", "ADD", value))
    paths = [word for word in found.problems[0].reason.split() if word.startswith("typedConfig")]
    assert paths == ["typedConfig.abort.grpc", "typedConfig.headers[1].odd"]
    assert found.patches[0].message.name == "a"  # type: ignore[attr-defined]


def test_keys_of_maps_and_of_free_form_data_are_not_fields() -> None:
    value = """
    metadata: {filter_metadata: {acme: {anything: [1, {at: all}]}}}
    typed_extension_protocol_options:
      acme:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http_protocol_options: {}}
    """
    cluster = value_of(patch("CLUSTER", "MERGE", value))
    assert cluster.metadata.filter_metadata["acme"]["anything"][1]["at"] == "all"


def test_a_field_that_is_unknown_inside_a_typed_struct_is_named_too() -> None:
    config = {"@type": "type.googleapis.com/xds.type.v3.TypedStruct", "type_url": ROUTER, "value": {"nonsense": 1}}
    (problem,) = parse(patch("HTTP_FILTER", "ADD", {"name": "r", "typed_config": config})).problems
    assert "nonsense" in problem.reason


def test_naming_a_type_loads_nothing_but_envoys_api() -> None:
    assert "no such type" in reason_of(
        patch("CLUSTER", "MERGE", {"metadata": {"typed_filter_metadata": {"a": {"@type": "x/this.that.Own"}}}})
    )
    assert "this" not in sys.modules


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (patch("ROUTE_CONFIGURATION", "ADD", {"name": "a"}), "ADD has no meaning for ROUTE_CONFIGURATION"),
        (patch("EXTENSION_CONFIG", "MERGE", {"name": "a"}), "MERGE has no meaning for EXTENSION_CONFIG"),
        (patch("HTTP_ROUTE", "REPLACE", {"name": "a"}), "REPLACE has no meaning for HTTP_ROUTE"),
        (patch("BOOTSTRAP", "ADD", {}), "ADD has no meaning for BOOTSTRAP"),
        (patch("BOOTSTRAP", "MERGE", {"admin": {}}), "patch.value.admin cannot be patched"),
        (patch("BOOTSTRAP", "MERGE", {"node": {"id": "x"}}), "patch.value.node cannot be patched"),
        (patch("BOOTSTRAP", "MERGE", {"static_resources": {"clusters": [{}]}}), "static_resources.clusters[0].name"),
        (patch("CLUSTER", "ADD", {"type": "STATIC"}), "patch.value.name is missing"),
        (patch("LISTENER", "INSERT_FIRST", {}), "patch.value.name is missing"),
        (patch("HTTP_FILTER", "REMOVE"), "names no filter: REMOVE"),
        (patch("NETWORK_FILTER", "REPLACE", {"name": "a"}, listener={"portNumber": 1}), "names no filter: REPLACE"),
    ],
)
def test_a_patch_that_can_never_do_anything_is_refused(bad: dict[str, Any], reason: str) -> None:
    assert reason in reason_of(bad)


def test_a_patch_for_waypoints_is_only_a_warning() -> None:
    found = parse(patch("CLUSTER", "MERGE", {}, context="WAYPOINT"))
    assert found.patches == ()
    (problem,) = found.problems
    assert problem.severity is Severity.WARNING and "waypoint" in problem.reason


def test_a_match_that_nobody_reads_is_named() -> None:
    found = parse(patch("LISTENER", "MERGE", {}, listener={"portName": "http"}))
    assert len(found.patches) == 1
    assert "portName has no effect" in found.problems[0].reason
