"""Access logs of listeners, as Telemetry and the mesh config say."""

from __future__ import annotations

import pytest
from envoy.extensions.access_loggers.file.v3.file_pb2 import FileAccessLog
from google.protobuf.struct_pb2 import Value

from mesh_pilot.envoy.telemetry.access_logs import access_loggers
from mesh_pilot.envoy.telemetry.loggers import JSON_FORMAT
from mesh_pilot.mesh.policies.context import TrafficSide
from mesh_pilot.mesh.policies.telemetry import extension_provider
from mesh_pilot.world import World
from tests.support.listeners import listeners, manager, tcp
from tests.support.telemetry import PROVIDERS, SERVICES, context, http_chain, telemetry
from tests.support.worlds import sidecar, world_of


def logged(world: World, side: TrafficSide = TrafficSide.OUTBOUND) -> list[tuple[str, str]]:
    """(provider, expression) of each log."""
    return [(logger.provider, logger.expression) for logger in access_loggers(world.view, context(side))]


# -- which logs


def test_without_telemetry_the_log_is_the_meshs_own_file() -> None:
    assert logged(world_of()) == [("", "")]


def test_default_providers_take_the_place_of_the_meshs_own_file() -> None:
    assert logged(world_of(mesh="defaultProviders: {accessLogging: [file]}")) == [("file", "")]


def test_the_narrower_telemetry_replaces_the_providers_of_the_wider() -> None:
    world = world_of(
        telemetry("mesh", "istio-system", "accessLogging: [{providers: [{name: file}]}]")
        + telemetry("web", "shop", "accessLogging: [{providers: [{name: http-als}]}]", "{app: web}")
        + telemetry("other", "shop", "accessLogging: [{disabled: true}]", "{app: other}")
    )
    assert logged(world) == [("http-als", "")]


def test_a_telemetry_without_providers_speaks_of_those_of_the_wider() -> None:
    world = world_of(
        telemetry("mesh", "istio-system", "accessLogging: [{providers: [{name: file}]}]")
        + telemetry("shop", "shop", 'accessLogging: [{filter: {expression: "response.code >= 400"}}]')
    )
    assert logged(world) == [("file", "response.code >= 400")]


def test_an_entry_without_providers_and_filter_leaves_the_filters_of_the_wider() -> None:
    wider = """accessLogging: [{providers: [{name: file}], filter: {expression: "response.code >= 400"}}]"""
    world = world_of(
        telemetry("mesh", "istio-system", wider)
        + telemetry("shop", "shop", "accessLogging: [{disabled: false}]")
        + telemetry("web", "shop", "accessLogging: [{providers: [{name: file}]}]", "{app: other}")
    )
    assert logged(world) == [("file", "response.code >= 400")]


def test_logs_can_be_disabled_for_one_side() -> None:
    world = world_of(telemetry("shop", "shop", "accessLogging: [{match: {mode: CLIENT}, disabled: true}]"))
    assert logged(world, TrafficSide.OUTBOUND) == []
    assert logged(world, TrafficSide.GATEWAY) == []
    assert logged(world, TrafficSide.INBOUND) == [("", "")]


def test_of_telemetries_for_a_workload_the_younger_overrides_the_older() -> None:
    older = telemetry("a", "shop", "accessLogging: [{providers: [{name: file}]}]", "{app: web}")
    younger = telemetry(
        "b",
        "shop",
        'accessLogging: [{filter: {expression: "response.code >= 400"}, providers: [{name: otel-als}]}]',
        "{app: web}",
    )
    assert logged(world_of(older + younger)) == [("otel-als", "response.code >= 400")]


def test_a_telemetry_for_one_side_leaves_the_default_providers_to_the_other() -> None:
    clients_only = telemetry("shop", "shop", "accessLogging: [{match: {mode: CLIENT}, providers: [{name: otel-als}]}]")
    world = world_of(clients_only, mesh="defaultProviders: {accessLogging: [file]}")
    assert logged(world, TrafficSide.OUTBOUND) == [("otel-als", "")]
    assert logged(world, TrafficSide.INBOUND) == [("file", "")]


# -- what they look like


@pytest.mark.parametrize("encoding", ["TEXT", "JSON"])
def test_the_meshs_own_file_has_istios_format_by_default(encoding: str) -> None:
    world = world_of(SERVICES, mesh=f"{{accessLogFile: /dev/stdout, accessLogEncoding: {encoding}}}")
    file = FileAccessLog.FromString(http_chain(world).access_log[0].typed_config.value)
    if encoding == "TEXT":
        line = file.log_format.text_format_source.inline_string
        assert line.startswith('[%START_TIME%] "%REQ(:METHOD)%') and line.endswith("%ROUTE_NAME%\n")
    else:
        assert file.log_format.json_format.fields["response_code"].string_value == "%RESPONSE_CODE%"


@pytest.mark.parametrize(
    "malformed", ["{bad json", "[]", "1", '"text"', '{"a": "\\ud800"}', '{"a":' * 5000], ids=lambda text: text[:12]
)
def test_a_malformed_json_format_means_the_default_and_costs_no_listener(malformed: str) -> None:
    world = world_of(
        SERVICES, mesh=f"{{accessLogFile: /dev/stdout, accessLogEncoding: JSON, accessLogFormat: '{malformed}'}}"
    )
    file = FileAccessLog.FromString(http_chain(world).access_log[0].typed_config.value)
    assert file.log_format.json_format.fields["response_code"].string_value == "%RESPONSE_CODE%"


@pytest.mark.parametrize(
    "broken",
    ["telemetry.access_logs.access_loggers", "telemetry.access_logs._access_log", "telemetry.tracing.tracing_config"],
)
def test_an_internal_error_in_what_observes_traffic_costs_that_piece_only(
    broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError(broken)

    monkeypatch.setattr(f"mesh_pilot.envoy.{broken}.compute", fail)
    mesh = PROVIDERS + "defaultProviders: {accessLogging: [file], tracing: [zipkin]}"
    found = http_chain(world_of(SERVICES, mesh=mesh))
    assert found.http_filters
    tracing = broken.endswith("tracing_config")
    assert (bool(found.access_log), found.HasField("tracing")) == (tracing, not tracing)


def test_a_format_of_ones_own_ends_in_a_newline() -> None:
    world = world_of(SERVICES, mesh="{accessLogFile: /dev/stdout, accessLogFormat: '%PROTOCOL%'}")
    file = FileAccessLog.FromString(http_chain(world).access_log[0].typed_config.value)
    assert file.log_format.text_format_source.inline_string == "%PROTOCOL%\n"


def provider_file(log_format: str) -> FileAccessLog:
    """The log of a provider with this format."""
    provider = f"{{name: own, envoyFileAccessLog: {{path: /dev/stdout, logFormat: {log_format}}}}}"
    world = world_of(SERVICES, mesh=f"{{extensionProviders: [{provider}], defaultProviders: {{accessLogging: [own]}}}}")
    return FileAccessLog.FromString(http_chain(world).access_log[0].typed_config.value)


def test_what_envoy_refuses_in_a_providers_format_costs_no_listener() -> None:
    found = provider_file("{text: '%FOO%'}").log_format
    assert found.text_format_source.inline_string.startswith("[%START_TIME%]")
    found = provider_file("{labels: {good: '%PROTOCOL%', bad: '%FOO%', worse: {a: ['100%']}}}").log_format
    assert dict(found.json_format.fields.items()) == {"good": Value(string_value="%PROTOCOL%")}


def test_a_provider_without_a_file_logs_to_standard_output() -> None:
    assert file_of("own", "own, envoyFileAccessLog: {}").path == "/dev/stdout"


def file_of(name: str, provider: str, mesh: str = "") -> FileAccessLog:
    """The log of a default provider."""
    declared = f"extensionProviders: [{{name: {provider}}}], " if provider else ""
    world = world_of(SERVICES, mesh=f"{{{declared}defaultProviders: {{accessLogging: [{name}]}}{mesh}}}")
    (log,) = http_chain(world).access_log
    return FileAccessLog.FromString(log.typed_config.value)


@pytest.mark.parametrize("declared", ["", "envoy, envoyFileAccessLog: {path: /dev/stderr}"])
def test_the_provider_envoy_logs_in_the_format_of_the_mesh_unless_it_has_its_own(declared: str) -> None:
    json = file_of("envoy", declared, ", accessLogEncoding: JSON").log_format.json_format
    assert json.fields.keys() == JSON_FORMAT.keys()
    text = file_of("envoy", declared, ", accessLogFormat: '%PROTOCOL%'").log_format.text_format_source
    assert text.inline_string == "%PROTOCOL%\n"
    own = "envoy, envoyFileAccessLog: {logFormat: {labels: {}}}"
    assert file_of("envoy", own).log_format.json_format.fields.keys() == JSON_FORMAT.keys()


def test_a_field_of_the_meshs_format_that_envoy_refuses_is_left_out() -> None:
    given = ', accessLogEncoding: JSON, accessLogFormat: \'{"a": "%FOO%", "b": "%PROTOCOL%"}\''
    assert file_of("envoy", "", given).log_format.json_format.fields.keys() == {"b"}


@pytest.mark.parametrize("log_format", ["{{text: '{}'}}", "{{labels: {{a: {{b: ['{}']}}}}}}"])
def test_commands_of_formatters_bring_their_formatters(log_format: str) -> None:
    text = "%REQ_WITHOUT_QUERY(:path)% %METADATA(ROUTE:a)%"
    formatters = provider_file(log_format.format(text)).log_format.formatters
    assert [f.name for f in formatters] == ["envoy.formatter.metadata", "envoy.formatter.req_without_query"]
    assert not provider_file(log_format.format("%DYNAMIC_METADATA(a)%")).log_format.formatters


def test_listeners_log_what_no_chain_takes_unless_that_is_off() -> None:
    world = world_of(mesh="accessLogFile: /dev/stdout")
    log = listeners(world, sidecar())["virtualOutbound"].access_log[0]
    assert list(log.filter.response_flag_filter.flags) == ["NR"]
    quiet = world_of(mesh="{accessLogFile: /dev/stdout, disableEnvoyListenerLog: true}")
    assert not listeners(quiet, sidecar())["virtualOutbound"].access_log


def test_each_provider_logs_what_it_is_for_and_those_without_a_service_are_left_out() -> None:
    names = ("file", "http-als", "tcp-als", "otel-als", "lost-als")
    refs = ", ".join(f"{{name: {n}}}" for n in names)
    world = world_of(SERVICES + telemetry("shop", "shop", f"accessLogging: [{{providers: [{refs}]}}]"), mesh=PROVIDERS)
    found = listeners(world, sidecar("10.9.9.9", namespace="shop"))
    http = [log.name.rpartition(".")[2] for log in manager(found["0.0.0.0_80"].filter_chains[0]).access_log]
    assert http == ["file", "http_grpc", "open_telemetry"]
    bytes_ = [log.name.rpartition(".")[2] for log in tcp(found["virtualOutbound"].filter_chains[1]).access_log]
    assert bytes_ == ["file", "open_telemetry", "tcp_grpc_access_log"]


@pytest.mark.parametrize(
    ("name", "path"),
    [("nowhere", "/dev/null"), ("lost-als", "/dev/null"), ("zipkin", "/dev/null"), ("File", "/tmp/a.log")],
)
def test_a_telemetry_whose_providers_cannot_be_used_leaves_the_meshs_own_file_and_case_does_not_count(
    name: str, path: str
) -> None:
    entry = telemetry("shop", "shop", f"accessLogging: [{{providers: [{{name: {name}}}]}}]")
    world = world_of(SERVICES + entry, mesh=f"accessLogFile: /dev/null\n{PROVIDERS}")
    (log,) = http_chain(world).access_log
    assert FileAccessLog.FromString(log.typed_config.value).path == path


@pytest.mark.parametrize(
    ("name", "path"), [("File", "/tmp/1.log"), ("file", "/tmp/2.log"), ("FILE", "/tmp/1.log"), ("other", None)]
)
def test_the_provider_of_the_very_name_comes_before_one_that_differs_in_case(name: str, path: str | None) -> None:
    files = (
        "{name: File, envoyFileAccessLog: {path: /tmp/1.log}}",
        "{name: file, envoyFileAccessLog: {path: /tmp/2.log}}",
    )
    found = extension_provider(world_of(mesh=f"extensionProviders: [{', '.join(files)}]").view, name)
    assert (found and found.envoy_file_access_log and found.envoy_file_access_log.path) == path
