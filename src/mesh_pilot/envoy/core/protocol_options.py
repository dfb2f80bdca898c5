"""Options of the HTTP protocol which clusters and listeners share."""

from __future__ import annotations

from envoy.config.core.v3 import extension_pb2, protocol_pb2
from envoy.extensions.http.header_formatters.preserve_case.v3 import preserve_case_pb2

from mesh_pilot.envoy.core.protobuf import any_of

PRESERVE_CASE = "envoy.http.stateful_header_formatters.preserve_case"


def preserved_case() -> protocol_pb2.Http1ProtocolOptions.HeaderKeyFormat:
    """Header names as they came, in HTTP/1."""
    return protocol_pb2.Http1ProtocolOptions.HeaderKeyFormat(
        stateful_formatter=extension_pb2.TypedExtensionConfig(
            name=PRESERVE_CASE, typed_config=any_of(preserve_case_pb2.PreserveCaseFormatterConfig())
        )
    )
