"""A patch never makes an Envoy wait for what nothing serves: it is left out, and the reason is told at its object."""

from __future__ import annotations

from typing import Any

import pytest
from envoy.config.core.v3.config_source_pb2 import ConfigSource
from envoy.config.core.v3.extension_pb2 import TypedExtensionConfig
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mesh_pilot.envoy.catalog.catalog import WorldCatalog
from mesh_pilot.envoy.envoy_filter.parse import parse_filter
from mesh_pilot.model.config import Severity
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.resource import CLUSTER, EXTENSION, LISTENER
from tests.support import golden
from tests.support.dangling import dangling
from tests.support.dangling_patches import (
    DANGLING,
    FOREVER,
    OTHER,
    SOON,
    TYPE,
    WASM,
    Json,
    chain,
    cluster,
    discovered,
    envoy_filters,
    http,
    manager,
    oauth,
    secret,
    socket,
    upstream,
)
from tests.support.patching import (
    API,
    EDGE,
    HCM,
    LUA,
    Shop,
    envoy_filter,
    in_filter,
    managers,
    parse,
    patch,
)
from tests.support.sample import examples
from tests.support.worlds import configs, update


@pytest.mark.parametrize("what", DANGLING)
def test_a_patch_that_names_what_nothing_serves_is_left_out_and_named(what: str) -> None:
    """Even a harmless patch next to it is applied."""
    marker = manager({"server_name": "marked"})
    shop = Shop(envoy_filter(*DANGLING[what], marker, namespace="istio-system"), proxy=EDGE)
    assert dangling(shop.resources) == {}
    assert shop.problems
    assert {str(problem.config) for problem in shop.problems} == {"EnvoyFilter/istio-system/f"}
    assert any("none" in p.reason or "deep" in p.reason or "scoped" in p.reason for p in shop.problems)
    assert len(DANGLING[what]) not in {problem.patch for problem in shop.problems}
    assert {m.server_name for name in shop.names(LISTENER) for m in managers(shop.listener(name))} == {"marked"}
    plain = Shop(proxy=EDGE)
    assert [shop.names(LISTENER), shop.names(CLUSTER)] == [plain.names(LISTENER), plain.names(CLUSTER)]


def test_the_reason_names_the_patch_whose_config_was_refused() -> None:
    shop = Shop(envoy_filter(*DANGLING["an extension whose config is refused"], namespace="istio-system"), proxy=EDGE)
    reasons = {problem.patch: problem.reason for problem in shop.problems}
    assert "sha256" in reasons[1]
    assert "the extension config none, which this proxy is never sent" in reasons[0]
    assert "spec.configPatches[1] of EnvoyFilter/istio-system/f, which adds it, cannot be applied" in reasons[0]


@pytest.mark.parametrize("kind", ["http", "network"])
@pytest.mark.parametrize(
    ("policy", "denies"), [("FAIL_CLOSED", True), ("FAIL_RELOAD", True), ("FAIL_OPEN", False), ("UNSPECIFIED", False)]
)
def test_a_module_that_is_to_fail_closed_denies_where_envoy_would_refuse_it(
    kind: str, policy: str, denies: bool
) -> None:
    wasm = f"{TYPE}.filters.{kind}.wasm.v3.Wasm"
    code = {"remote": {"http_uri": {"uri": "http://a.test/m.wasm", "cluster": "none", "timeout": "10s"}}}
    config = {"failure_policy": policy, "vm_config": {"runtime": "envoy.wasm.runtime.v8", "code": code}}
    added = {"name": "none", "typed_config": {"@type": wasm, "config": config}}
    named = discovered(FOREVER, wasm)
    insert = http(named) if kind == "http" else patch(
        "NETWORK_FILTER", "INSERT_FIRST", named, context="GATEWAY", listener=in_filter(HCM)
    )  # fmt: skip
    shop = Shop(envoy_filter(patch("EXTENSION_CONFIG", "ADD", added), insert, namespace="istio-system"), proxy=EDGE)
    problems = {problem.patch: problem.reason for problem in shop.problems}
    assert "sha256" in problems[0]
    assert ("is denied (failure_policy)" in problems[0]) is denies
    assert (1 in problems) is not denies
    assert dangling(shop.resources) == {}
    resource = shop.resource(EXTENSION, "none")
    assert (resource is not None) is denies
    if resource is not None:
        served = TypedExtensionConfig.FromString(resource.body)
        assert served.typed_config.type_url.endswith(f"filters.{kind}.rbac.v3.RBAC")
        assert (b"wasm-default-deny") in resource.body


def test_what_is_served_may_be_named() -> None:
    added = {"name": "fetched", "typed_config": {"@type": LUA}}
    eds = {"eds_config": FOREVER, "service_name": "outbound|80||api.shop.svc.cluster.local"}
    patches = (
        manager({"rds": {"route_config_name": "http.8081"}}),
        patch("EXTENSION_CONFIG", "ADD", added),
        http(discovered(FOREVER, LUA, "fetched")),
        http(discovered(SOON, name="late", default_config={"@type": WASM})),
        http(
            discovered(
                FOREVER, name="defaulted", default_config={"@type": WASM}, apply_default_config_without_warming=True
            )
        ),
        chain(socket(tls_certificate_sds_secret_configs=[secret("kubernetes://may-come")])),
        cluster("MERGE", upstream("ROOTCA")),
        cluster("ADD", {"name": "own", "type": "EDS", "connect_timeout": "1s", "eds_cluster_config": eds}),
        cluster("MERGE", upstream("file-root:/etc/roots.pem")),
    )
    shop = Shop(envoy_filter(*patches, namespace="istio-system"), proxy=EDGE)
    assert shop.problem_texts() == []
    assert "own" in shop.names(CLUSTER)


def test_the_mesh_identity_is_served_to_proxies_that_have_one_from_here() -> None:
    text = envoy_filter(cluster("MERGE", upstream("ROOTCA")), namespace="istio-system")
    stranger = Proxy(**{**_fields(EDGE), "identity": ""})
    (problem,) = Shop(text, proxy=stranger).problems
    assert "the secret ROOTCA, which this proxy is never sent" in problem.reason


def _fields(proxy: Proxy) -> Json:
    return {field.name: getattr(proxy, field.name) for field in proxy.__attrs_attrs__}  # type: ignore[attr-defined]


def test_a_patch_comes_into_force_when_what_it_names_is_served() -> None:
    shop = Shop(envoy_filter(http(discovered(FOREVER, LUA)), namespace="istio-system"), proxy=EDGE)
    assert shop.problems
    added = patch("EXTENSION_CONFIG", "ADD", {"name": "none", "typed_config": {"@type": LUA}})
    update(shop.world, envoy_filter(added, namespace="istio-system", name="later", day=2))
    assert shop.problems == ()
    assert "none" in shop.http_filters("0.0.0.0_8081")[0]


# -- what other servers send


@pytest.mark.parametrize("timeout", [{}, {"initial_fetch_timeout": "0s"}])
@pytest.mark.parametrize(
    "make",
    [
        lambda source: manager({"rds": {"route_config_name": "theirs", "config_source": source}}),
        lambda source: http(discovered(source)),
        lambda source: http(oauth("theirs", source)),
        lambda source: cluster("ADD", {"name": "own", "type": "EDS", "eds_cluster_config": {"eds_config": source}}),
    ],
)
def test_the_wait_for_another_server_is_limited_and_told(make: Any, timeout: Json) -> None:
    parsed = parse(make({**OTHER, **timeout}))
    assert len(parsed.patches) == 1
    (problem,) = [p for p in parsed.problems if "another server" in p.reason]
    assert problem.severity is Severity.WARNING
    assert "15 s" in problem.reason
    limited = str(parsed.patches[0].value) if timeout else ""
    assert ConfigSource.DESCRIPTOR.name and "seconds: 0" not in limited


def test_a_limit_that_the_patch_has_itself_is_its_own() -> None:
    source = {**OTHER, "initial_fetch_timeout": "3s"}
    parsed = parse(manager({"rds": {"route_config_name": "theirs", "config_source": source}}))
    assert parsed.problems == ()


def test_the_limit_counts_where_it_is_merged_into_a_wait_without_one() -> None:
    rds = {"route_config_name": "theirs", "config_source": OTHER}
    shop = Shop(envoy_filter(manager({"rds": rds}), namespace="istio-system"), proxy=EDGE)
    (found, *_) = managers(shop.listener("0.0.0.0_8081"))
    assert found.rds.config_source.initial_fetch_timeout.seconds == 15


# -- the property


@given(envoy_filters(), st.sampled_from(golden.scenarios()))
@settings(max_examples=examples(25), deadline=None, suppress_health_check=list(HealthCheck))
def test_no_proxy_of_any_mesh_is_made_to_wait_for_ever(text: str, scenario: str) -> None:
    world = golden.load(scenario)
    catalog = WorldCatalog(world)
    proxies = [golden.proxy_of(entry) for entry in golden.proxies(scenario) if not entry.get("grpc")]
    update(world, text)
    for proxy in proxies:
        assert dangling(catalog.open(proxy)) == {}
    assert all(str(config.key) == "EnvoyFilter/istio-system/random" for config in configs(text))
    assert parse_filter(configs(text)[0]) is not None


@pytest.mark.parametrize("proxy", [API, EDGE], ids=["sidecar", "gateway"])
def test_without_patches_nothing_dangles(proxy: Proxy) -> None:
    assert dangling(Shop(proxy=proxy).resources) == {}
