"""Regular expressions that validation takes, Envoy takes; and the other way round."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from envoy.config.listener.v3 import listener_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2 as hcm

from mesh_pilot.istio.rules.regex import regex_reason
from tests.support.envoy_check import complaints

pytestmark = pytest.mark.envoy

GOOD = [
    "a.*b",
    "[^/]+",
    "é{2,3}",
    r"(?i)\pL",
    r"[[:alpha:]]+\z",
    "(?U)a+",
    "(?<n>a)(?P<m>b)",
    r"\Q[(\E",
    ".{0,1000}",
    "|",
]
BAD = ["(", "[я", r"(a)\1", "a(?!b)", "a**", "a{1001}", r"\E", r"\x{100}", "(?P<é>a)", ".{1000}" * 40, r"\p{None}"]


def listener(patterns: Iterable[str]) -> bytes:
    """A listener with a route for each."""
    manager = hcm.HttpConnectionManager(stat_prefix="x")
    host = manager.route_config.virtual_hosts.add(name="x", domains=["*"])
    for pattern in patterns:
        route = host.routes.add()
        route.match.safe_regex.regex = pattern
        route.direct_response.status = 200
    router = manager.http_filters.add(name="router").typed_config
    router.type_url = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"
    message = listener_pb2.Listener()
    message.address.socket_address.address = "127.0.0.1"
    message.address.socket_address.port_value = 1
    message.filter_chains.add().filters.add(name="hcm").typed_config.Pack(manager)
    return message.SerializeToString()


def test_envoy_takes_what_is_let_through(tmp_path: Path) -> None:
    assert [regex_reason(pattern) for pattern in GOOD] == [""] * len(GOOD)
    assert complaints(tmp_path, [listener(GOOD)]) == ""


@pytest.mark.sweep(1)
@pytest.mark.parametrize("pattern", BAD, ids=lambda pattern: pattern[:10])
def test_envoy_refuses_what_is_refused(pattern: str, tmp_path: Path) -> None:
    assert regex_reason(pattern)
    assert complaints(tmp_path, [listener([pattern])])
