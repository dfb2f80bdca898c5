"""Values of metrics' labels that Telemetry gives as expressions: Envoy's format strings for them.

Common attributes have commands of their own; Envoy evaluates any other expression itself, at a higher cost. Rules:
Istio's Telemetry reference; Envoy's "Attributes" and "Access logging: Command Operators".
"""

from __future__ import annotations

import json
import re

from mesh_pilot.istio.rules.cel import cel_reason

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
"""A text, or Istio's name of what is ``xds.node`` in Envoy."""


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
