"""The annotation for client-side weighted round robin: what it may say, and where it has no effect."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest

from mesh_pilot.istio.meaning.weighted_round_robin import (
    WEIGHTED_ROUND_ROBIN,
    WeightedRoundRobin,
    read_weighted_round_robin,
)
from mesh_pilot.istio.reading.decode import decode
from mesh_pilot.model.config import ConfigError, Origin, Severity


def test_what_is_absent_is_left_to_the_client() -> None:
    assert read_weighted_round_robin("{}") == WeightedRoundRobin()


def test_all_of_it() -> None:
    text = """{"blackoutPeriod": "5s", "weightExpirationPeriod": "1m", "weightUpdatePeriod": "0.2s",
        "errorUtilizationPenalty": 1.5, "metricNamesForComputingUtilization": ["named_metrics.queue"]}"""
    assert read_weighted_round_robin(text) == WeightedRoundRobin(
        timedelta(seconds=5), timedelta(minutes=1), timedelta(seconds=0.2), 1.5, ("named_metrics.queue",)
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is not JSON"),
        ("true", "expected a JSON object, got the boolean true"),
        ("[" * 10_000, "is not JSON"),
        ('{"blackout": "1s"}', "'blackout' is not one of blackoutPeriod"),
        ('{"blackoutPeriod": 1}', "blackoutPeriod: expected a duration"),
        ('{"blackoutPeriod": "0s"}', "blackoutPeriod: must be more than 0s"),
        ('{"errorUtilizationPenalty": -1}', "errorUtilizationPenalty: expected a number from 0 on"),
        ('{"errorUtilizationPenalty": NaN}', "errorUtilizationPenalty: expected a number from 0 on"),
        ('{"metricNamesForComputingUtilization": "cpu"}', "metricNamesForComputingUtilization: expected a list"),
    ],
)
def test_anything_else_is_refused_with_its_reason(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        read_weighted_round_robin(text)


def said_of(kind: str, spec: dict[str, object], text: str) -> list[tuple[str, Severity]]:
    document = {
        "apiVersion": "networking.istio.io/v1",
        "kind": kind,
        "metadata": {"name": "x", "namespace": "shop", "annotations": {WEIGHTED_ROUND_ROBIN: text}},
        "spec": spec,
    }
    try:
        config = decode(document, origin=Origin("test"), default_namespace="shop")
    except ConfigError as refused:
        return [(problem.reason, problem.severity) for problem in refused.problems]
    return [(problem.reason, problem.severity) for problem in config.warnings]


def test_a_rule_that_chooses_another_load_balancer_is_told_that_the_annotation_has_no_effect() -> None:
    balancers: list[tuple[object, bool]] = [
        ({"simple": "ROUND_ROBIN"}, True),
        ({"warmup": {"duration": "5s"}}, True),
        ({"simple": "RANDOM"}, False),
        ({"consistentHash": {"useSourceIp": True}}, False),
    ]
    for balancer, works in balancers:
        spec: dict[str, object] = {"host": "reviews", "trafficPolicy": {"loadBalancer": balancer}}
        found = [severity for reason, severity in said_of("DestinationRule", spec, "{}") if "no effect" in reason]
        assert found == ([] if works else [Severity.WARNING]), balancer


def test_it_is_for_destination_rules_alone_and_a_bad_one_refuses_the_rule() -> None:
    assert ("is for DestinationRule only", Severity.ERROR) in said_of("Sidecar", {"egress": [{"hosts": ["./*"]}]}, "{}")
    ((reason, severity),) = said_of("DestinationRule", {"host": "reviews"}, "yes")
    assert severity is Severity.ERROR
    assert reason.startswith("is not JSON")
