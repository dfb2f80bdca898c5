"""The access logs of a proxy: those of HTTP connection managers, of TCP proxies and of listeners.

Telemetry selects the providers to log to. Without one about access logs, and without default providers in the mesh
config, the mesh's own file (``accessLogFile``) is used. A listener logs connections that match no filter chain.

Rules: Istio's Telemetry and MeshConfig references.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import attrs
from envoy.config.accesslog.v3 import accesslog_pb2
from envoy.extensions.access_loggers.filters.cel.v3 import cel_pb2
from google.protobuf import json_format as protobuf_json
from google.protobuf import struct_pb2

from mesh_pilot.api.istio.mesh import v1alpha1 as mesh_api
from mesh_pilot.engine import derived
from mesh_pilot.envoy.core.protobuf import any_of, encode, optional
from mesh_pilot.envoy.telemetry.loggers import (
    STDOUT,
    default_json_fields,
    file_log,
    json_format,
    provider_log,
    text_format,
)
from mesh_pilot.istio.rules.extension_providers import field_reasons
from mesh_pilot.mesh.policies.context import PolicyContext
from mesh_pilot.mesh.policies.telemetry import ENVOY, extension_provider, is_for_side, provider_names, telemetry_for
from mesh_pilot.world.view import View

AccessLogs = tuple[bytes, ...]
"""Encoded ``AccessLog`` messages."""

CEL_FILTER = "envoy.access_loggers.extension_filters.cel"
NO_ROUTE = "NR"
"""Envoy's response flag for a connection that matches no filter chain."""

MESH_FILE = ""
"""The provider name that stands for the mesh's own log file."""


@attrs.frozen
class AccessLogger:
    """An access log of a proxy, before its provider is looked up."""

    provider: str
    """Name of an extension provider, or MESH_FILE."""
    expression: str = ""
    """CEL expression of what is logged; empty: everything."""


@attrs.frozen
class _MeshLogFile:
    """The mesh's own log file."""

    path: str
    """Empty: no log."""
    format: str
    json: bool


@derived
def access_logs(view: View, context: PolicyContext, http: bool) -> AccessLogs:
    """The logs of HTTP connection managers (``http``), or of TCP proxies."""
    return tuple(encode(_filtered(log, logger)) for log, logger in _built(view, context, http))


@derived
def listener_access_logs(view: View, context: PolicyContext) -> AccessLogs:
    """The logs of a listener: of connections that match no filter chain."""
    if not _on_listeners(view):
        return ()
    return tuple(encode(_without_chain(log, logger)) for log, logger in _built(view, context, False))


@derived
def access_loggers(view: View, context: PolicyContext) -> tuple[AccessLogger, ...]:
    """The logs that a context's connections go to, by name."""
    inherited = _default_providers(view)
    loggers = {name: AccessLogger(name) for name in inherited}
    expressions: dict[str, str] = {}
    for spec in telemetry_for(view, context.namespace, context.labels):
        entries = [e for e in spec.access_logging if is_for_side(e.match, context)]
        named = tuple(dict.fromkeys(name for e in entries for name in provider_names(e.providers)))
        if named:
            # A Telemetry with providers replaces those of wider ones; without, it changes how they log.
            inherited, loggers = named, {}
        for entry in entries:
            own = provider_names(entry.providers)
            for name in own or inherited:
                # An entry that names no provider and has no filter leaves the filters as they are.
                if own or entry.filter:
                    expressions[name] = entry.filter.expression.strip() if entry.filter else ""
                if entry.disabled:
                    loggers.pop(name, None)
                else:
                    loggers[name] = AccessLogger(name, expressions.get(name, ""))
    return tuple(sorted(loggers.values(), key=lambda logger: logger.provider))


@derived
def _default_providers(view: View) -> tuple[str, ...]:
    defaults = view.mesh().default_providers
    return tuple(defaults.access_logging if defaults else ()) or (MESH_FILE,)


@derived
def _on_listeners(view: View) -> bool:
    return not view.mesh().disable_envoy_listener_log


def _built(view: View, context: PolicyContext, http: bool) -> Iterator[tuple[accesslog_pb2.AccessLog, AccessLogger]]:
    """The logs that can be built, without their filters. An internal error in one only costs that log."""
    loggers = optional(view, access_loggers.query(context), ())
    if loggers and not any(_is_usable(view, context, logger.provider) for logger in loggers):
        loggers = (AccessLogger(MESH_FILE),)  # as in Istio, if no provider can be used
    for logger in loggers:
        log = optional(view, _access_log.query(context, logger.provider, http), None)
        if log is not None:
            yield accesslog_pb2.AccessLog.FromString(log), logger


def _is_usable(view: View, context: PolicyContext, provider: str) -> bool:
    kinds = (optional(view, _access_log.query(context, provider, http), None) for http in (True, False))
    return provider == MESH_FILE or any(log is not None for log in kinds)


@derived
def _access_log(view: View, context: PolicyContext, provider: str, http: bool) -> bytes | None:
    """The log of a provider, encoded; None for one that is not for such connections."""
    log = _log(view, context, provider, http)
    return None if log is None else encode(log)


def _log(view: View, context: PolicyContext, provider: str, http: bool) -> accesslog_pb2.AccessLog | None:
    file = _mesh_file(view)
    if provider == MESH_FILE:
        return _mesh_log(file, file.path) if file.path else None
    found = extension_provider(view, provider)
    if found is None:
        return None
    own = found.envoy_file_access_log
    if found.name == ENVOY and own is not None and own.log_format is None and not own.omit_empty_values:
        return _mesh_log(file, own.path or STDOUT)
    return provider_log(view, context.namespace, found, http=http)


def _mesh_log(file: _MeshLogFile, path: str) -> accesslog_pb2.AccessLog:
    return file_log(path, json_format(_json_fields(file.format)) if file.json else text_format(file.format))


@derived
def _mesh_file(view: View) -> _MeshLogFile:
    mesh = view.mesh()
    return _MeshLogFile(
        path=mesh.access_log_file,
        format=mesh.access_log_format,
        json=mesh.access_log_encoding == mesh_api.MeshConfigAccessLogEncoding.JSON,
    )


def _json_fields(text: str) -> struct_pb2.Struct:
    """The fields of a JSON log format, without those that Envoy refuses; Istio's default if it is empty or, as in
    Istio, no JSON object.

    Validation of the mesh config reports it; here it must not cost a listener.
    """
    fields = struct_pb2.Struct()
    if text:
        try:
            given = json.loads(text)
            protobuf_json.ParseDict(given, fields)
        except (ValueError, TypeError, RecursionError, protobuf_json.ParseError):
            fields.Clear()
        else:
            for name in field_reasons(given):
                del fields.fields[name]
    return fields if fields.fields else default_json_fields()


def _filtered(log: accesslog_pb2.AccessLog, logger: AccessLogger) -> accesslog_pb2.AccessLog:
    if logger.expression:
        log.filter.CopyFrom(_cel(logger.expression))
    return log


def _without_chain(log: accesslog_pb2.AccessLog, logger: AccessLogger) -> accesslog_pb2.AccessLog:
    """Restrict a log to connections that match no filter chain."""
    no_route = accesslog_pb2.AccessLogFilter(response_flag_filter=accesslog_pb2.ResponseFlagFilter(flags=[NO_ROUTE]))
    if logger.expression:
        log.filter.and_filter.filters.extend((no_route, _cel(logger.expression)))
    else:
        log.filter.CopyFrom(no_route)
    return log


def _cel(expression: str) -> accesslog_pb2.AccessLogFilter:
    config = any_of(cel_pb2.ExpressionFilter(expression=expression))
    return accesslog_pb2.AccessLogFilter(
        extension_filter=accesslog_pb2.ExtensionFilter(name=CEL_FILTER, typed_config=config)
    )
