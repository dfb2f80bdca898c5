"""Plain data to messages: whatever protobuf writes as JSON is read, and whatever is wrong is named."""

from __future__ import annotations

import datetime
import re
from typing import Any

import pytest
from google.protobuf import json_format

from mesh_pilot.api.istio.extensions.v1alpha1 import WasmPlugin
from mesh_pilot.api.istio.mesh.v1alpha1 import MeshConfig
from mesh_pilot.api.istio.networking.v1alpha3 import (
    HttpMatchRequest,
    HttpRoute,
    OutlierDetection,
    StringMatch,
    VirtualService,
)
from mesh_pilot.api.istio.security.v1beta1 import PeerAuthentication
from mesh_pilot.istio.meaning.descriptors import descriptor_of
from mesh_pilot.istio.meaning.durations import read_duration, write_duration
from mesh_pilot.istio.reading.decode_json import read_message
from mesh_pilot.istio.reading.field_warnings import DEPRECATED
from mesh_pilot.istio.reading.scalars import read_timestamp
from mesh_pilot.model.config import Problem, Severity
from tests.support.protos import compiled, message_classes, our_class, variants

ANY = {"google.rpc.Status", "istio.mcp.v1alpha1.Resource", "istio.mcp.v1alpha1.MeshConfigRequest"}
ANY |= {"istio.mcp.v1alpha1.MeshConfigResponse", "istio.mcp.v1alpha1.IncrementalMeshConfigRequest"}
ANY |= {"istio.mcp.v1alpha1.IncrementalMeshConfigResponse", "istio.mcp.v1alpha1.Resources"}
ANY |= {"istio.mcp.v1alpha1.RequestResources"}
"""Messages with an Any in them, which nobody writes in YAML."""


@pytest.mark.parametrize("proto_names", [False, True], ids=["camelCase", "snake_case"])
def test_every_message_is_read_as_protobuf_writes_it(
    proto_names: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for name, theirs in message_classes(compiled(tmp_path_factory.getbasetemp())).items():
        if name in ANY:
            continue
        ours = our_class(name)
        for message in variants(theirs):
            data = json_format.MessageToDict(message, preserving_proto_field_name=proto_names)
            problems: list[Problem] = []
            assert read_message(ours, data, "", problems) == ours.parse(message.SerializeToString()), name
            assert [p for p in problems if p.severity is Severity.ERROR] == []


def test_names_are_those_of_the_protos(tmp_path_factory: pytest.TempPathFactory) -> None:
    for name, theirs in message_classes(compiled(tmp_path_factory.getbasetemp())).items():
        shape = descriptor_of(our_class(name))
        for field in theirs.DESCRIPTOR.fields:
            assert shape.by_name[field.json_name].number == field.number, name
            assert shape.by_name[field.name].number == field.number, name


def test_every_deprecated_field_has_advice(tmp_path_factory: pytest.TempPathFactory) -> None:
    advised = {message: set(fields) for message, fields in DEPRECATED.items()}
    for name, theirs in message_classes(compiled(tmp_path_factory.getbasetemp())).items():
        deprecated = {field.name for field in theirs.DESCRIPTOR.fields if field.GetOptions().deprecated}
        if deprecated and not name.startswith(("istio.rbac.", "istio.mixer.", "istio.authentication.")):
            assert advised.pop(our_class(name)) == deprecated, name
    assert advised == {}


def problems_of(message: type[Any], data: object) -> list[str]:
    problems: list[Problem] = []
    read_message(message, data, "spec", problems)
    return [str(problem) for problem in problems]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ([], "spec: expected an object, got a list"),
        ({"hosts": "a"}, "spec.hosts: expected a list, got the string 'a'"),
        ({"hosts": [5]}, "spec.hosts[0]: expected a string, got the number 5; put it in quotes"),
        ({"hosts": [True]}, "spec.hosts[0]: expected a string, got the boolean true; put it in quotes"),
        ({"hosts": [{}]}, "spec.hosts[0]: expected a string, got an object"),
        ({"hosts": [None]}, "spec.hosts[0]: expected a string, got nothing (null)"),
        ({"hostss": []}, 'spec.hostss: unknown field "hostss"; did you mean hosts?'),
        ({"export-to": []}, 'spec.export-to: unknown field "export-to"; did you mean exportTo?'),
        ({"zzz": 1}, 'spec.zzz: unknown field "zzz"; known: exportTo, gateways, hosts, http, tcp, tls'),
        ({"exportTo": [], "export_to": []}, "spec.export_to: given twice, as exportTo and as export_to"),
        ({"http": {}}, "spec.http: expected a list, got an object"),
        ({"http": [[]]}, "spec.http[0]: expected an object, got a list"),
        ({"http": [None]}, "spec.http[0]: expected an object, got nothing (null)"),
        (
            {"http": [{"retries": {"attempts": 2**31}}]},
            "spec.http[0].retries.attempts: 2147483648 is out of range, allowed are -2147483648 to 2147483647",
        ),
        (
            {"http": [{"retries": {"attempts": 1.5}}]},
            "spec.http[0].retries.attempts: expected a whole number, got the number 1.5",
        ),
        (
            {"http": [{"retries": {"attempts": True}}]},
            "spec.http[0].retries.attempts: expected a whole number, got the boolean true",
        ),
        (
            {"http": [{"retries": {"attempts": "many"}}]},
            "spec.http[0].retries.attempts: expected a whole number, got the string 'many'",
        ),
        (
            {"http": [{"match": [{"port": -1}]}]},
            "spec.http[0].match[0].port: -1 is out of range, allowed are 0 to 4294967295",
        ),
        (
            {"http": [{"match": [{"uri": {"exact": "a", "regex": "b"}}]}]},
            "spec.http[0].match[0].uri.regex: only one of exact and regex may be set",
        ),
        ({"http": [{"match": [{"uri": "/a"}]}]}, "spec.http[0].match[0].uri: expected an object, got the string '/a'"),
        ({"http": [{"match": [{"headers": ["a"]}]}]}, "spec.http[0].match[0].headers: expected an object, got a list"),
        (
            {"http": [{"match": [{"sourceLabels": {"a": 1}}]}]},
            "spec.http[0].match[0].sourceLabels[a]: expected a string, got the number 1; put it in quotes",
        ),
        (
            {"http": [{"match": [{"ignoreUriCase": "yes"}]}]},
            "spec.http[0].match[0].ignoreUriCase: expected true or false, got the string 'yes'",
        ),
        (
            {"http": [{"timeout": 5}]},
            "spec.http[0].timeout: expected a duration such as 5s, 250ms or 1h30m, got the number 5",
        ),
        (
            {"http": [{"timeout": "5 s"}]},
            "spec.http[0].timeout: '5 s' is not a duration; write a number and a unit, such as 5s, 250ms or 1h30m",
        ),
        (
            {"http": [{"redirect": {"derivePort": "X"}}]},
            'spec.http[0].redirect.derivePort: unknown value "X"; allowed: FROM_PROTOCOL_DEFAULT, FROM_REQUEST_PORT',
        ),
        (
            {"http": [{"redirect": {"derivePort": 7}}]},
            "spec.http[0].redirect.derivePort: unknown value 7; allowed: FROM_PROTOCOL_DEFAULT, FROM_REQUEST_PORT",
        ),
        (
            {"http": [{"redirect": {"derivePort": []}}]},
            "spec.http[0].redirect.derivePort: expected one of FROM_PROTOCOL_DEFAULT, FROM_REQUEST_PORT, got a list",
        ),
        (
            {"http": [{"directResponse": {"body": {"bytes": "!"}}}]},
            "spec.http[0].directResponse.body.bytes: expected base64",
        ),
        (
            {"http": [{"mirrorPercentage": {"value": "many"}}]},
            "spec.http[0].mirrorPercentage.value: expected a number, got the string 'many'",
        ),
        (
            {"http": [{"mirrorPercentage": {"value": 10**400}}]},
            "spec.http[0].mirrorPercentage.value: is a whole number beyond all that a float can hold",
        ),
    ],
    ids=str,
)
def test_what_is_wrong_is_said_with_its_path(data: object, said: str) -> None:
    assert problems_of(VirtualService, data) == [said]


def test_all_problems_are_found_and_the_rest_is_read() -> None:
    problems: list[Problem] = []
    route = read_message(
        HttpRoute, {"name": "a", "timeout": "x", "rewrite": {"uri": 1}, "unknown": 1}, "http", problems
    )
    assert route == HttpRoute(name="a", rewrite=route.rewrite if route else None)
    assert [p.path for p in problems] == ["http.timeout", "http.rewrite.uri", "http.unknown"]


def test_null_is_absence() -> None:
    assert problems_of(VirtualService, {"hosts": None, "http": [{"timeout": None, "route": None}]}) == []
    problems: list[Problem] = []
    detection = read_message(OutlierDetection, {"consecutive5xxErrors": None, "interval": "0s"}, "", problems)
    assert detection == OutlierDetection(interval=datetime.timedelta(0))


def test_numbers_are_read_as_in_protobufs_json() -> None:
    problems: list[Problem] = []
    for value in (5, 5.0, "5"):
        detection = read_message(
            OutlierDetection, {"consecutive5xxErrors": value, "maxEjectionPercent": value}, "", problems
        )
        assert detection == OutlierDetection(consecutive_5xx_errors=5, max_ejection_percent=5)
    assert problems == []


def test_keys_of_maps_have_their_type() -> None:
    problems: list[Problem] = []
    peer = read_message(PeerAuthentication, {"portLevelMtls": {"80": {}}}, "", problems)
    assert peer is not None
    assert list(peer.port_level_mtls) == [80]
    assert problems_of(PeerAuthentication, {"portLevelMtls": {"http": {}}}) == [
        "spec.portLevelMtls[http]: as a key: expected a whole number, got the string 'http'"
    ]


def test_a_message_in_a_map_may_be_left_out() -> None:
    problems: list[Problem] = []
    match = read_message(HttpMatchRequest, {"headers": {"x-user": None}}, "", problems)
    assert match == HttpMatchRequest(headers={"x-user": StringMatch()})
    assert problems == []


def test_structs_keep_their_nulls() -> None:
    problems: list[Problem] = []
    plugin = read_message(WasmPlugin, {"pluginConfig": {"a": [1, None, {"b": "c"}]}}, "", problems)
    assert plugin is not None
    assert plugin.plugin_config is not None
    assert plugin.plugin_config.to_dict() == {"a": [1.0, None, {"b": "c"}]}
    assert problems_of(WasmPlugin, {"pluginConfig": {"a": float("inf")}}) == [
        "spec.pluginConfig: inf can't be written in JSON"
    ]


def test_a_name_of_its_own_is_read() -> None:
    problems: list[Problem] = []
    mesh = read_message(MeshConfig, {"meshMTLS": {"minProtocolVersion": "TLSV1_3"}}, "", problems)
    assert mesh is not None
    assert mesh.mesh_mTLS is not None
    assert problems == []


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0s", 0),
        ("1.5s", 1.5),
        ("250ms", 0.25),
        ("1h30m", 5400),
        ("100us", 1e-4),
        ("7µs", 7e-6),
        ("-2s", -2),
        (".5m", 30),
    ],
)
def test_durations_are_read_as_go_writes_them(text: str, seconds: float) -> None:
    assert read_duration(text) == datetime.timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "s", "5", "5 s", "1d", "1s ", "1,5s", "s5", "+", "1ns", "999999999h", "0"])
def test_other_durations_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"duration|microsecond|too long"):
        read_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (1.5, "1.5s"), (-0.25, "-0.250s"), (60, "60s"), (1e-6, "0.000001s")]
)
def test_durations_are_written_in_seconds(seconds: float, text: str) -> None:
    written = write_duration(datetime.timedelta(seconds=seconds))
    assert written == re.sub(r"0+s$", "s", text) if "." in text else text
    assert read_duration(written) == datetime.timedelta(seconds=seconds)


def test_timestamps_are_read_with_their_zone() -> None:
    expected = datetime.datetime(2024, 3, 1, 11, 30, tzinfo=datetime.UTC)
    for text in ("2024-03-01T11:30:00Z", "2024-03-01T12:30:00+01:00", "2024-03-01t11:30:00.000000z"):
        assert read_timestamp(text) == expected
    for text in ("2024-03-01", "2024-03-01T11:30:00", "2024-13-01T11:30:00Z", 5, None):
        with pytest.raises(ValueError, match="expected a time"):
            read_timestamp(text)
