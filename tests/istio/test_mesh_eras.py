"""Mesh files of Istio 1.1 and of the versions since: each loads, and each of their fields that has no effect is said
in a line. What has never been a field is an error, in a line too."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from mesh_pilot.api.istio.mesh import v1alpha1 as mesh
from mesh_pilot.api.istio.networking import v1alpha3 as networking
from mesh_pilot.istio.reading.decode_json import read_message
from mesh_pilot.istio.reading.mesh import decode_mesh, decode_networks
from mesh_pilot.model.config import ConfigError, Origin, Problem, Severity
from tests.support.worlds import plain, read

ERAS = Path(__file__).parent / "eras"

GONE = {
    mesh.MeshConfig: {
        "mixerAddress": "1.8",
        "mixerCheckServer": "1.8",
        "mixerReportServer": "1.8",
        "disablePolicyChecks": "1.8",
        "policyCheckFailOpen": "1.8",
        "enableClientSidePolicyCheck": "1.8",
        "sidecarToTelemetrySessionAffinity": "1.8",
        "disableMixerHttpReports": "1.8",
        "disableReportBatch": "1.8",
        "reportBatchMaxEntries": "1.8",
        "reportBatchMaxTime": "1.8",
        "sdsUdsPath": "1.8",
        "sdsRefreshDelay": "1.8",
        "enableSdsTokenMount": "1.8",
        "sdsUseK8sSaJwt": "1.8",
        "authPolicy": "1.9",
        "rdsRefreshDelay": "1.9",
        "thriftConfig": "1.17",
    },
    mesh.ProxyConfig: {"connectTimeout": "1.6", "parentShutdownDuration": "1.17"},
    mesh.TracingLightstep: {"secure": "1.6", "cacertPath": "1.6"},
    networking.HttpRoute: {
        "websocketUpgrade": "1.5",
        "appendHeaders": "1.5",
        "appendRequestHeaders": "1.5",
        "appendResponseHeaders": "1.5",
        "removeRequestHeaders": "1.5",
        "removeResponseHeaders": "1.5",
    },
    networking.HttpRouteDestination: {
        "appendRequestHeaders": "1.5",
        "appendResponseHeaders": "1.5",
        "removeRequestHeaders": "1.5",
        "removeResponseHeaders": "1.5",
    },
    networking.HttpFaultInjectionAbort: {"percent": "1.5"},
    networking.PortSelector: {"name": "1.4"},
    networking.TlsMatchAttributes: {"sourceSubnet": "1.5"},
    networking.EnvoyFilter: {"filters": "1.6", "workloadLabels": "1.6"},
}
"""The fields of Istio's API of 1.1 and later that Istio 1.30 does not have, and the version that removed each: the
first whose `.proto` files lack it."""


@pytest.mark.parametrize("path", sorted(ERAS.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_file_of_every_era_loads_and_says_in_a_line_each_what_has_no_effect(path: Path) -> None:
    text = read(path)
    comment = " ".join(line.removeprefix("#") for line in text.splitlines() if line.startswith("#"))
    warnings: list[Problem] = []
    decode: Any = decode_networks if path.stem.startswith("networks") else decode_mesh
    decode(plain(text), origin=Origin("mesh", path.name), warnings=warnings)
    warned = {problem.path for problem in warnings}
    expected = set(comment.partition(":")[2].split())
    assert expected <= warned and len(warned) == len(warnings)
    assert {problem.path for problem in warnings if "removed in Istio" in problem.reason} <= expected
    for problem in warnings:
        assert "\n" not in problem.reason and len(problem.reason) < 160, problem


@pytest.mark.parametrize("message", GONE, ids=lambda message: message.__name__)
def test_what_istio_removed_is_said_with_the_version_and_a_replacement(message: Any) -> None:
    for name, version in GONE[message].items():
        for written in (name, re.sub(r"([A-Z])", r"_\1", name).lower()):
            found: list[Problem] = []
            read_message(message, {written: {}}, "", found)
            (problem,) = found
            assert re.search(rf"removed in Istio {re.escape(version)}\b", problem.reason), problem
            assert problem.reason.rpartition(version)[2].strip(), problem
            is_mesh = message.__module__ == mesh.__name__
            assert problem.severity is Severity.WARNING or not is_mesh


def test_errors_of_a_mesh_file_are_a_line_each_without_the_warnings() -> None:
    document = {
        "mixerChekServer": "a",
        "disablePolicyChecks": True,
        "connectTimeout": "soon",
        "defaultConfig": {"a": 1},
    }
    with pytest.raises(ConfigError) as caught:
        decode_mesh(document, origin=Origin("mesh", "mesh.yaml"))
    lines = caught.value.lines
    assert [line.split(": ")[:2] for line in lines] == [
        ["mesh.yaml", "mixerChekServer"],
        ["mesh.yaml", "connectTimeout"],
        ["mesh.yaml", "defaultConfig.a"],
    ]
    assert all("\n" not in line and len(line) < 160 for line in lines)
