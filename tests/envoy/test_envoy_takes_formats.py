"""A real Envoy and validation agree about substitution format strings and CEL expressions."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

import pytest
from envoy.config.accesslog.v3 import accesslog_pb2
from envoy.config.listener.v3.listener_pb2 import Listener
from envoy.extensions.access_loggers.filters.cel.v3 import cel_pb2
from envoy.extensions.filters.http.router.v3 import router_pb2
from envoy.extensions.filters.network.http_connection_manager.v3.http_connection_manager_pb2 import (
    HttpConnectionManager,
)

from mesh_pilot.envoy.telemetry.loggers import file_log, text_format
from mesh_pilot.istio.rules.cel import cel_reason
from mesh_pilot.istio.rules.substitution import COMMANDS, log_format_reason
from mesh_pilot.istio.rules.values import header_value_reason
from tests.support.envoy_check import complaints
from tests.support.formats import BAD_EXPRESSIONS, BAD_FORMATS, GOOD_EXPRESSIONS, GOOD_FORMATS

pytestmark = pytest.mark.envoy

PIECES = (
    "%",
    "%%",
    "REQ",
    "PROTOCOL",
    "(",
    ")",
    ":",
    "5",
    "a",
    "?",
    "START_TIME",
    "%n",
    " ",
    "METADATA",
    "ROUTE",
    "FOO",
)
TOKENS = (
    "a",
    "1",
    "'x'",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    ",",
    ":",
    "?",
    ".",
    "-",
    "!",
    "&&",
    "==",
    "in",
    "size(",
    "has(",
    " ",
)


def listener(headers: Iterable[str] = (), logs: Iterable[str] = (), expressions: Iterable[str] = ()) -> bytes:
    """A listener with a route for each header value, and with access logs of these formats and filters."""
    manager = HttpConnectionManager(stat_prefix="a")
    manager.http_filters.add(name="envoy.filters.http.router").typed_config.Pack(router_pb2.Router())
    host = manager.route_config.virtual_hosts.add(name="a", domains=["*"])
    for value in headers:
        route = host.routes.add()
        route.match.prefix, route.direct_response.status = "/", 200
        header = route.request_headers_to_add.add().header
        header.key, header.value = "x", value
    for text in logs:
        log = text_format("-")
        log.text_format_source.inline_string = text
        log.formatters.MergeFrom(text_format(text).formatters)
        manager.access_log.append(file_log("/dev/null", log))
    for expression in expressions:
        log_filter = accesslog_pb2.ExtensionFilter(name="envoy.access_loggers.extension_filters.cel")
        log_filter.typed_config.Pack(cel_pb2.ExpressionFilter(expression=expression))
        manager.access_log.append(file_log("/dev/null", text_format("")))
        manager.access_log[-1].filter.extension_filter.CopyFrom(log_filter)
    result = Listener(name="a")
    result.address.socket_address.address = "127.0.0.1"
    chain = result.filter_chains.add().filters.add(name="envoy.filters.network.http_connection_manager")
    chain.typed_config.Pack(manager)
    return result.SerializeToString()


def test_envoy_takes_every_command_that_we_know(tmp_path: Path) -> None:
    plain = [f"%{name}%" for name, command in COMMANDS.items() if not command.required]
    texts = [*plain, *GOOD_FORMATS]
    logs = [*texts, "%REQ_WITHOUT_QUERY(:path?x):9%"]
    found = listener([*texts, "%PER_REQUEST_STATE(a)%"], logs, GOOD_EXPRESSIONS)
    assert complaints(tmp_path, [found]) == ""


@pytest.mark.sweep(1)
@pytest.mark.parametrize("text", BAD_FORMATS)
def test_envoy_refuses_what_we_refuse(text: str, tmp_path: Path) -> None:
    assert complaints(tmp_path, [listener(logs=[text])])


@pytest.mark.sweep(1)
@pytest.mark.parametrize("expression", BAD_EXPRESSIONS)
def test_envoy_refuses_an_expression_that_we_refuse(expression: str, tmp_path: Path) -> None:
    assert complaints(tmp_path, [listener(expressions=[expression])])


def test_envoy_takes_whatever_we_accept(tmp_path: Path) -> None:
    pick = random.Random(11)
    texts = ["".join(pick.choices(PIECES, k=pick.randint(1, 8))) for _ in range(5_000)]
    expressions = ["".join(pick.choices(TOKENS, k=pick.randint(1, 6))) for _ in range(10_000)]
    headers = [text for text in texts if not header_value_reason(text)]
    logs = [text for text in texts if not log_format_reason(text)]
    taken = [text for text in expressions if not cel_reason(text)]
    assert min(len(headers), len(logs), len(taken)) > 300
    assert complaints(tmp_path, [listener(headers, logs, taken)]) == ""
