"""Access logs as the mesh config says: a file, as text or JSON, in the mesh's own format or Istio's.

Every HTTP connection manager and TCP proxy has them; a listener has them for connections that no chain takes.
Rules: Istio's MeshConfig reference (``accessLogFile``, ``accessLogFormat``, ``accessLogEncoding``) and Envoy's access
log documentation.
"""

from __future__ import annotations

import json

import attrs
from envoy.config.accesslog.v3 import accesslog_pb2
from envoy.config.core.v3 import base_pb2, substitution_format_string_pb2
from envoy.extensions.access_loggers.file.v3 import file_pb2
from google.protobuf import json_format, struct_pb2

from mesh_pilot.api.istio.mesh import v1alpha1 as mesh_api
from mesh_pilot.envoy.messages import any_of, encode
from mesh_pilot.envoy.owner import Owner
from mesh_pilot.world.view import View

AccessLogs = tuple[bytes, ...]
"""Encoded ``AccessLog`` messages."""

FILE_LOGGER = "envoy.access_loggers.file"
NO_ROUTE = "NR"
"""Envoy's response flag for a connection that no filter chain takes."""

TEXT_FORMAT = (
    '[%START_TIME%] "%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%" %RESPONSE_CODE% '
    "%RESPONSE_FLAGS% %RESPONSE_CODE_DETAILS% %CONNECTION_TERMINATION_DETAILS% "
    '"%UPSTREAM_TRANSPORT_FAILURE_REASON%" %BYTES_RECEIVED% %BYTES_SENT% %DURATION% '
    '%RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)% "%REQ(X-FORWARDED-FOR)%" "%REQ(USER-AGENT)%" "%REQ(X-REQUEST-ID)%" '
    '"%REQ(:AUTHORITY)%" "%UPSTREAM_HOST%" %UPSTREAM_CLUSTER% %UPSTREAM_LOCAL_ADDRESS% %DOWNSTREAM_LOCAL_ADDRESS% '
    "%DOWNSTREAM_REMOTE_ADDRESS% %REQUESTED_SERVER_NAME% %ROUTE_NAME%\n"
)
"""Istio's default line."""

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


@attrs.frozen
class _File:
    """The mesh's own log file."""

    path: str
    """Empty: no log."""
    format: str
    json: bool
    on_listeners: bool


def access_logs(view: View, owner: Owner) -> AccessLogs:
    """The logs of what connections carry: for HTTP connection managers and TCP proxies."""
    file = view.get(_mesh_file)
    return (encode(_file_logger(file)),) if file.path else ()


def listener_access_logs(view: View, owner: Owner) -> AccessLogs:
    """The logs of a listener: connections that no filter chain takes."""
    file = view.get(_mesh_file)
    if not file.path or not file.on_listeners:
        return ()
    log = _file_logger(file)
    log.filter.response_flag_filter.flags.append(NO_ROUTE)
    return (encode(log),)


def _mesh_file(view: View) -> _File:
    mesh = view.mesh()
    return _File(
        path=mesh.access_log_file,
        format=mesh.access_log_format,
        json=mesh.access_log_encoding == mesh_api.MeshConfigAccessLogEncoding.JSON,
        on_listeners=not mesh.disable_envoy_listener_log,
    )


def _file_logger(file: _File) -> accesslog_pb2.AccessLog:
    line = _json_format(file.format) if file.json else text_format(file.format)
    config = file_pb2.FileAccessLog(path=file.path, log_format=line)
    return accesslog_pb2.AccessLog(name=FILE_LOGGER, typed_config=any_of(config))


def text_format(line: str) -> substitution_format_string_pb2.SubstitutionFormatString:
    """A log line (Istio's, if empty); it ends in a newline in any case."""
    text = line or TEXT_FORMAT
    return substitution_format_string_pb2.SubstitutionFormatString(
        text_format_source=base_pb2.DataSource(inline_string=text if text.endswith("\n") else text + "\n")
    )


def _json_format(fields: str) -> substitution_format_string_pb2.SubstitutionFormatString:
    struct = struct_pb2.Struct()
    json_format.ParseDict(json.loads(fields) if fields else JSON_FORMAT, struct)
    return substitution_format_string_pb2.SubstitutionFormatString(json_format=struct)
