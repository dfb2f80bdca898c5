"""Reflection describes what is served: services with generated modules, and those that come as a set of files."""

from __future__ import annotations

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from grpclib.reflection.v1.reflection_pb2 import ServerReflectionRequest, ServerReflectionResponse

from mesh_pilot.net.rpc import Cardinality, Handler, HealthService, Status, with_reflection
from mesh_pilot.net.rpc.reflection import Descriptors, Reflection
from tests.rpc.rpc_support import Echo, in_thread, serving
from tests.support.reflected import all_methods, reflection

STATUS = "envoy.service.status.v3.ClientStatusDiscoveryService"
OWN = FileDescriptorProto(name="own/a.proto", package="own", syntax="proto3", dependency=["google/protobuf/any.proto"])
OWN.message_type.add(name="Thing").field.add(
    name="body", number=1, type=11, label=1, type_name=".google.protobuf.Any", json_name="body"
)
OWN.service.add(name="Things").method.add(name="Get", input_type=".own.Thing", output_type=".own.Thing")
MORE = FileDescriptorSet(file=[OWN]).SerializeToString()


class Served:
    """Two services of which nothing but the paths is known here."""

    def __mapping__(self) -> dict[str, Handler]:
        paths = (f"/{STATUS}/StreamClientStatus", "/own.Things/Get")
        return {path: Handler(None, Cardinality.STREAM_STREAM, bytes, bytes) for path in paths}


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_a_client_learns_all_services_and_their_messages(version: str) -> None:
    def learn(address: str) -> tuple[list[str], dict[str, tuple[str, str]], list[int], str]:
        with reflection(address, version=version) as client:
            numbers = client.ask(all_extension_numbers_of_type="google.protobuf.FieldOptions")
            of_validation = client.file(
                file_containing_extension={"containing_type": "google.protobuf.FieldOptions", "extension_number": 1071}
            )
            found = list(numbers.all_extension_numbers_response.extension_number)
            return client.services(), all_methods(client), found, of_validation.name

    async with serving(*with_reflection([Served(), HealthService()], lambda: MORE)) as server:
        services, methods, numbers, of_validation = await in_thread(learn, server.addresses[0])
    own = [f"grpc.reflection.{each}.ServerReflection" for each in ("v1", "v1alpha")]
    assert services == [STATUS, "grpc.health.v1.Health", *own, "own.Things"]
    request = "envoy.service.status.v3.ClientStatusRequest"
    assert methods[f"/{STATUS}/StreamClientStatus"][0] == request
    assert methods["/own.Things/Get"] == ("own.Thing", "own.Thing")
    assert 1071 in numbers and of_validation == "validate/validate.proto"


def asked(**what: object) -> ServerReflectionResponse:
    return Reflection(Descriptors([STATUS, "own.Things"], lambda: MORE)).answer(ServerReflectionRequest(**what))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("symbol", "file"),
    [
        ("own.Thing", "own/a.proto"),
        ("own.Thing.body", "own/a.proto"),
        ("own.Things.Get", "own/a.proto"),
        ("google.protobuf.Any", "google/protobuf/any.proto"),
        ("envoy.service.status.v3.ClientConfig.GenericXdsConfig", "envoy/service/status/v3/csds.proto"),
        ("envoy.service.status.v3.ConfigStatus", "envoy/service/status/v3/csds.proto"),
        (f"{STATUS}.FetchClientStatus", "envoy/service/status/v3/csds.proto"),
        ("validate.rules", "validate/validate.proto"),
    ],
)
def test_symbols_of_every_kind_are_found(symbol: str, file: str) -> None:
    (data,) = asked(file_containing_symbol=symbol).file_descriptor_response.file_descriptor_proto
    assert FileDescriptorProto.FromString(data).name == file


@pytest.mark.parametrize(
    ("what", "code"),
    [
        ({"file_containing_symbol": "no.Such"}, Status.NOT_FOUND),
        ({"file_containing_symbol": ""}, Status.NOT_FOUND),
        ({"file_by_filename": "../../etc/passwd"}, Status.NOT_FOUND),
        ({"all_extension_numbers_of_type": "own.Nothing"}, Status.NOT_FOUND),
        ({"file_containing_extension": {"containing_type": "own.Thing", "extension_number": 5}}, Status.NOT_FOUND),
        ({"file_containing_extension": {"containing_type": "x", "extension_number": -1}}, Status.NOT_FOUND),
        ({}, Status.INVALID_ARGUMENT),
    ],
)
def test_what_is_unknown_is_an_error_of_that_request(what: dict[str, object], code: Status) -> None:
    assert asked(**what).error_response.error_code == code.value


def test_a_message_without_extensions_has_none() -> None:
    numbers = asked(all_extension_numbers_of_type="own.Thing").all_extension_numbers_response
    assert (numbers.base_type_name, list(numbers.extension_number)) == ("own.Thing", [])


def test_a_service_without_descriptor_is_listed() -> None:
    listed = with_reflection([Echo()])[-1]
    assert isinstance(listed, Reflection)
    response = listed.answer(ServerReflectionRequest(list_services=""))
    assert "test.Echo" in [each.name for each in response.list_services_response.service]
