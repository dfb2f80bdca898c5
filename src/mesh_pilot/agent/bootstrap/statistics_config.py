"""Envoy's statistics: the tags in their names, which of them there are, and where they are sent.

Which statistics there are is as in Istio, because dashboards and alerts depend on it: those of Envoy itself and of the
connection to the control plane, and those that a ProxyConfig or an annotation names. Source: Istio's bootstrap.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mesh_pilot.agent.bootstrap.envoy_bootstrap import Json
from mesh_pilot.istio.meaning.durations import read_duration, write_duration

_WORDS = "assignment|bind|lb|load_report|max|membership|original_dst|retry_or|update|upstream|version|warming"
_OF_CLUSTERS = (
    rf"(?:{_WORDS})[_a-z0-9]*"
    r"|(?:client_ssl_socket_factory|default|ext_authz|health_check|http[123]|outlier_detection|ratelimit|ssl)\.[_a-z0-9]+"
    r"|ssl\.(?:ciphers|curves|sigalgs|versions)\.[\w.-]+"
    r"|circuit_breakers\.\w+\.\w+"
    r"|grpc\.[\w.]+\.(?:\d+|success|failure|total|\w+_count|upstream_rq_time)"
)
"""The statistics of a cluster after its name, which can contain dots."""

_GROUPS = r"canary|external|internal|zone\.[^.]+\.[^.]+"
_ADDRESS = r"(?:[_.[:digit:]]*|[_\[\]aAbBcCdDeEfF[:digit:]]*)"

TAGS: Mapping[str, str] = {
    # The name of a cluster ends with a semicolon if it was made for these tags, else before a statistic's first word.
    "cluster_name": r"^cluster\.((.+?)(?:;\.|\.(?="
    rf"(?:(?:{_GROUPS})\.)?(?:{_OF_CLUSTERS})$)))",
    "http_conn_manager_prefix": r"^http\.(((?:in|out)bound_.+?_\d+|[^.;]+);?\.)",
    "thread_name": r"^server(\.(.+))\.watchdog",
    "tcp_prefix": r"^tcp\.((.*?)\.)\w+?$",
    "response_code": r"_rq(_(\d{3}))$",
    "response_code_class": r"_rq(_(\dxx))$",
    "http_conn_manager_listener_prefix": rf"^listener(?=\.).*?\.http\.(({_ADDRESS})\.)",
    "listener_address": rf"^listener\.(({_ADDRESS})\.)",
    "mongo_prefix": r"^mongo\.(.+?)\.(collection|cmd|cx_|op_|delays_|decoding_)(.*?)$",
}
TAGS_AFTER: Mapping[str, str] = {
    "cache": r"(cache\.(.+?)\.)",
    "component": r"(component\.(.+?)\.)",
    "tag": r"(tag\.(.+?);\.)",
    "wasm_filter": r"(wasm_filter\.(.+?)\.)",
    "authz_enforce_result": r"rbac(\.(allowed|denied))",
    "authz_dry_run_action": r"(\.istio_dry_run_(allow|deny)_)",
    "authz_dry_run_result": r"(\.shadow_(allowed|denied))",
}
"""The tags before and after those of ``extraStatTags``: a statistic's name is read from left to right."""

PREFIXES = ("cluster_manager", "listener_manager", "server", "cluster.xds-grpc", "wasm")
SUFFIXES = ("rbac.allowed", "rbac.denied", "shadow_allowed", "shadow_denied")
REGEXPS = (r"vhost\..*\.route\..*",)
"""Patterns of statistics that are always there: readiness, policies and ``statPrefix`` of routes need them."""
DRAIN_SUFFIX = "downstream_cx_active"
"""Needed to see when the last connection ended."""

OF_CLUSTERS = (
    "upstream_rq_completed",
    "upstream_rq_5xx",
    "upstream_rq_4xx",
    "upstream_rq_timeout",
    "upstream_rq_retry",
    "upstream_rq_active",
    "upstream_cx_total",
    "upstream_cx_connect_fail",
    "upstream_cx_none_healthy",
)
OF_LISTENERS = ("downstream_rq_completed", "downstream_rq_5xx", "downstream_rq_4xx", "no_route", "no_cluster")
OF_RULES = r"rbac\.policy\..+\.(?:allowed|denied)"
TRAFFIC: Json = {
    "safe_regex": {
        "regex": rf"cluster\..+\.(?:{'|'.join(OF_CLUSTERS)})|http\..+\.(?:{'|'.join(OF_LISTENERS)}|{OF_RULES})"
    }
}
"""The pattern of the statistics that the agent reads for its reports; metrics leave out what only this one names."""

ANNOTATION = "sidecar.istio.io/"
"""Prefix of the annotations about statistics."""
READ = (
    "statsInclusionPrefixes",
    "statsInclusionSuffixes",
    "statsInclusionRegexps",
    "extraStatTags",
    "statsHistogramBuckets",
    "statsFlushInterval",
)
"""The fields of ProxyConfig about statistics."""
READ_ELSEWHERE = (
    "proxy.istio.io/config",
    "sidecar.istio.io/discoveryAddress",
    "sidecar.istio.io/interceptionMode",
    "status.sidecar.istio.io/port",
)
"""Annotations about other parts of the proxy."""
NOT_READ = "the agent does not read it; docs/proxy.md lists the settings"
_ABOUT_PROXIES = ("sidecar.istio.io", "proxy.istio.io")


def stats_config(
    proxy_config: Mapping[str, Any],
    annotations: Mapping[str, str],
    addresses: Sequence[str],
    *,
    counts_drain: bool,
    counts_traffic: bool = False,
) -> dict[str, Json]:
    """The parts of the bootstrap about statistics. Annotations that cannot be read are left out.

    ``addresses``: what ``{pod_ip}`` stands for in patterns. ``counts_drain``: include active connections.
    ``counts_traffic``: include what the agent reports.
    """
    extra = [*proxy_config.get("extraStatTags", ()), *_listed(annotations, "extraStatTags")]
    tags = {
        **TAGS,
        **{tag: rf"({tag}=\.=(.*?);\.;)" for tag in dict.fromkeys(extra) if tag},
        **TAGS_AFTER,
    }
    patterns = [*_patterns(proxy_config, annotations, addresses, counts_drain), *([TRAFFIC] if counts_traffic else [])]
    config: dict[str, Json] = {
        "use_all_default_tags": False,
        "stats_tags": [{"tag_name": name, "regex": regex} for name, regex in tags.items()],
        "stats_matcher": {"inclusion_list": {"patterns": patterns}},
    }
    if buckets := _buckets(annotations.get(f"{ANNOTATION}statsHistogramBuckets", "")):
        config["histogram_bucket_settings"] = buckets
    found: dict[str, Json] = {"stats_config": config}
    if interval := _duration(annotations.get(f"{ANNOTATION}statsFlushInterval", "")):
        found["stats_flush_interval"] = interval
    if counts_traffic and not _names_others(proxy_config, annotations):
        # Statistics of clusters without traffic cost 0.6 s and 1.5 MB for each thousand. But who names statistics
        # of clusters expects them to be there, with 0.
        found["deferred_stat_options"] = {"enable_deferred_creation_stats": True}
    return found


def _names_others(proxy_config: Mapping[str, Any], annotations: Mapping[str, str]) -> bool:
    """True if the user names statistics in addition to those that are always there."""
    wanted = (f"{ANNOTATION}statsInclusion{kind}" for kind in ("Prefixes", "Suffixes", "Regexps"))
    return any(proxy_config.get("proxyStatsMatcher", {}).values()) or any(annotations.get(name) for name in wanted)


def _patterns(
    proxy_config: Mapping[str, Any], annotations: Mapping[str, str], addresses: Sequence[str], counts_drain: bool
) -> Iterator[dict[str, Json]]:
    """An annotation replaces the list of the ProxyConfig."""
    given: Mapping[str, Any] = proxy_config.get("proxyStatsMatcher", {})

    def of(name: str, always: Sequence[str]) -> Iterator[str]:
        wanted = _listed(annotations, f"statsI{name[1:]}") or given.get(name, ())
        for pattern in (*wanted, *always):
            if "{pod_ip}" in pattern:
                yield from (pattern.replace("{pod_ip}", address) for address in addresses)
            else:
                yield pattern

    yield {"prefix": "reporter="}
    for prefix in of("inclusionPrefixes", PREFIXES):
        yield {"prefix": prefix}
    for suffix in of("inclusionSuffixes", (*SUFFIXES, *([DRAIN_SUFFIX] if counts_drain else []))):
        yield {"suffix": suffix}
    for regex in of("inclusionRegexps", REGEXPS):
        yield {"safe_regex": {"regex": regex}}
    yield {"prefix": "component"}
    yield {"prefix": "istio"}


def _listed(annotations: Mapping[str, str], name: str) -> list[str]:
    return [part for part in annotations.get(ANNOTATION + name, "").split(",") if part]


def annotation_problems(annotations: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Annotations about the proxy without effect, each with the reason."""
    for name, text in annotations.items():
        if not text or name in READ_ELSEWHERE:
            continue
        if name == f"{ANNOTATION}statsEvictionInterval":
            yield name, "statistics are kept as long as Envoy runs; --custom-bootstrap can have stats_eviction_interval"
        elif name == f"{ANNOTATION}statsHistogramBuckets" and not _buckets(text):
            yield name, 'expected JSON with bounds by the prefix of a name, such as {"istio": [1, 10, 100]}'
        elif name == f"{ANNOTATION}statsFlushInterval" and not _duration(text):
            yield name, f"{text!r} is not a duration, such as 10s"
        elif name.partition("/")[0].endswith(_ABOUT_PROXIES) and name.removeprefix(ANNOTATION) not in READ:
            yield name, NOT_READ


def _buckets(text: str) -> list[Json]:
    """Istio's JSON: bounds by the prefix of the name."""
    try:
        data = json.loads(text)
        return [
            {"match": {"prefix": str(prefix)}, "buckets": [float(bound) for bound in bounds]}
            for prefix, bounds in sorted(data.items())
        ]
    except (ValueError, AttributeError, TypeError):
        return []


def _duration(text: str) -> str:
    try:
        return write_duration(read_duration(text))
    except ValueError:
        return ""
