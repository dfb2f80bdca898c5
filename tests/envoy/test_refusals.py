"""Reasons why Envoy refuses a message: constraints that its API declares, and those that are only in its code."""

from __future__ import annotations

import importlib
import pkgutil
import time
from collections.abc import Iterator
from typing import Any

import envoy
import pytest
import udpa
import xds
from google.protobuf import json_format, message_factory
from google.protobuf.descriptor import Descriptor
from validate import validate_pb2

from mesh_pilot.envoy.catalog.catalog import WorldCatalog
from mesh_pilot.envoy.core.protobuf import find_type
from mesh_pilot.envoy.refusals.check import refusals
from mesh_pilot.envoy.refusals.declared import rules_of
from mesh_pilot.model.resource import CLUSTER, LISTENER
from tests.support import golden

UNDERSTOOD = {
    "any": {"required"},
    "bool": {"const"},
    "bytes": {"min_len", "max_len"},
    "duration": {"required", "lt", "lte", "gt", "gte"},
    "enum": {"defined_only", "not_in"},
    "map": {"min_pairs", "keys", "values"},
    "repeated": {"min_items", "max_items", "unique", "items"},
    "string": {
        "min_len", "max_len", "min_bytes", "max_bytes", "pattern", "prefix", "suffix", "in", "well_known_regex",
        "strict", "ignore_empty",
    },
    **{kind: {"lt", "lte", "gt", "gte"} for kind in ("double", "float", "int32", "int64", "uint32", "uint64")},
}  # fmt: skip

CONFIG = "envoy.config"
CORE = f"{CONFIG}.core.v3"
ROUTE = f"{CONFIG}.route.v3"
TLS = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3"


def message_of(kind: str, value: dict[str, Any]) -> Any:
    descriptor = find_type(kind)
    assert descriptor is not None, kind
    return json_format.ParseDict(value, message_factory.GetMessageClass(descriptor)())


def messages() -> Iterator[Descriptor]:
    """Every message type of Envoy's API."""
    for package in (envoy, udpa, xds):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if module.name.endswith("_pb2"):
                waiting = list(importlib.import_module(module.name).DESCRIPTOR.message_types_by_name.values())
                while waiting:
                    kind = waiting.pop()
                    waiting += kind.nested_types
                    yield kind


def rules_in(declared: Any) -> Iterator[tuple[str, str]]:
    kind = declared.WhichOneof("type")
    if kind is None:
        return
    for field, value in getattr(declared, kind).ListFields():
        yield kind, field.name
        if field.name in ("items", "keys", "values"):
            yield from rules_in(value)


def test_every_constraint_in_envoys_api_is_of_a_form_that_is_checked() -> None:
    found = {
        rule
        for kind in messages()
        for field in kind.fields
        for rule in rules_in(field.GetOptions().Extensions[validate_pb2.rules])
        if not kind.full_name.startswith("envoy.api.v2")
    }
    assert {(kind, name) for kind, name in found if name not in UNDERSTOOD[kind]} == set()
    assert ("string", "min_len") in found


def test_the_rules_of_every_type_can_be_read() -> None:
    assert sum(bool(rules_of(kind.full_name).by_number) for kind in messages()) > 1000


@pytest.mark.parametrize(
    ("kind", "value", "found"),
    [
        (f"{CORE}.HeaderValue", {"key": "a"}, []),
        (f"{CORE}.HeaderValue", {}, ["key: is missing"]),
        (f"{CORE}.HeaderValue", {"key": "a\nb"}, ["key: 'a\\nb' is not text without NUL and line breaks"]),
        (f"{CORE}.Pipe", {"path": "/a", "mode": 512}, ["mode: has to be at most 511"]),
        (f"{ROUTE}.RetryPolicy.RetryBackOff", {}, ["base_interval: is missing"]),
        (f"{ROUTE}.RetryPolicy.RetryBackOff", {"base_interval": "0s"}, ["base_interval: has to be greater than 0s"]),
        (f"{ROUTE}.RouteAction", {"cluster": ""}, ["cluster: has to be at least 1 characters long"]),
        (f"{ROUTE}.RouteAction", {"cluster": "a", "timeout": "-1s"}, ["timeout: a duration can't be negative"]),
        (
            f"{ROUTE}.RouteAction",
            {"cluster": "a", "timeout": "9223372037s"},
            ["timeout: a duration has to be less than 9223372036s"],
        ),
        (f"{ROUTE}.DirectResponseAction", {"status": 99}, ["status: has to be at least 200"]),
        (f"{ROUTE}.HedgePolicy", {"initial_requests": 0}, ["initial_requests: has to be at least 1"]),
        (f"{ROUTE}.InternalRedirectPolicy", {"response_headers_to_copy": ["a", "a"]}, [
            "response_headers_to_copy: has an entry twice"
        ]),
        (f"{ROUTE}.VirtualHost", {"name": "a", "domains": []}, ["domains: has to have at least 1 entries"]),
        (f"{ROUTE}.Route", {"match": {"prefix": "/"}}, [
            "action: is missing; it is one of route, redirect, direct_response, filter_action, non_forwarding_action"
        ]),
        ("envoy.type.v3.Percent", {"value": 101}, ["value: has to be at most 100"]),
        ("envoy.type.v3.HttpStatus", {}, ["code: is missing"]),
        ("envoy.type.matcher.v3.StringMatcher", {}, [
            "match_pattern: is missing; it is one of exact, prefix, suffix, safe_regex, contains, custom"
        ]),
        (f"{CORE}.Metadata", {"filter_metadata": {"": {}}}, [
            "filter_metadata[]: has to be at least 1 characters long"
        ]),
        (f"{CORE}.TransportSocket", {"name": "tls", "typed_config": {}}, ["typed_config: @type is missing"]),
        (
            f"{CORE}.TransportSocket",
            {"name": "tls", "typed_config": {"@type": f"{TLS}.UpstreamTlsContext", "sni": "a" * 256}},
            ["typed_config.sni: has to be at most 255 bytes long"],
        ),
        (f"{CORE}.CidrRange", {"address_prefix": "10.0.0.300"}, ["address_prefix: '10.0.0.300' is not an IP address"]),
    ],
)  # fmt: skip
def test_a_violated_constraint_is_named_with_its_path(kind: str, value: dict[str, Any], found: list[str]) -> None:
    assert list(refusals(message_of(kind, value))) == found


def test_a_typed_struct_is_checked_as_the_type_that_it_stands_for() -> None:
    lua = "type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer"
    struct = {"@type": "type.googleapis.com/xds.type.v3.TypedStruct", "type_url": lua, "value": {}}
    kind = "envoy.extensions.filters.network.http_connection_manager.v3.HttpFilter"
    of = {"name": "a", "typed_config": struct}
    assert list(refusals(message_of(kind, of))) == ["typed_config.value.max_request_bytes: is missing"]
    struct["value"] = {"@type": {}, "max_request_bytes": "many"}
    (reason,) = refusals(message_of(kind, of))
    assert reason.startswith("typed_config: the value is not of type envoy.extensions.filters.http.buffer.v3.Buffer: ")
    struct |= {"type_url": "type.googleapis.com/acme.Own"}
    assert list(refusals(message_of(kind, of))) == []
    struct |= {"type_url": "no type"}
    assert list(refusals(message_of(kind, of))) == ["typed_config.type_url: 'no type' is not the URL of a type"]


def test_a_part_of_a_message_lacks_nothing_but_its_lists_and_maps_are_complete() -> None:
    part = {"routes": [{"match": {}}], "retry_policy": {"retry_back_off": {"max_interval": "3s"}}}
    assert [reason.partition(":")[0] for reason in refusals(message_of(f"{ROUTE}.VirtualHost", part), partly=True)] == [
        "routes[0].action",
        "routes[0].match.path_specifier",
    ]


def test_nothing_that_translators_make_is_refused() -> None:
    checked = 0
    for scenario in golden.scenarios():
        catalog = WorldCatalog(golden.load(scenario))
        for entry in golden.proxies(scenario):
            resources = catalog.open(golden.proxy_of(entry))
            for type_url in (CLUSTER, LISTENER):
                found = resources.set(type_url)
                for resource in found.snapshot().entries.values() if found is not None else ():
                    kind = find_type(type_url)
                    assert kind is not None
                    message = message_factory.GetMessageClass(kind).FromString(resource.body)
                    assert list(refusals(message)) == [], f"{scenario}: {resource.name}"
                    checked += 1
    assert checked > 1000


def test_hostile_sizes_take_linear_time() -> None:
    chains = [{"filter_chain_match": {"server_names": [f"{i}.example" for i in range(1000)]}} for _ in range(20)]
    listener = {"name": "a", "address": {"pipe": {"path": "/a"}}, "filter_chains": chains}
    hosts = [{"name": "a", "domains": [f"{i}.{j}.example" for j in range(1000)]} for i in range(50)]
    many = {"source_ports": list(range(1, 3000)), "server_names": [f"{i}.example" for i in range(3000)]}
    started = time.process_time()
    assert len(list(refusals(message_of(f"{CONFIG}.listener.v3.Listener", listener)))) == 19
    assert not list(refusals(message_of(f"{ROUTE}.RouteConfiguration", {"virtual_hosts": hosts})))
    assert not list(refusals(message_of(f"{CONFIG}.listener.v3.FilterChainMatch", many)))
    listener["filter_chains"] = [{"filter_chain_match": many}]
    assert not list(refusals(message_of(f"{CONFIG}.listener.v3.Listener", listener)))
    cluster = {"name": "a", "lb_policy": "MAGLEV", "maglev_lb_config": {"table_size": 2**63}}
    assert len(list(refusals(message_of(f"{CONFIG}.cluster.v3.Cluster", cluster)))) == 1
    assert time.process_time() - started < 5
