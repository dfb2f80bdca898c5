"""Rules for Envoy's substitution format strings: header values, lines of access logs, and tags of traces.

They have command operators such as `%REQ(X?Y):Z%`; `%%` is a percent sign. Commands and arguments are those of Envoy's
reference "Access logging" ("Command Operators"), up to Envoy 1.40. Earlier versions know fewer of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping

import attrs

from mesh_pilot.istio.rules.cel import cel_reason
from mesh_pilot.istio.rules.names import MAX_DIGITS

_NAME = re.compile(r"%([A-Z0-9_]++)")
_NO_ARGUMENT_END = re.compile(r"(?::([0-9]++))?%")
_ARGUMENT_END = re.compile(r"\)(?::([0-9]++))?%|\n")
"""An argument ends at the first bracket that ends the command; it has no line break."""

_HEADER_NAME = re.compile(r"(?::?[!#$%&'*+.^_|~`0-9A-Za-z-]++)?")
_LINE_BREAK = re.compile(r"%[-_0^#]*+[1-9]*+[EO]?n")


@attrs.frozen
class _Command:
    """The arguments that a command takes."""

    reason: Callable[[str], str] | None = None
    """The reason why an argument is refused, or an empty string; None: it takes no argument."""
    required: bool = False
    limited: bool = False
    """True if it takes a maximum length."""


def header_format_reason(value: str) -> str:
    """The reason why Envoy refuses the format of a header's value, or an empty string."""
    return _reason(value, _IN_HEADERS)


def log_format_reason(text: str) -> str:
    """The same for a string of an access log."""
    return _reason(text, _IN_LOGS)


def format_reason(text: str) -> str:
    """The same for a string with Envoy's built-in commands alone, such as the tag of a trace."""
    return _reason(text, {})


def _reason(text: str, more: Mapping[str, _Command]) -> str:
    position = text.find("%")
    while position >= 0:
        if text.startswith("%%", position):
            position += 2
        else:
            reason, position = _command_reason(text, position, more)
            if reason:
                return reason
        position = text.find("%", position)
    return ""


def _command_reason(text: str, start: int, more: Mapping[str, _Command]) -> tuple[str, int]:
    """(The reason why the command that starts here is refused, where it ends)."""
    named = _NAME.match(text, start)
    if named is None:
        return _no_command(text, start), 0
    argument, end = "", _NO_ARGUMENT_END.match(text, named.end())
    if text.startswith("(", named.end()):
        end = _ARGUMENT_END.search(text, named.end() + 1)
        argument = text[named.end() + 1 : end.start()] if end is not None else ""
    if end is None or end[0] == "\n":
        return _no_command(text, start), 0
    return _misuse(named[1], more.get(named[1]) or COMMANDS.get(named[1]), argument, end[1]), end.end()


def _misuse(name: str, command: _Command | None, argument: str, length: str | None) -> str:
    """The reason why a command does not take these arguments, or an empty string."""
    if command is None:
        return f'{_shown(f"%{name}%")} is not a command that Envoy has; write a percent sign as "%%"'
    if argument and command.reason is None:
        return f"%{name}% takes no argument"
    if command.required and not argument:
        return f"%{name}% needs an argument, as in %{name}(...)%"
    if length and not (
        command.limited and len(digits := length.lstrip("0")) <= MAX_DIGITS and int(digits or 0) < 2**64
    ):
        return f"%{name}% can't be cut to {length[:MAX_DIGITS]} characters"
    reason = command.reason(argument) if command.reason is not None else ""
    return f"%{name}({_shown(argument)[1:-1]})%: {reason}" if reason else ""


def _no_command(text: str, start: int) -> str:
    return (
        f'{_shown(text[start:])} has a "%" that neither starts a command such as %PROTOCOL% or %REQ(X?Y):Z% '
        'nor is written as "%%"'
    )


# -- arguments


def _any(argument: str) -> str:
    return ""


def _headers(argument: str) -> str:
    names = argument.split("?", 2)
    if len(names) > 2:
        return "allowed are a header and one alternative, X?Y"
    wrong = next((name for name in names if not _HEADER_NAME.fullmatch(name)), None)
    return "" if wrong is None else f"{_shown(wrong)} is not a header name"


def _time(argument: str) -> str:
    return "the format of a time must not have line breaks" if _LINE_BREAK.search(argument) else ""


def _key(argument: str) -> str:
    return 'must not have a ":"' if ":" in argument else ""


def _duration(argument: str) -> str:
    parts = argument.split(":")
    if len(parts) not in (2, 3):
        return "needs two points in time, as in DS_RX_BEG:DS_RX_END:ms"
    return _one_of(("ms", "us", "ns"))(parts[2]) if len(parts) == 3 else ""


def _filter_state(argument: str) -> str:
    key, _, rest = argument.partition(":")
    kind, _, field = rest.partition(":")
    if not key:
        return "needs a key"
    if (kind == "FIELD") != bool(field):
        return "FIELD, and only it, is followed by the name of a field"
    return _one_of(("", "PLAIN", "TYPED", "FIELD"))(kind)


def _first_of(*choices: tuple[str, ...]) -> Callable[[str], str]:
    """A rule for parts between colons, of which each that has choices is one of them."""

    def reason(argument: str) -> str:
        parts = argument.split(":", len(choices))
        found = (_one_of(allowed)(part) for part, allowed in zip(parts, choices, strict=False))
        return next(filter(None, found), "")

    return reason


def _one_of(allowed: tuple[str, ...]) -> Callable[[str], str]:
    def reason(argument: str) -> str:
        known = ", ".join(filter(None, allowed))
        return "" if argument in allowed else f"{_shown(argument)} is not one of {known}"

    return reason


def _coalesce(argument: str) -> str:
    try:
        operators = json.loads(argument)["operators"]
    except (ValueError, KeyError, TypeError, RecursionError):
        operators = None
    if not isinstance(operators, list) or not operators:
        return 'needs a JSON object with a list "operators"'
    return next(filter(None, map(_operator, operators)), "")


def _operator(operator: object) -> str:
    name, argument, length = operator, "", None
    if isinstance(operator, Mapping):
        name, argument, length = operator.get("command"), operator.get("param", ""), operator.get("max_length")
    if not isinstance(name, str) or not isinstance(argument, str) or not (length is None or type(length) is int):
        return 'each of "operators" is a command, or has "command", "param" (text) and "max_length" (number)'
    return _misuse(name, COMMANDS.get(name), argument, None if length is None else str(length))


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:60]}...")


# -- commands

_SIDES = ("DOWNSTREAM", "UPSTREAM")
_ADDRESSES = tuple(f"{side}_{end}" for side in (*_SIDES, "DOWNSTREAM_DIRECT") for end in ("LOCAL", "REMOTE"))
_TIMES = ("START_TIME", "START_TIME_LOCAL", "EMIT_TIME", "EMIT_TIME_LOCAL")
_VALIDITY = tuple(f"{side}_PEER_CERT_V_{end}" for side in _SIDES for end in ("START", "END"))
_HEADERS = ("REQ", "RESP", "TRAILER", "REQUEST_HEADER", "RESPONSE_HEADER", "RESPONSE_TRAILER", "STREAM_INFO_REQ")
_METADATA = ("DYNAMIC", "CLUSTER", "ROUTE", "UPSTREAM_HOST", "LISTENER", "LISTENER_FILTER_CHAIN", "VIRTUAL_HOST")
_SERVER_NAMES = (("", "SNI_ONLY", "SNI_FIRST", "HOST_FIRST"), ("", "ORIG", "HOST", "ORIG_OR_HOST"))
_XFCC_KEYS = ("by", "hash", "uri", "dns", "subject", "cert", "chain")
_PATHS = (("", "WQ", "NQ"), ("", "ORIG", "PATH", "ORIG_OR_PATH"))

_WITHOUT_ARGUMENTS = """
    ACCESS_LOG_TYPE BYTES_RECEIVED BYTES_RETRANSMITTED BYTES_SENT CONNECTION_ID CONNECTION_TERMINATION_DETAILS
    CUSTOM_FLAGS DURATION FILTER_CHAIN_NAME GRPC_STATUS_NUMBER HOSTNAME LISTENER_NAME LOCAL_REPLY_BODY
    PACKETS_RETRANSMITTED PROTOCOL REQUEST_DURATION REQUEST_HEADERS_BYTES REQUEST_TX_DURATION RESPONSE_CODE
    RESPONSE_DURATION RESPONSE_FLAGS RESPONSE_FLAGS_LONG RESPONSE_HEADERS_BYTES RESPONSE_TRAILERS_BYTES
    RESPONSE_TX_DURATION ROUNDTRIP_DURATION ROUTE_NAME ROUTE_RESOLUTION_COUNT ROUTE_RESOLUTION_TIME_US SPAN_ID STREAM_ID
    TLS_JA3_FINGERPRINT TLS_JA4_FINGERPRINT TRACE_ID UNIQUE_ID VIRTUAL_CLUSTER_NAME

    DOWNSTREAM_CX_RTT DOWNSTREAM_DECOMPRESSED_HEADER_BYTES_RECEIVED DOWNSTREAM_DECOMPRESSED_HEADER_BYTES_SENT
    DOWNSTREAM_DETECTED_CLOSE_TYPE DOWNSTREAM_DIRECT_LOCAL_ADDRESS_ENDPOINT_ID DOWNSTREAM_HANDSHAKE_DURATION
    DOWNSTREAM_HEADER_BYTES_RECEIVED DOWNSTREAM_HEADER_BYTES_SENT DOWNSTREAM_LOCAL_ADDRESS_ENDPOINT_ID
    DOWNSTREAM_LOCAL_CLOSE_REASON DOWNSTREAM_LOCAL_DNS_SAN DOWNSTREAM_LOCAL_EMAIL_SAN DOWNSTREAM_LOCAL_IP_SAN
    DOWNSTREAM_LOCAL_OTHERNAME_SAN DOWNSTREAM_LOCAL_SUBJECT DOWNSTREAM_LOCAL_URI_SAN DOWNSTREAM_PEER_CERT
    DOWNSTREAM_PEER_CHAIN_FINGERPRINTS_1 DOWNSTREAM_PEER_CHAIN_FINGERPRINTS_256 DOWNSTREAM_PEER_CHAIN_SERIALS
    DOWNSTREAM_PEER_DNS_SAN DOWNSTREAM_PEER_EMAIL_SAN DOWNSTREAM_PEER_FINGERPRINT_1 DOWNSTREAM_PEER_FINGERPRINT_256
    DOWNSTREAM_PEER_IP_SAN DOWNSTREAM_PEER_ISSUER DOWNSTREAM_PEER_ISSUER_FINGERPRINT_256 DOWNSTREAM_PEER_ISSUER_SERIAL
    DOWNSTREAM_PEER_OTHERNAME_SAN DOWNSTREAM_PEER_SERIAL DOWNSTREAM_PEER_SUBJECT DOWNSTREAM_PEER_URI_SAN
    DOWNSTREAM_TLS_CIPHER DOWNSTREAM_TLS_GROUP DOWNSTREAM_TLS_SESSION_ID DOWNSTREAM_TLS_VERSION
    DOWNSTREAM_TRANSPORT_FAILURE_REASON DOWNSTREAM_WIRE_BYTES_RECEIVED DOWNSTREAM_WIRE_BYTES_SENT

    UPSTREAM_CLUSTER UPSTREAM_CLUSTER_RAW UPSTREAM_CONNECTION_ID UPSTREAM_CONNECTION_IDS_ATTEMPTED
    UPSTREAM_CONNECTION_POOL_READY_DURATION UPSTREAM_DECOMPRESSED_HEADER_BYTES_RECEIVED
    UPSTREAM_DECOMPRESSED_HEADER_BYTES_SENT UPSTREAM_DETECTED_CLOSE_TYPE UPSTREAM_HEADER_BYTES_RECEIVED
    UPSTREAM_HEADER_BYTES_SENT UPSTREAM_HOST UPSTREAM_HOSTS_ATTEMPTED UPSTREAM_HOSTS_ATTEMPTED_WITHOUT_PORT
    UPSTREAM_HOST_NAME UPSTREAM_HOST_NAMES_ATTEMPTED UPSTREAM_HOST_NAMES_ATTEMPTED_WITHOUT_PORT
    UPSTREAM_HOST_NAME_WITHOUT_PORT UPSTREAM_LOCAL_CLOSE_REASON UPSTREAM_LOCAL_DNS_SAN UPSTREAM_LOCAL_IP_SAN
    UPSTREAM_LOCAL_URI_SAN UPSTREAM_PEER_CERT UPSTREAM_PEER_DNS_SAN UPSTREAM_PEER_IP_SAN UPSTREAM_PEER_ISSUER
    UPSTREAM_PEER_SUBJECT UPSTREAM_PEER_URI_SAN UPSTREAM_PROTOCOL UPSTREAM_REMOTE_ADDRESS_ENDPOINT_ID
    UPSTREAM_REQUEST_ATTEMPT_COUNT UPSTREAM_SERVER_NAME UPSTREAM_TLS_CIPHER UPSTREAM_TLS_GROUP UPSTREAM_TLS_SESSION_ID
    UPSTREAM_TLS_VERSION UPSTREAM_TRANSPORT_FAILURE_REASON UPSTREAM_WIRE_BYTES_RECEIVED UPSTREAM_WIRE_BYTES_SENT
"""

COMMANDS: Mapping[str, _Command] = {
    **dict.fromkeys(_WITHOUT_ARGUMENTS.split(), _Command()),
    **dict.fromkeys((f"{address}_{part}" for address in _ADDRESSES for part in ("ADDRESS", "PORT")), _Command()),
    **dict.fromkeys((f"{address}_ADDRESS_WITHOUT_PORT" for address in _ADDRESSES), _Command(_any)),
    **dict.fromkeys((*_TIMES, *_VALIDITY), _Command(_time)),
    **dict.fromkeys(_HEADERS, _Command(_headers, required=True, limited=True)),
    **dict.fromkeys(("DYNAMIC_METADATA", "ENVIRONMENT", "QUERY_PARAM"), _Command(_any, required=True, limited=True)),
    **dict.fromkeys(("CLUSTER_METADATA", "UPSTREAM_METADATA"), _Command(_any, required=True)),
    **dict.fromkeys(("FILTER_STATE", "UPSTREAM_FILTER_STATE"), _Command(_filter_state, required=True, limited=True)),
    **dict.fromkeys(("CEL", "TYPED_CEL"), _Command(cel_reason, required=True, limited=True)),
    "COALESCE": _Command(_coalesce, required=True, limited=True),
    "COMMON_DURATION": _Command(_duration, required=True),
    "GRPC_STATUS": _Command(_one_of(("", "CAMEL_STRING", "SNAKE_STRING", "NUMBER"))),
    "METADATA": _Command(_first_of(_METADATA), required=True, limited=True),
    "PATH": _Command(_first_of(*_PATHS), limited=True),
    "QUERY_PARAMS": _Command(_one_of(("", "ORIG", "DECODED")), limited=True),
    "REQUESTED_SERVER_NAME": _Command(_first_of(*_SERVER_NAMES)),
    "RESPONSE_CODE_DETAILS": _Command(_any),
    "XFCC_VALUE": _Command(lambda key: _one_of(_XFCC_KEYS)(key.lower()), required=True, limited=True),
}
"""Commands by name."""

_IN_HEADERS = {"PER_REQUEST_STATE": _Command(_key, required=True)}
"""A command from before Envoy 1.25, which later versions replace by FILTER_STATE in the values of headers."""

_IN_LOGS = {"REQ_WITHOUT_QUERY": _Command(_headers, required=True, limited=True)}
"""Commands of formatters that access logs are sent with (``envoy.telemetry.loggers``)."""
