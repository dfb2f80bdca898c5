"""Providers that Telemetry and the mesh config name and that can't be used are told, with the field and the reason."""

from __future__ import annotations

import pytest

from mesh_pilot.envoy.catalog.catalog import WorldCatalog
from mesh_pilot.envoy.telemetry.problems import telemetry_problems
from mesh_pilot.explain.analysis.object_problems import reference_lines
from mesh_pilot.model.config import ConfigKey, Severity
from mesh_pilot.ops.observers.problem_log import ProblemLog
from mesh_pilot.ops.values.objects import warnings
from mesh_pilot.world import World
from tests.support.telemetry import PROVIDERS, SERVICES, telemetry
from tests.support.worlds import update, world_of


def told(world: World) -> list[tuple[str, str, str]]:
    return [(line["object"], line["field"], line["reason"]) for line in reference_lines(world)]


TRACERS = (
    "zipkin, zipkin-more, otel, otel-more, otel-http, otel-all, dynatrace, dynatrace-api, dynatrace-lost, datadog "
    "and 2 more"
)
LOGGERS = "envoy, file, http-als, tcp-als, otel-als, lost-als"


@pytest.mark.parametrize(
    ("spec", "field", "reason"),
    [
        ("tracing: [{providers: [{name: zipkin}]}]", "", ""),
        ("accessLogging: [{providers: [{name: file}, {name: envoy}, {name: otel-als}]}]", "", ""),
        (
            "tracing: [{}, {providers: [{name: typo}]}]",
            "spec.tracing[1].providers[0].name",
            f"the mesh config has no extension provider typo; there are {TRACERS}: nothing is traced",
        ),
        (
            "tracing: [{providers: [{name: file}]}]",
            "spec.tracing[0].providers[0].name",
            f"extension provider file is not one for traces; there are {TRACERS}: nothing is traced",
        ),
        (
            "tracing: [{providers: [{name: lost}]}]",
            "spec.tracing[0].providers[0].name",
            "extension provider lost: namespace shop sees no service collector.example with port 1: nothing is traced",
        ),
        (
            "accessLogging: [{providers: [{name: file}, {name: typo}]}]",
            "spec.accessLogging[0].providers[1].name",
            f"the mesh config has no extension provider typo; there are {LOGGERS}: nothing is logged to it",
        ),
        (
            "accessLogging: [{providers: [{name: zipkin}]}]",
            "spec.accessLogging[0].providers[0].name",
            f"extension provider zipkin is not one for access logs; there are {LOGGERS}: nothing is logged to it",
        ),
    ],
)
def test_a_provider_of_a_telemetry_that_cannot_be_used_is_told(spec: str, field: str, reason: str) -> None:
    world = world_of(SERVICES + telemetry("t", "shop", spec), mesh=PROVIDERS)
    assert [line for line in told(world) if line[0] != "mesh"] == (
        [("Telemetry/shop/t", field, reason)] if reason else []
    )


@pytest.mark.parametrize("kind", ["lightstep", "opencensus", "stackdriver"])
def test_a_kind_of_provider_without_a_tracer_is_an_error(kind: str) -> None:
    provider = f"extensionProviders: [{{name: old, {kind}: {{}}}}]"
    config = telemetry("t", "shop", "tracing: [{providers: [{name: old}]}]")
    world = world_of(config, mesh=provider)
    (problem,) = telemetry_problems(world.view, ConfigKey("Telemetry", "shop", "t"))
    assert problem.severity is Severity.ERROR
    assert problem.reason.startswith(f"extension provider old is one of kind {kind}, for which Envoy has no tracer")


def test_variables_of_headers_that_the_environment_lacks_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLECTOR_TOKEN", "secret")
    monkeypatch.setenv("BROKEN_TOKEN", "a\nb")
    names = ("COLLECTOR_TOKEN", "BROKEN_TOKEN", "NO_SUCH_TOKEN")
    headers = ", ".join(f"{{name: x-key, envName: {name}}}" for name in names)
    world = world_of(mesh=f"extensionProviders: [{{name: z, zipkin: {{service: a.b, port: 1, headers: [{headers}]}}}}]")
    assert [field for _, field, _ in told(world)] == [
        f"extensionProviders[z].zipkin.headers[{i}].envName" for i in (1, 2)
    ]


def test_a_default_provider_that_cannot_be_used_is_told() -> None:
    world = world_of(mesh="defaultProviders: {tracing: [typo], accessLogging: [envoy, typo]}")
    assert [(name, field) for name, field, _ in told(world)] == [
        ("mesh", "defaultProviders.tracing[0]"),
        ("mesh", "defaultProviders.accessLogging[1]"),
    ]


def test_it_is_among_the_warnings_with_the_place_where_it_is_written() -> None:
    world = world_of(telemetry("t", "shop", "tracing: [{providers: [{name: typo}]}]"))
    (line,) = warnings(world)
    assert (line.where or "").startswith("test.yaml:") and line.object == "Telemetry/shop/t"


def test_it_is_logged_once_and_again_when_it_comes_back(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = telemetry("t", "shop", "tracing: [{providers: [{name: typo}]}]")
    world = world_of(wrong)
    problems = ProblemLog(WorldCatalog(world), world)
    for _ in range(2):
        problems.log_new()
    assert capsys.readouterr().out.count("what it names cannot be used") == 1
    update(world, telemetry("t", "shop", ""))
    problems.log_new()
    update(world, wrong)
    problems.log_new()
    assert capsys.readouterr().out.count("what it names cannot be used") == 1
