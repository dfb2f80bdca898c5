"""Access loggers: Envoy's message for each kind of extension provider that takes access logs."""

from __future__ import annotations

from collections.abc import Mapping

from envoy.config.accesslog.v3 import accesslog_pb2
from envoy.config.core.v3 import (
    base_pb2,
    config_source_pb2,
    extension_pb2,
    grpc_service_pb2,
    substitution_format_string_pb2,
)
from envoy.extensions.access_loggers.file.v3 import file_pb2
from envoy.extensions.access_loggers.grpc.v3 import als_pb2
from envoy.extensions.access_loggers.open_telemetry.v3 import logs_service_pb2
from envoy.extensions.formatter.cel.v3 import cel_pb2
from envoy.extensions.formatter.metadata.v3 import metadata_pb2
from envoy.extensions.formatter.req_without_query.v3 import req_without_query_pb2
from google.protobuf import message, struct_pb2

from mesh_pilot.api.google.protobuf import Struct
from mesh_pilot.api.istio.mesh import v1alpha1 as mesh_api
from mesh_pilot.envoy.core.protobuf import any_of, encode
from mesh_pilot.istio.rules.extension_providers import field_reasons
from mesh_pilot.istio.rules.substitution import log_format_reason
from mesh_pilot.mesh.policies.telemetry import Provider, provider_cluster
from mesh_pilot.world.view import View

FILE = "envoy.access_loggers.file"
HTTP_GRPC = "envoy.access_loggers.http_grpc"
TCP_GRPC = "envoy.tcp_grpc_access_log"
"""Istio's name: Envoy goes by the type of the configuration."""
STDOUT = "/dev/stdout"
"""The file of a provider that names none."""

OPEN_TELEMETRY = "envoy.access_loggers.open_telemetry"

HTTP_LOG_NAME = "http_envoy_accesslog"
TCP_LOG_NAME = "tcp_envoy_accesslog"
OTEL_LOG_NAME = "otel_envoy_accesslog"

FORMATTERS: Mapping[bytes, tuple[str, message.Message]] = {
    b"CEL": ("envoy.formatter.cel", cel_pb2.Cel()),
    b"METADATA": ("envoy.formatter.metadata", metadata_pb2.Metadata()),
    b"REQ_WITHOUT_QUERY": ("envoy.formatter.req_without_query", req_without_query_pb2.ReqWithoutQuery()),
}
"""Formatters by the command that they carry out."""

LOG_PROVIDER_FIELDS = ("envoy_file_access_log", "envoy_http_als", "envoy_tcp_als", "envoy_otel_als")
"""The fields of an extension provider of which one is set if it takes access logs."""

TEXT_FORMAT = (
    '[%START_TIME%] "%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%" %RESPONSE_CODE% '
    "%RESPONSE_FLAGS% %RESPONSE_CODE_DETAILS% %CONNECTION_TERMINATION_DETAILS% "
    '"%UPSTREAM_TRANSPORT_FAILURE_REASON%" %BYTES_RECEIVED% %BYTES_SENT% %DURATION% '
    '%RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)% "%REQ(X-FORWARDED-FOR)%" "%REQ(USER-AGENT)%" "%REQ(X-REQUEST-ID)%" '
    '"%REQ(:AUTHORITY)%" "%UPSTREAM_HOST%" %UPSTREAM_CLUSTER% %UPSTREAM_LOCAL_ADDRESS% %DOWNSTREAM_LOCAL_ADDRESS% '
    "%DOWNSTREAM_REMOTE_ADDRESS% %REQUESTED_SERVER_NAME% %ROUTE_NAME%\n"
)
"""Istio's default line format."""

JSON_FORMAT = {
    "start_time": "%START_TIME%",
    "route_name": "%ROUTE_NAME%",
    "method": "%REQ(:METHOD)%",
    "path": "%REQ(X-ENVOY-ORIGINAL-PATH?:PATH)%",
    "protocol": "%PROTOCOL%",
    "response_code": "%RESPONSE_CODE%",
    "response_flags": "%RESPONSE_FLAGS%",
    "response_code_details": "%RESPONSE_CODE_DETAILS%",
    "connection_termination_details": "%CONNECTION_TERMINATION_DETAILS%",
    "bytes_received": "%BYTES_RECEIVED%",
    "bytes_sent": "%BYTES_SENT%",
    "duration": "%DURATION%",
    "upstream_service_time": "%RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)%",
    "x_forwarded_for": "%REQ(X-FORWARDED-FOR)%",
    "user_agent": "%REQ(USER-AGENT)%",
    "request_id": "%REQ(X-REQUEST-ID)%",
    "authority": "%REQ(:AUTHORITY)%",
    "upstream_host": "%UPSTREAM_HOST%",
    "upstream_cluster": "%UPSTREAM_CLUSTER%",
    "upstream_local_address": "%UPSTREAM_LOCAL_ADDRESS%",
    "downstream_local_address": "%DOWNSTREAM_LOCAL_ADDRESS%",
    "downstream_remote_address": "%DOWNSTREAM_REMOTE_ADDRESS%",
    "requested_server_name": "%REQUESTED_SERVER_NAME%",
    "upstream_transport_failure_reason": "%UPSTREAM_TRANSPORT_FAILURE_REASON%",
}
"""Istio's default JSON object."""


def provider_log(view: View, namespace: str, provider: Provider, *, http: bool) -> accesslog_pb2.AccessLog | None:
    """The log of a provider for HTTP or for TCP; None if the provider does not take these logs or cannot be reached."""
    if provider.envoy_file_access_log is not None:
        file = provider.envoy_file_access_log
        return file_log(file.path or STDOUT, _file_format(file.log_format, file.omit_empty_values))
    if provider.envoy_http_als is not None:
        return _http_log(view, namespace, provider.envoy_http_als) if http else None
    if provider.envoy_tcp_als is not None:
        return None if http else _tcp_log(view, namespace, provider.envoy_tcp_als)
    if provider.envoy_otel_als is not None:
        return _otel_log(view, namespace, provider.envoy_otel_als)
    return None


def file_log(path: str, line: substitution_format_string_pb2.SubstitutionFormatString) -> accesslog_pb2.AccessLog:
    return _log(FILE, file_pb2.FileAccessLog(path=path, log_format=line))


def text_format(line: str) -> substitution_format_string_pb2.SubstitutionFormatString:
    """A line format (empty, or one that Envoy refuses: Istio's default), with a newline at its end."""
    text = _line(line)
    return substitution_format_string_pb2.SubstitutionFormatString(
        text_format_source=base_pb2.DataSource(inline_string=text if text.endswith("\n") else text + "\n"),
        formatters=_formatters(text.encode()),
    )


def json_format(fields: struct_pb2.Struct) -> substitution_format_string_pb2.SubstitutionFormatString:
    line = substitution_format_string_pb2.SubstitutionFormatString(
        json_format=fields, formatters=_formatters(encode(fields))
    )
    line.json_format_options.SetInParent()
    return line


def default_json_fields() -> struct_pb2.Struct:
    fields = struct_pb2.Struct()
    fields.update(JSON_FORMAT)
    return fields


def _line(text: str) -> str:
    return text if text and not log_format_reason(text) else TEXT_FORMAT


def _formatters(text: bytes) -> list[extension_pb2.TypedExtensionConfig]:
    """The formatters of the commands in a string. Declared, as in Istio: most Envoys have no others built in."""
    return [
        extension_pb2.TypedExtensionConfig(name=name, typed_config=any_of(config))
        for command, (name, config) in FORMATTERS.items()
        if b"%%%b(" % command in text
    ]


def _log(name: str, config: message.Message) -> accesslog_pb2.AccessLog:
    return accesslog_pb2.AccessLog(name=name, typed_config=any_of(config))


def _file_format(
    log_format: mesh_api.MeshConfigExtensionProviderEnvoyFileAccessLogProviderLogFormat | None, omit_empty: bool
) -> substitution_format_string_pb2.SubstitutionFormatString:
    if log_format is not None and log_format.labels is not None:
        fields = _struct(log_format.labels)
        result = json_format(fields if fields.fields else default_json_fields())
    else:
        result = text_format((log_format and log_format.text) or "")
    result.omit_empty_values = omit_empty
    return result


def _http_log(
    view: View, namespace: str, als: mesh_api.MeshConfigExtensionProviderEnvoyHttpGrpcV3LogProvider
) -> accesslog_pb2.AccessLog | None:
    common = _grpc(view, namespace, als.service, als.port, als.log_name or HTTP_LOG_NAME)
    if common is None:
        return None
    common.filter_state_objects_to_log.extend(als.filter_state_objects_to_log)
    config = als_pb2.HttpGrpcAccessLogConfig(
        common_config=common,
        additional_request_headers_to_log=als.additional_request_headers_to_log,
        additional_response_headers_to_log=als.additional_response_headers_to_log,
        additional_response_trailers_to_log=als.additional_response_trailers_to_log,
    )
    return _log(HTTP_GRPC, config)


def _tcp_log(
    view: View, namespace: str, als: mesh_api.MeshConfigExtensionProviderEnvoyTcpGrpcV3LogProvider
) -> accesslog_pb2.AccessLog | None:
    common = _grpc(view, namespace, als.service, als.port, als.log_name or TCP_LOG_NAME)
    if common is None:
        return None
    common.filter_state_objects_to_log.extend(als.filter_state_objects_to_log)
    return _log(TCP_GRPC, als_pb2.TcpGrpcAccessLogConfig(common_config=common))


def _otel_log(
    view: View, namespace: str, als: mesh_api.MeshConfigExtensionProviderEnvoyOpenTelemetryLogProvider
) -> accesslog_pb2.AccessLog | None:
    common = _grpc(view, namespace, als.service, als.port, als.log_name or OTEL_LOG_NAME)
    if common is None:
        return None
    log_format = als.log_format
    config = logs_service_pb2.OpenTelemetryAccessLogConfig(common_config=common, disable_builtin_labels=True)
    config.body.string_value = _line((log_format and log_format.text) or "")
    if log_format is not None and log_format.labels is not None:
        for key, value in sorted(_struct(log_format.labels).fields.items()):
            config.attributes.values.add(key=key).value.string_value = value.string_value
    config.formatters.extend(_formatters(encode(config)))
    return _log(OPEN_TELEMETRY, config)


def _grpc(
    view: View, namespace: str, service: str, port: int, log_name: str
) -> als_pb2.CommonGrpcAccessLogConfig | None:
    reached = provider_cluster(view, namespace, service, port)
    if reached is None:
        return None
    cluster, host = reached
    return als_pb2.CommonGrpcAccessLogConfig(
        log_name=log_name,
        grpc_service=grpc_service_pb2.GrpcService(
            envoy_grpc=grpc_service_pb2.GrpcService.EnvoyGrpc(cluster_name=cluster, authority=host)
        ),
        transport_api_version=config_source_pb2.V3,
    )


def _struct(labels: Struct) -> struct_pb2.Struct:
    """The fields of a JSON format, without those that Envoy refuses."""
    fields = struct_pb2.Struct.FromString(bytes(labels))
    for name in field_reasons(labels.to_dict()):
        del fields.fields[name]
    return fields
