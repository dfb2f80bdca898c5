"""Objects and encoded messages to configs."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from mesh_pilot.api.istio.networking.v1alpha3 import ServiceEntry, ServicePort, VirtualService
from mesh_pilot.istio.kinds import KINDS, KindError, lookup
from mesh_pilot.istio.meaning.descriptors import descriptor_of
from mesh_pilot.istio.reading.decode import Metadata, decode, decode_binary, decode_document
from mesh_pilot.istio.reading.decode_proto import parse_message
from mesh_pilot.istio.reading.yaml import Document, load
from mesh_pilot.model.config import EPOCH, ConfigError, ConfigKey, Origin, Problem, Severity
from tests.support.protos import compiled, message_classes, variants

ORIGIN = Origin("files", "shop/a.yaml", 3)
GOLDEN = sorted((Path(__file__).parents[1] / "golden").glob("*/config.yaml"))
GOOD: dict[str, Any] = {
    "apiVersion": "networking.istio.io/v1",
    "kind": "ServiceEntry",
    "metadata": {"name": "a", "namespace": "shop"},
    "spec": {"hosts": ["a.b"], "ports": [{"number": 80, "name": "http", "protocol": "HTTP"}]},
}


def error_of(document: dict[str, Any], **options: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        decode(document, origin=ORIGIN, **options)
    return caught.value


def with_metadata(**metadata: Any) -> dict[str, Any]:
    return {**GOOD, "metadata": {**GOOD["metadata"], **metadata}}


def test_an_object_becomes_a_config() -> None:
    labels, annotations = {"team": "a"}, {"note": "b"}
    config = decode(
        with_metadata(labels=labels, annotations=annotations, creationTimestamp="2024-03-01T00:00:00Z", uid="x"),
        origin=ORIGIN,
    )
    assert config.key == ConfigKey("ServiceEntry", "shop", "a")
    assert config.spec == ServiceEntry(hosts=["a.b"], ports=[ServicePort(number=80, name="http", protocol="HTTP")])
    assert (config.labels, config.annotations) == (labels, annotations)
    assert config.created == datetime(2024, 3, 1, tzinfo=UTC)
    assert config.api_version == "networking.istio.io/v1"
    assert config.origin == ORIGIN
    assert config.warnings == ()


def test_what_is_not_said_has_defaults() -> None:
    config = decode({**GOOD, "metadata": {"name": "a"}}, origin=ORIGIN, default_namespace="other")
    assert config.namespace == "other"
    assert config.created == EPOCH


def test_an_absent_spec_is_an_empty_one() -> None:
    policy = {"apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy", "metadata": {"name": "deny"}}
    assert decode(policy, origin=ORIGIN).spec == decode({**policy, "spec": {}, "status": {"a": 1}}, origin=ORIGIN).spec


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({**GOOD, "apiVersion": ""}, "apiVersion: must be a non-empty string"),
        ({k: v for k, v in GOOD.items() if k != "kind"}, "kind: is missing"),
        ({**GOOD, "kind": 5}, "kind: must be a non-empty string"),
        ({**GOOD, "apiVersion": "v1", "kind": "Service"}, "apiVersion: v1 Service is not an Istio kind"),
        (
            {**GOOD, "kind": "ServiceEntries"},
            "apiVersion: networking.istio.io has no kind ServiceEntries; did you mean ServiceEntry?",
        ),
        (
            {**GOOD, "apiVersion": "networking.istio.io/v2"},
            "apiVersion: ServiceEntry has no version v2; served: networking.istio.io/v1alpha3, "
            "networking.istio.io/v1beta1, networking.istio.io/v1",
        ),
        ({**GOOD, "specs": {}}, 'specs: unknown field "specs"; did you mean spec?'),
        ({**GOOD, "metadata": None}, "metadata: is missing"),
        ({**GOOD, "metadata": []}, "metadata: expected an object, got a list"),
        ({**GOOD, "metadata": {}}, "metadata.name: is missing"),
        (with_metadata(name=None), "metadata.name: is missing"),
        (with_metadata(name=""), "metadata.name: is missing"),
        (with_metadata(namspace="a"), 'metadata.namspace: unknown field "namspace"; did you mean namespace?'),
        (with_metadata(name=5), "metadata.name: expected a string, got the number 5; put it in quotes"),
        (with_metadata(labels={"a": 1}), "metadata.labels[a]: expected a string, got the number 1; put it in quotes"),
        (with_metadata(annotations=[]), "metadata.annotations: expected an object, got a list"),
        (
            with_metadata(creationTimestamp="now"),
            "metadata.creationTimestamp: expected a time such as 2024-03-01T12:00:00Z, got the string 'now'",
        ),
        ({**GOOD, "spec": []}, "spec: expected an object, got a list"),
    ],
    ids=lambda value: value[:60] if isinstance(value, str) else "",
)
def test_an_object_that_is_none_is_refused_with_the_reason(document: dict[str, Any], said: str) -> None:
    assert said in [str(problem) for problem in error_of(document).problems]


@pytest.mark.parametrize("name", ["A", "a_b", "-a", "a-", "a..b", "a" * 254])
def test_names_are_those_of_kubernetes(name: str) -> None:
    assert [p.path for p in error_of(with_metadata(name=name)).problems] == ["metadata.name"]
    if "." not in name and len(name) < 64:
        assert [p.path for p in error_of(with_metadata(namespace=name)).problems] == ["metadata.namespace"]


def test_an_error_names_the_object_where_it_can() -> None:
    error = error_of({**GOOD, "spec": {"hosts": []}})
    assert error.key == ConfigKey("ServiceEntry", "shop", "a")
    assert str(error) == "shop/a.yaml:3: ServiceEntry/shop/a: spec.hosts: is missing: at least one host is required"
    assert error_of({**GOOD, "metadata": {}}).key is None


def test_lines_are_those_of_the_fields() -> None:
    text = """
# first
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata:
  name: a
spec:
  host: [a.b]
  ports:
  - {number: 0, name: b}
"""
    (document,) = load(text, ORIGIN)
    assert isinstance(document, Document)
    with pytest.raises(ConfigError) as caught:
        decode_document(document, origin=ORIGIN)
    assert caught.value.origin.line == 3
    assert [(p.path, p.line) for p in caught.value.problems] == [
        ("spec.host", 8),
        ("spec.hosts", 7),
        ("spec.ports[0].number", 10),
    ]


def test_warnings_stay_with_the_config() -> None:
    spec = {"hosts": ["a.b"], "http": [{"mirrorPercent": 5, "route": [{"destination": {"host": "a"}}]}]}
    config = decode({**GOOD, "kind": "VirtualService", "spec": spec}, origin=ORIGIN)
    (warning,) = config.warnings
    assert warning.severity is Severity.WARNING
    assert str(warning) == "spec.http[0].mirrorPercent: is deprecated: use mirrorPercentage"


@pytest.mark.parametrize("kind", KINDS.values(), ids=str)
def test_every_version_of_a_kind_is_served(kind: Any) -> None:
    for api_version in kind.api_versions:
        assert lookup(api_version, kind.written) is kind
    with pytest.raises(KindError, match="has no version v9"):
        lookup(f"{kind.group}/v9" if kind.group else "v9", kind.written)


def test_other_groups_are_not_ours() -> None:
    assert lookup("v1", "Service") is None
    assert lookup("v1", "Pod") is None
    with pytest.raises(KindError, match="known: AuthorizationPolicy, PeerAuthentication, RequestAuthentication"):
        lookup("security.istio.io/v1", "VirtualService")


def test_type_urls_name_the_messages_of_the_protos(tmp_path_factory: pytest.TempPathFactory) -> None:
    names = message_classes(compiled(tmp_path_factory.getbasetemp()))
    for kind in KINDS.values():
        assert kind.message_name in names
        assert kind.type_url == f"type.googleapis.com/{kind.message_name}"


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.parent.name)
def test_golden_configs_are_good(path: Path) -> None:
    for document in load(path.read_text(encoding="utf-8"), Origin("files", str(path))):
        assert isinstance(document, Document)
        if lookup(str(document.data["apiVersion"]), str(document.data["kind"])) is None:
            continue
        config = decode_document(document, origin=ORIGIN)
        again = decode_binary(
            KINDS[config.key.kind],
            bytes(config.spec),
            Metadata(config.name, config.namespace, config.created, config.labels, config.annotations),
            origin=ORIGIN,
        )
        assert again == config


def test_there_are_golden_configs() -> None:
    assert len(GOLDEN) > 70


class TestBinary:
    """`decode_binary`, and `wire.parse` below it."""

    KIND = KINDS["VirtualService"]

    def decode(self, body: bytes, name: str = "a") -> Any:
        return decode_binary(self.KIND, body, Metadata(name, "shop"), origin=Origin("mcp"))

    def test_rules_hold_as_for_text(self) -> None:
        with pytest.raises(ConfigError) as caught:
            self.decode(bytes(VirtualService(hosts=["a b"])), name="A")
        assert [p.path for p in caught.value.problems] == ["metadata.name", "spec.hosts[0]", "spec"]

    @pytest.mark.parametrize(
        ("body", "said"),
        [
            (b"\x0a\x05a.b", "spec is cut short"),
            (b"\x0a\x02\xff\xfe", "spec.hosts[0] is not UTF-8"),
            (b"\x08\x01", "spec.hosts[0] has wire type 0, not 2"),
            (b"\x0b", "spec has a field of wire type 3"),
            (b"\x0a", "spec is cut short"),
            (b"\xff" * 11, "more than 64 bits"),
            (b"\x1a\x03\x32\x04\x08", "spec.http[0] is cut short"),
            (b"\x1a\x06\x32\x04\x12\x02\x00\x00", "spec.http[0].timeout.nanos has wire type 2, not 0"),
        ],
    )
    def test_what_is_no_message_is_refused(self, body: bytes, said: str) -> None:
        with pytest.raises(ConfigError) as caught:
            self.decode(body)
        assert "is not an encoded istio.networking.v1alpha3.VirtualService" in str(caught.value)
        assert said in str(caught.value)

    def test_unknown_fields_are_a_warning(self) -> None:
        good = bytes(VirtualService(hosts=["a.b"], http=[])) + b"\x1a\x0a\x12\x08\x0a\x06\x0a\x04b.ns"
        config = self.decode(good + b"\xf8\x06\x01")
        assert [(p.path, p.severity) for p in config.warnings] == [("spec", Severity.WARNING)]
        assert "field number 111" in config.warnings[0].reason

    def test_two_members_of_a_oneof_are_refused(self) -> None:
        match = b"\x0a\x06\x0a\x01a\x12\x01b"
        body = b"\x0a\x03a.b\x1a" + bytes([len(match) + 2]) + b"\x0a" + bytes([len(match)]) + match
        with pytest.raises(ConfigError, match="only one of exact and prefix may be set"):
            self.decode(body)

    def test_unknown_enum_values_are_refused(self) -> None:
        with pytest.raises(ConfigError, match="unknown value 77; allowed: NONE, STATIC"):
            decode_binary(KINDS["ServiceEntry"], b"\x28\x4d", Metadata("a", "shop"), origin=Origin("mcp"))

    def test_every_message_that_protobuf_writes_is_read(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        by_name = {kind.message_name: kind.message for kind in KINDS.values()}
        for name, theirs in message_classes(compiled(tmp_path_factory.getbasetemp())).items():
            if name in by_name:
                for message in variants(theirs):
                    problems: list[Problem] = []
                    body = message.SerializeToString()
                    assert parse_message(by_name[name], body, "spec", problems) == by_name[name].parse(body)
                    assert all(p.reason.startswith(("is deprecated: ", "has no effect: ")) for p in problems)
                    assert descriptor_of(by_name[name]).message is by_name[name]
