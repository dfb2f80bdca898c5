"""Dumping a message: what Google's protobuf writes as JSON, and what our reader reads back as the same message."""

from __future__ import annotations

import pytest
from google.protobuf import json_format

from mesh_pilot.api.istio.mesh.v1alpha1 import MeshConfig, MeshConfigTlsConfig
from mesh_pilot.istio.kinds import KINDS
from mesh_pilot.istio.meaning.descriptors import descriptor_of
from mesh_pilot.istio.reading.decode import decode
from mesh_pilot.istio.reading.decode_json import read_message
from mesh_pilot.istio.reading.encode_json import to_json
from mesh_pilot.model.config import Config, ConfigKey, Origin, Problem, Severity
from mesh_pilot.model.events import MeshConfigValue
from mesh_pilot.ops.values.configs import show_config
from mesh_pilot.sources.mcp.translate import decode_item
from mesh_pilot.xds.mcp.collections import MESH_CONFIG
from mesh_pilot.xds.mcp.messages import McpResource
from tests.support.protos import compiled, message_classes, our_class, variants

ORIGIN = Origin("test")
SPOKEN = ("istio.networking.", "istio.security.", "istio.telemetry.", "istio.extensions.", "istio.mesh.")
"""Packages of what people write."""


def test_every_field_of_every_message_is_read_back_as_it_was_dumped(tmp_path_factory: pytest.TempPathFactory) -> None:
    dumped: set[tuple[str, str]] = set()
    for name, theirs in message_classes(compiled(tmp_path_factory.getbasetemp())).items():
        if not name.startswith(SPOKEN):
            continue
        ours = our_class(name)
        for message in variants(theirs):
            original = ours.parse(message.SerializeToString())
            data = to_json(original)
            assert json_format.ParseDict(data, theirs()) == message, name
            problems: list[Problem] = []
            assert read_message(ours, data, "", problems) == original, name
            assert [problem for problem in problems if problem.severity is Severity.ERROR] == [], name
            dumped |= {(name, field) for field in data}
        expected = {(name, field.json_name) for field in descriptor_of(ours).fields}
        assert expected <= dumped, "a field that no variant sets"


def test_a_dumped_object_decodes_to_the_same_object() -> None:
    document = {
        "apiVersion": "networking.istio.io/v1",
        "kind": "DestinationRule",
        "metadata": {"name": "reviews", "namespace": "shop"},
        "spec": {
            "host": "reviews.test",
            "trafficPolicy": {"outlierDetection": {"consecutive5xxErrors": 0, "interval": "1.500s"}},
        },
    }
    config = decode(document, origin=ORIGIN)
    shown = show_config(config)
    assert isinstance(shown, dict)
    del shown["origin"]
    assert shown == {**document, "spec": {**document["spec"], "trafficPolicy": shown["spec"]["trafficPolicy"]}}  # type: ignore
    assert decode(shown, origin=ORIGIN) == config
    assert "consecutive5xxErrors" in str(shown)


def test_mesh_settings_with_odd_names_are_taken_from_a_server_of_configuration() -> None:
    sent = MeshConfig(mesh_mTLS=MeshConfigTlsConfig(cipher_suites=["ECDHE-RSA-AES256-GCM-SHA384"]))
    resource = McpResource("mesh", type_url=MESH_CONFIG.type_url, body=bytes(sent))
    value = decode_item(MESH_CONFIG, resource, ORIGIN)
    assert isinstance(value, MeshConfigValue)
    assert value.config.mesh_mTLS == sent.mesh_mTLS


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_an_empty_spec_is_an_empty_object(kind: str) -> None:
    config = Config(key=ConfigKey(kind, "shop", "x"), spec=KINDS[kind].message(), origin=ORIGIN)
    assert show_config(config)["spec"] == {}  # type: ignore[index, call-overload]
