"""Istio's metrics of requests and connections, from Envoy's stats access logger.

The reporter's own workload is written into the logger. A client's proxy finds the destination in the metadata that
clusters and endpoints have (``core.upstream_names``); a server's finds the source in the certificate, and in headers
that the client's proxy sets (``filters.peer_names``), which it believes on mesh mTLS only.

Rules: Istio's page "Istio Standard Metrics". Encoded by hand: xds-protos lacks some of these messages' fields.
Sources: Envoy's ``access_loggers/stats/v3/stats.proto``, ``type/v3/scope.proto``,
``matching/actions/transform_stat/v3/transform_stat.proto``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache

import attrs
from envoy.config.accesslog.v3 import accesslog_pb2
from google.protobuf import any_pb2
from xds.core.v3 import extension_pb2 as xds_extension_pb2
from xds.type.matcher.v3 import matcher_pb2

from mesh_pilot.base.protowire import VARINT, field, tag, varint
from mesh_pilot.engine import derived
from mesh_pilot.envoy.core.protobuf import encode, optional
from mesh_pilot.envoy.core.upstream_names import METADATA, SERVICE_NAMES
from mesh_pilot.istio.rules.cel import cel_reason
from mesh_pilot.mesh.policies.context import PolicyContext, TrafficSide
from mesh_pilot.mesh.policies.metrics import Metric, MetricSettings, metric_settings
from mesh_pilot.mesh.proxy.metric_source import MAX_NAME, WORKLOAD_NAMES, MetricSource
from mesh_pilot.model.resource import PREFIX
from mesh_pilot.world.view import View

STATS_LOGGER = "envoy.access_loggers.stats"
STATS_CONFIG = f"{PREFIX}envoy.extensions.access_loggers.stats.v3.Config"

NAMESPACE_OF_STATS = "wasmcustom"
"""Begins the names of the statistics. Envoy shows them to Prometheus without it, and without its own prefix
``envoy_``, if its bootstrap has an extension for Wasm (see ``agent.bootstrap.statistics_config``)."""

UNKNOWN = "unknown"
"""The value of a label whose value is not known, as in Istio."""

PEER_HEADERS: Mapping[str, str] = {name: f"x-mesh-peer-{name.replace('_', '-')}" for name in WORKLOAD_NAMES}
"""The request headers in which a client's proxy names its workload."""

MAX_STATISTICS = 10_000
"""The counters, and the histograms, that an Envoy of version 1.40 and up keeps at the most."""

_MILLISECONDS, _BYTES = 3, 1
_HISTOGRAMS: Mapping[Metric, tuple[int, str]] = {
    Metric.REQUEST_DURATION: (_MILLISECONDS, "%DURATION%"),
    Metric.REQUEST_SIZE: (_BYTES, "%DOWNSTREAM_WIRE_BYTES_RECEIVED%"),
    Metric.RESPONSE_SIZE: (_BYTES, "%DOWNSTREAM_WIRE_BYTES_SENT%"),
}
_COUNTERS: Mapping[Metric, str] = {
    Metric.REQUEST_COUNT: "",
    Metric.TCP_OPENED_CONNECTIONS: "",
    Metric.TCP_CLOSED_CONNECTIONS: "",
    Metric.TCP_SENT_BYTES: "%BYTES_SENT%",
    Metric.TCP_RECEIVED_BYTES: "%BYTES_RECEIVED%",
}
"""The number that is added; empty: one for each request or connection."""

_OF_REQUESTS = frozenset((Metric.REQUEST_COUNT, Metric.REQUEST_DURATION, Metric.REQUEST_SIZE, Metric.RESPONSE_SIZE))

_NAMESPACE_OF_PEER = (
    "%CEL(re.extract(connection.uri_san_peer_certificate, '^spiffe://[^/]+/ns/([^/]+)/sa/[^/]+$', '\\\\1'))%"
)
"""The namespace in the certificate of a connection's client."""


@attrs.frozen(cache_hash=True)
class InboundSide:
    """The side of a connection that a server's proxy knows."""

    mutual: bool = False
    """True if the connection is mesh mTLS."""
    service: tuple[str, ...] = ()
    """The service that the port belongs to, as SERVICE_NAMES; empty if to none."""


OUTSIDE = InboundSide()
"""Connections that are not to a server of the mesh behind its own proxy."""


def metric_logs(view: View, context: PolicyContext, http: bool, served: InboundSide) -> tuple[bytes, ...]:
    """The access logs, encoded, that count what happens in HTTP connection managers, or in TCP proxies."""
    source = context.spans.metrics
    return () if source is None else _metric_logs(view, context, source, http, served)


@derived
def _metric_logs(
    view: View, context: PolicyContext, source: MetricSource, http: bool, served: InboundSide
) -> tuple[bytes, ...]:
    settings = optional(view, metric_settings.query(context), ())
    chosen = [each for each in settings if (each.metric in _OF_REQUESTS) == http]
    if not chosen:
        return ()
    log = accesslog_pb2.AccessLog(name=STATS_LOGGER)
    config = _config(chosen, _labels(context, source, served, http=http), source.limited)
    log.typed_config.CopyFrom(any_pb2.Any(type_url=STATS_CONFIG, value=config))
    return (encode(log),)


@attrs.frozen
class _Label:
    format: str
    rules: bytes = b""
    """An encoded Matcher, for a value that Envoy does not have as such."""


def _labels(context: PolicyContext, source: MetricSource, served: InboundSide, *, http: bool) -> dict[str, _Label]:
    """The labels of a reporter, by name, in Istio's order."""
    own = dict(source.names)
    ours = {name: _literal(own.get(name, UNKNOWN)) for name in WORKLOAD_NAMES}
    if context.side is TrafficSide.INBOUND:
        reporter, security = "destination", "mutual_tls" if served.mutual else "none"
        peers = _client_names(served, http=http)
        source_names, destination_names = peers, ours
        principals = ("%DOWNSTREAM_PEER_URI_SAN%", "%DOWNSTREAM_LOCAL_URI_SAN%") if served.mutual else ("", "")
        services = [_literal(name or UNKNOWN) for name in served.service or (UNKNOWN,) * len(SERVICE_NAMES)]
    else:
        reporter, security = "source", UNKNOWN
        source_names, destination_names = ours, {name: _upstream("UPSTREAM", name) for name in WORKLOAD_NAMES}
        principals = ("%UPSTREAM_LOCAL_URI_SAN%", "%UPSTREAM_PEER_URI_SAN%")
        services = [_upstream("CLUSTER", name) for name in SERVICE_NAMES]
    labels = {"reporter": _literal(reporter)}
    labels |= _workload("source", source_names, principals[0])
    labels |= _workload("destination", destination_names, principals[1])
    labels |= {f"destination_{name}": label for name, label in zip(SERVICE_NAMES, services, strict=True)}
    if http:
        labels["request_protocol"] = _Label("%REQ(CONTENT-TYPE):32%", _protocol_rules())
        labels["response_code"] = _Label("%RESPONSE_CODE%")
        labels["grpc_response_status"] = _Label("%GRPC_STATUS_NUMBER%", _status_rules())
    else:
        labels["request_protocol"] = _literal("tcp")
    labels["response_flags"] = _Label("%RESPONSE_FLAGS%")
    labels["connection_security_policy"] = _literal(security)
    return labels


def _client_names(served: InboundSide, *, http: bool) -> dict[str, _Label]:
    if not served.mutual:
        return {name: _literal(UNKNOWN) for name in WORKLOAD_NAMES}
    if http:
        return {name: _Label(f"%REQ({PEER_HEADERS[name]}):{MAX_NAME}%", _text_rules()) for name in WORKLOAD_NAMES}
    names = {name: _literal(UNKNOWN) for name in WORKLOAD_NAMES}
    return {**names, "workload_namespace": _Label(_NAMESPACE_OF_PEER, _text_rules())}


def _workload(side: str, names: Mapping[str, _Label], principal: str) -> dict[str, _Label]:
    labels = {f"{side}_{name}": names[name] for name in WORKLOAD_NAMES}
    labels[f"{side}_principal"] = _Label(principal, _text_rules()) if principal else _literal(UNKNOWN)
    return labels


def _upstream(of: str, name: str) -> _Label:
    return _Label(f"%{of}_METADATA({METADATA}:{name})%", _unknown_rules())


def _literal(value: str) -> _Label:
    return _Label(value.replace("%", "%%"))


# -- messages


def _config(settings: list[MetricSettings], labels: Mapping[str, _Label], limited: bool) -> bytes:
    prefix = NAMESPACE_OF_STATS.encode()
    most = field(1, tag(1, VARINT) + varint(MAX_STATISTICS))
    most += field(3, tag(1, VARINT) + varint(MAX_STATISTICS))
    # One scope for all listeners, so that the limit holds for all of them together.
    evictable = tag(4, VARINT) + varint(1)  # if the bootstrap has an interval for that
    scope = most + evictable + field(5, prefix) + field(6, b"istio")
    parts = [field(6, scope) if limited else field(1, prefix)]
    tags = {name: _tag(name, label) for name, label in labels.items()}
    for each in settings:
        own = dict(tags)
        for name, expression in each.tags:
            if expression is None:
                own.pop(name, None)
            elif value := tag_format(expression):
                own[name] = _tag(name, _Label(value, _text_rules() if "%" in value else b""))
        stat = field(1, field(1, each.metric.value.encode()) + b"".join(own.values()))
        if each.metric in _HISTOGRAMS:
            unit, value = _HISTOGRAMS[each.metric]
            parts.append(field(3, stat + tag(2, VARINT) + varint(unit) + field(3, value.encode())))
        else:
            value = _COUNTERS[each.metric]
            parts.append(field(4, stat + (field(2, value.encode()) if value else field(3, tag(1, VARINT) + varint(1)))))
    return b"".join(parts)


def _tag(name: str, label: _Label) -> bytes:
    body = field(1, name.encode()) + field(2, label.format.encode())
    return field(2, body + (field(3, label.rules) if label.rules else b""))


@cache
def _unknown_rules() -> bytes:
    """Rules that give an empty value a name."""
    matcher = matcher_pb2.Matcher(matcher_tree=_tree())
    matcher.matcher_tree.exact_match_map.map[""].CopyFrom(_set(UNKNOWN))
    return encode(matcher)


@cache
def _text_rules() -> bytes:
    """Rules for values that others have said: Prometheus refuses a whole page for a byte that is not UTF-8."""
    return _unknown_unless("[ -~]+")


@cache
def _status_rules() -> bytes:
    """Rules for statuses of gRPC, which a server may make up; empty for requests that are not gRPC."""
    return _unknown_unless("[0-9]{0,2}")


def _unknown_unless(regex: str) -> bytes:
    matcher = matcher_pb2.Matcher()
    found = matcher.matcher_list.matchers.add(on_match=_set(UNKNOWN))
    text = found.predicate.not_matcher.single_predicate
    text.input.CopyFrom(_tree().input)
    text.value_match.safe_regex.google_re2.SetInParent()
    text.value_match.safe_regex.regex = regex
    return encode(matcher)


@cache
def _protocol_rules() -> bytes:
    """Rules that make ``grpc`` or ``http`` of the type of a request's content."""
    matcher = matcher_pb2.Matcher(matcher_tree=_tree(), on_no_match=_set("http"))
    matcher.matcher_tree.prefix_match_map.map["application/grpc"].CopyFrom(_set("grpc"))
    return encode(matcher)


def _tree() -> matcher_pb2.Matcher.MatcherTree:
    kind = f"{PREFIX}envoy.extensions.matching.common_inputs.stats.v3.StatTagValueInput"
    value = xds_extension_pb2.TypedExtensionConfig(name="value", typed_config=any_pb2.Any(type_url=kind))
    return matcher_pb2.Matcher.MatcherTree(input=value)


def _set(value: str) -> matcher_pb2.Matcher.OnMatch:
    kind = f"{PREFIX}envoy.extensions.matching.actions.transform_stat.v3.TransformStat"
    update = any_pb2.Any(type_url=kind, value=field(3, field(2, value.encode())))
    action = xds_extension_pb2.TypedExtensionConfig(name="value", typed_config=update)
    return matcher_pb2.Matcher.OnMatch(action=action)


# -- values of metrics' labels that Telemetry gives as expressions: Envoy's format strings for them


MAX_VALUE = 128
"""The length to which values from requests are cut."""

_CUT = f":{MAX_VALUE}"
_COMMANDS = {
    "request.host": f"%REQ(:AUTHORITY){_CUT}%",
    "request.method": f"%REQ(:METHOD){_CUT}%",
    "request.path": f"%REQ(:PATH){_CUT}%",
    "request.scheme": f"%REQ(:SCHEME){_CUT}%",
    "request.useragent": f"%REQ(USER-AGENT){_CUT}%",
    "request.protocol": "%PROTOCOL%",
    "response.code": "%RESPONSE_CODE%",
    "response.code_details": "%RESPONSE_CODE_DETAILS%",
    "response.flags": "%RESPONSE_FLAGS%",
    "response.grpc_status": "%GRPC_STATUS_NUMBER%",
    "connection.requested_server_name": "%REQUESTED_SERVER_NAME%",
    "upstream.address": "%UPSTREAM_HOST%",
    "source.address": "%DOWNSTREAM_REMOTE_ADDRESS%",
    "destination.address": "%DOWNSTREAM_LOCAL_ADDRESS%",
    "xds.route_name": "%ROUTE_NAME%",
    "xds.cluster_name": "%UPSTREAM_CLUSTER_RAW%",
}

_LITERAL = re.compile(r"""'[^'\\]*'|"[^"\\]*\"""")
_HEADER = re.compile(r"""(request|response)\.headers\[(?:'([^'\\]+)'|"([^"\\]+)")\]""")
_HEADER_NAME = re.compile(r":?[!#$&'*+.^_|~`0-9A-Za-z-]+")
_NODE = re.compile(r"""('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|(?<![\w.])node(?=\s*[.\[])""")
"""A string, or Istio's name of what is ``xds.node`` in Envoy."""


def tag_format(expression: str) -> str:
    """The format string for an expression; empty if there is none (see ``tag_reason``)."""
    text = expression.strip()
    if not text or tag_reason(text):
        return ""
    if _LITERAL.fullmatch(text):
        return text[1:-1].replace("%", "%%")
    if text in _COMMANDS:
        return _COMMANDS[text]
    header = _HEADER.fullmatch(text)
    if header is not None and _HEADER_NAME.fullmatch(name := header[2] or header[3]):
        return f"%{'REQ' if header[1] == 'request' else 'RESP'}({name}){_CUT}%"
    return f"%CEL({_NODE.sub(lambda found: found[1] or 'xds.node', text)}){_CUT}%"


def tag_reason(expression: str) -> str:
    """The reason why a label cannot have the value of an expression, or an empty string."""
    text = expression.strip()
    if _LITERAL.fullmatch(text):
        return "" if len(text) > 2 else "is an empty text; operation REMOVE removes a label"
    if reason := cel_reason(text):
        return reason
    if "%" in text or "\n" in text:
        return f"{json.dumps(text)[:80]} has a character that Envoy's formats do not take"
    return ""
