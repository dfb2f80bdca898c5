"""Patches that name what nothing serves: one of each place in Envoy's API where a name makes it wait."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.support.patching import HCM, LUA, ROUTER, envoy_filter, in_filter, in_http_filter, patch

Json = dict[str, Any]

TYPE = "type.googleapis.com/envoy.extensions"
MANAGER = f"{TYPE}.filters.network.http_connection_manager.v3.HttpConnectionManager"
WASM = f"{TYPE}.filters.http.wasm.v3.Wasm"
RBAC = f"{TYPE}.filters.network.rbac.v3.RBAC"
TLS = f"{TYPE}.transport_sockets.tls.v3"
FOREVER = {"ads": {}, "initial_fetch_timeout": "0s"}
SOON = {"ads": {}, "initial_fetch_timeout": "5s"}
OTHER = {"api_config_source": {"api_type": "GRPC", "grpc_services": [{"envoy_grpc": {"cluster_name": "xds-grpc"}}]}}
CODEC = {"name": "codec", "typed_config": {"@type": f"{TYPE}.filters.http.upstream_codec.v3.UpstreamCodec"}}
TO_ROUTER = in_http_filter("envoy.filters.http.router")


def manager(value: Json) -> Json:
    return patch(
        "NETWORK_FILTER", "MERGE", {"typed_config": {"@type": MANAGER, **value}}, context="GATEWAY",
        listener=in_filter(HCM),
    )  # fmt: skip


def discovered(source: Json, kind: str = WASM, name: str = "none", **more: Any) -> Json:
    return {"name": name, "config_discovery": {"config_source": source, "type_urls": [kind], **more}}


def http(value: Json) -> Json:
    return patch("HTTP_FILTER", "INSERT_BEFORE", value, context="GATEWAY", listener=TO_ROUTER)


def secret(name: str, source: Json = FOREVER) -> Json:
    return {"name": name, "sds_config": source}


def chain(value: Json) -> Json:
    direct = {"@type": f"{TYPE}.filters.network.direct_response.v3.Config"}
    filters = [{"name": "d", "typed_config": direct}]
    return patch(
        "FILTER_CHAIN", "ADD",
        {"name": "c", "filter_chain_match": {"server_names": ["c.test"]}, "filters": filters, **value},
        context="GATEWAY",
    )  # fmt: skip


def socket(**common: Any) -> Json:
    config = {"@type": f"{TLS}.DownstreamTlsContext", "common_tls_context": common}
    return {"transport_socket": {"name": "envoy.transport_sockets.tls", "typed_config": config}}


def cluster(operation: str, value: Json) -> Json:
    match = {"cluster": {"name": "outbound|80||api.shop.svc.cluster.local"}} if operation == "MERGE" else {}
    return patch("CLUSTER", operation, value, context="GATEWAY", **match)


def upstream(name: str) -> Json:
    config = {
        "@type": f"{TLS}.UpstreamTlsContext",
        "common_tls_context": {"validation_context_sds_secret_config": secret(name)},
    }
    return {"transport_socket": {"name": "envoy.transport_sockets.tls", "typed_config": config}}


def listener(filters: list[Json]) -> Json:
    address = {"socket_address": {"address": "127.0.0.1", "port_value": 9999}}
    return patch(
        "LISTENER",
        "ADD",
        {"name": "own", "address": address, "filter_chains": [{"filters": filters}]},
        context="GATEWAY",
    )


def own_manager(value: Json) -> Json:
    filters = [{"name": "router", "typed_config": {"@type": ROUTER}}]
    return {"name": HCM, "typed_config": {"@type": MANAGER, "stat_prefix": "own", "http_filters": filters, **value}}


def oauth(name: str, source: Json = FOREVER) -> Json:
    config = {
        "token_endpoint": {"cluster": "none", "uri": "https://a.test/token", "timeout": "3s"},
        "authorization_endpoint": "https://a.test/auth",
        "redirect_uri": "https://b.test/callback",
        "redirect_path_matcher": {"path": {"exact": "/callback"}},
        "signout_path": {"path": {"exact": "/signout"}},
        "credentials": {"client_id": "a", "token_secret": secret(name, source), "hmac_secret": secret(name, source)},
        "auth_scopes": ["user"],
    }  # fmt: skip
    return {"name": "oauth2", "typed_config": {"@type": f"{TYPE}.filters.http.oauth2.v3.OAuth2", "config": config}}


SCOPED = {
    "name": "s",
    "scope_key_builder": {
        "fragments": [{"header_value_extractor": {"name": "x", "element_separator": ";", "index": 0}}]
    },
}
KEY = {"fragments": [{"string_key": "a"}]}
BRANCHING = {"name": "c", "typed_config": {"@type": f"{TYPE}.filters.http.composite.v3.Composite"}}


def matcher(extension: str) -> Json:
    """Requests with a header go through an extension."""
    action = {
        "@type": f"{TYPE}.filters.http.composite.v3.ExecuteFilterAction",
        "dynamic_config": discovered(FOREVER, LUA, extension),
    }
    header = "type.googleapis.com/envoy.type.matcher.v3.HttpRequestHeaderMatchInput"
    predicate = {
        "input": {"name": "h", "typed_config": {"@type": header, "header_name": "x"}},
        "value_match": {"exact": "y"},
    }
    one = {
        "predicate": {"single_predicate": predicate},
        "on_match": {"action": {"name": "a", "typed_config": action}},
    }
    return {"matcher_list": {"matchers": [one]}}


DANGLING: dict[str, tuple[Json, ...]] = {
    "a route table": (manager({"rds": {"route_config_name": "none"}}),),
    "a route table, not forever": (manager({"rds": {"route_config_name": "none", "config_source": SOON}}),),
    "a list of scoped routes": (
        manager({"scoped_routes": {
            **SCOPED, "rds_config_source": FOREVER, "scoped_rds": {"scoped_rds_config_source": FOREVER}}}),
    ),
    "a route table of a scope": (
        manager({"scoped_routes": {**SCOPED, "rds_config_source": FOREVER, "scoped_route_configurations_list": {
            "scoped_route_configurations": [{"name": "a", "route_configuration_name": "none", "key": KEY}]}}}),
    ),
    "an extension of requests": (http(discovered(FOREVER)),),
    "an extension, not forever": (http(discovered(SOON)),),
    "an extension with a default, forever": (http(discovered(FOREVER, default_config={"@type": WASM})),),
    "an extension of connections": (
        patch("NETWORK_FILTER", "INSERT_FIRST", discovered(FOREVER, RBAC), context="GATEWAY", listener=in_filter(HCM)),
    ),
    "an extension of a listener": (
        patch("LISTENER_FILTER", "INSERT_FIRST",
              discovered(FOREVER, f"{TYPE}.filters.listener.tls_inspector.v3.TlsInspector"), context="GATEWAY"),
    ),
    "an extension of another type": (
        http(discovered(FOREVER)), patch("EXTENSION_CONFIG", "ADD", {"name": "none", "typed_config": {"@type": LUA}}),
    ),
    "an extension of a composite filter": (
        http({"name": "c", "typed_config": {
            "@type": f"{TYPE}.common.matching.v3.ExtensionWithMatcher", "xds_matcher": matcher("none"),
            "extension_config": BRANCHING}}),
    ),
    "an extension of the router": (
        patch("HTTP_FILTER", "MERGE",
              {"typed_config": {"@type": ROUTER, "upstream_http_filters": [discovered(FOREVER, LUA), CODEC]}},
              context="GATEWAY", listener=TO_ROUTER),
    ),
    "an extension whose config is refused": (
        http(discovered(FOREVER)),
        patch("EXTENSION_CONFIG", "ADD", {"name": "none", "typed_config": {"@type": WASM, "config": {"vm_config": {
            "runtime": "envoy.wasm.runtime.v8", "code": {"remote": {"http_uri": {"uri": "http://a.test/m.wasm",
            "cluster": "none", "timeout": "10s"}}}}}}}),
    ),
    "an extension that names another": (
        http(discovered(FOREVER, f"{TYPE}.common.matching.v3.ExtensionWithMatcher")),
        patch("EXTENSION_CONFIG", "ADD", {"name": "none", "typed_config": {
            "@type": f"{TYPE}.common.matching.v3.ExtensionWithMatcher",
            "xds_matcher": matcher("deep"),
            "extension_config": BRANCHING}}),
    ),
    "a certificate": (chain(socket(tls_certificate_sds_secret_configs=[secret("none")])),),
    "roots": (
        chain(socket(tls_certificates=[{"certificate_chain": {"filename": "/c"}, "private_key": {"filename": "/k"}}],
                     validation_context_sds_secret_config=secret("none"))),
    ),
    "a secret of a filter": (http(oauth("none")),),
    "roots of a cluster": (cluster("MERGE", upstream("none")),),
    "endpoints of an added cluster": (
        cluster("ADD", {
            "name": "none", "type": "EDS", "connect_timeout": "1s", "eds_cluster_config": {"eds_config": FOREVER}}),
    ),
    "endpoints of a changed cluster": (
        cluster("MERGE", {"eds_cluster_config": {"service_name": "outbound|80||none.test"}}),
    ),
    "a route table of an added listener": (
        listener([own_manager({"rds": {"route_config_name": "none", "config_source": FOREVER}})]),
    ),
    "an extension in a TypedStruct": (
        http({"name": "w", "typed_config": {
            "@type": "type.googleapis.com/xds.type.v3.TypedStruct", "type_url": f"{TYPE}.filters.http.oauth2.v3.OAuth2",
            "value": {k: v for k, v in oauth("none")["typed_config"].items() if k != "@type"}}}),
    ),
}  # fmt: skip


CONTEXTS = ("ANY", "GATEWAY", "SIDECAR_INBOUND", "SIDECAR_OUTBOUND")
FLAT = [one for patches in DANGLING.values() for one in patches]


@st.composite
def envoy_filters(draw: st.DrawFn, namespace: str = "istio-system") -> str:
    """Patches with references of every sort, dangling and not, in all contexts and with other operations."""
    chosen = draw(st.lists(st.sampled_from(FLAT), min_size=1, max_size=4))
    patches = []
    for one in chosen:
        operations = {"ADD", "MERGE", "INSERT_FIRST", "INSERT_BEFORE", "REPLACE", "MERGE_AND_REPLACE_LIST"}
        change = {**one["patch"], "operation": draw(st.sampled_from([one["patch"]["operation"], *sorted(operations)]))}
        match = {**one.get("match", {}), "context": draw(st.sampled_from(CONTEXTS))}
        if draw(st.booleans()):
            match.pop("cluster", None)
        patches.append({**one, "patch": change, "match": match})
    return envoy_filter(*patches, namespace=namespace, name="random", day=draw(st.integers(1, 28)))
