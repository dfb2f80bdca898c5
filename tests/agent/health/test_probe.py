"""Probes as people and the control plane write them, and the decision from one result after another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh_pilot.agent.health.decision import ProbeDecision, overall
from mesh_pilot.agent.health.probe import (
    ExecCheck,
    GrpcCheck,
    HttpCheck,
    ProbeError,
    ProbeSettings,
    TcpCheck,
    parse_probe,
    readiness_probe,
)
from mesh_pilot.agent.relay.subscriptions import ApplicationHealth
from mesh_pilot.api.istio.mesh.v1alpha1 import ProxyConfig
from mesh_pilot.api.istio.networking.v1alpha3 import (
    ExecHealthCheckConfig,
    GrpcHealthCheckConfig,
    HttpHeader,
    HttpHealthCheckConfig,
    ReadinessProbe,
    TcpHealthCheckConfig,
)

HEADERS = [{"name": "Host", "value": "web"}]
PROBES: Sequence[tuple[dict[str, Any], ReadinessProbe, ProbeSettings]] = [
    (
        {"httpGet": {"port": 8080}},
        ReadinessProbe(http_get=HttpHealthCheckConfig(port=8080)),
        ProbeSettings(HttpCheck(8080)),
    ),
    (
        {
            "initialDelaySeconds": 5,
            "timeoutSeconds": 3,
            "periodSeconds": 4,
            "successThreshold": 2,
            "failureThreshold": 6,
            "httpGet": {"path": "up", "port": 1, "host": "127.0.0.1", "scheme": "HTTPS", "httpHeaders": HEADERS},
        },
        ReadinessProbe(
            initial_delay_seconds=5,
            timeout_seconds=3,
            period_seconds=4,
            success_threshold=2,
            failure_threshold=6,
            http_get=HttpHealthCheckConfig(
                path="up", port=1, host="127.0.0.1", scheme="HTTPS", http_headers=[HttpHeader(name="Host", value="web")]
            ),
        ),
        ProbeSettings(HttpCheck(1, "/up", "127.0.0.1", "https", (("Host", "web"),)), 5, 3, 4, 2, 6),
    ),
    (
        {"tcpSocket": {"port": 5432, "host": "::1"}},
        ReadinessProbe(tcp_socket=TcpHealthCheckConfig(host="::1", port=5432)),
        ProbeSettings(TcpCheck(5432, "::1")),
    ),
    (
        {"exec": {"command": ["test", "-e", "/up"]}},
        ReadinessProbe(exec=ExecHealthCheckConfig(command=["test", "-e", "/up"])),
        ProbeSettings(ExecCheck(("test", "-e", "/up"))),
    ),
    (
        {"grpc": {"port": 9000, "service": "shop.Web"}},
        ReadinessProbe(grpc=GrpcHealthCheckConfig(port=9000, service="shop.Web")),
        ProbeSettings(GrpcCheck(9000, "shop.Web")),
    ),
]


@pytest.mark.parametrize(("written", "sent", "expected"), PROBES, ids=lambda case: "")
def test_a_probe_is_the_same_from_the_settings_and_from_the_control_plane(
    written: dict[str, Any], sent: ReadinessProbe, expected: ProbeSettings
) -> None:
    assert parse_probe(written, "probe") == expected
    found = readiness_probe(bytes(ProxyConfig(config_path="/x", readiness_probe=sent)))
    assert parse_probe(found, "probe") == expected


def test_a_proxy_config_without_probe_has_none() -> None:
    assert readiness_probe(b"") is None
    assert readiness_probe(bytes(ProxyConfig(drain_duration=None, mesh_id="m"))) is None


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ({}, "probe needs one of httpGet, tcpSocket, exec, grpc, and has none"),
        ({"httpGet": {"port": 1}, "exec": {"command": ["a"]}}, "has httpGet and exec"),
        ([], "probe is not an object"),
        ({"httpget": {"port": 1}}, "no field 'httpget'; did you mean httpGet"),
        ({"httpGet": {"port": "http"}}, r"probe.httpGet.port is 'http', no number"),
        ({"httpGet": {"port": 0}}, "port is 0, no port of TCP"),
        ({"httpGet": {"port": 1, "scheme": "ftp"}}, "scheme is 'ftp'; write HTTP or HTTPS"),
        ({"httpGet": {"port": 1, "path": "/a\nb"}}, "path has a character"),
        ({"httpGet": {"port": 1, "httpHeaders": [{"name": "a b", "value": ""}]}}, r"httpHeaders\[0\] is not a header"),
        ({"exec": {"command": "test"}}, "command is not a list"),
        ({"exec": {"command": []}}, "not a list of a program"),
        ({"tcpSocket": {"port": 1}, "periodSeconds": -1}, "periodSeconds is -1"),
    ],
)
def test_a_bad_probe_is_refused_with_its_field(written: Any, message: str) -> None:
    with pytest.raises(ProbeError, match=message):
        parse_probe(written, "probe")


RESULTS = st.lists(st.booleans(), max_size=40)


@given(RESULTS, st.integers(1, 4), st.integers(1, 4))
def test_the_state_is_that_of_the_last_results_in_a_row_that_were_enough(
    results: Sequence[bool], successes: int, failures: int
) -> None:
    decision = ProbeDecision(successes, failures)
    expected: bool | None = None
    for count, result in enumerate(results, 1):
        before = expected
        enough = successes if result else failures
        if count >= enough and all(each is result for each in results[count - enough : count]):
            expected = result
        changed = decision.record(ApplicationHealth(result, "" if result else f"failure {count}"))
        assert decision.is_healthy is expected
        assert changed is (before is not expected)


def test_one_probe_that_fails_is_enough_and_all_must_have_decided() -> None:
    first, second = ProbeDecision(1, 1), ProbeDecision(2, 1)
    assert overall([first, second]) is None
    first.record(ApplicationHealth(True))
    second.record(ApplicationHealth(True))
    assert overall([first, second]) is None
    second.record(ApplicationHealth(True))
    assert overall([first, second]) == ApplicationHealth(True)
    first.record(ApplicationHealth(False, "503"))
    assert overall([first, second]) == ApplicationHealth(False, "503")
