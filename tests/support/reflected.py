"""A client of gRPC reflection as grpcurl is one: from the list of services to all messages of their methods."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from grpclib.reflection.v1 import reflection_pb2 as v1
from grpclib.reflection.v1alpha import reflection_pb2 as v1alpha

MESSAGES: dict[str, Any] = {"v1": v1, "v1alpha": v1alpha}


class ReflectionClient:
    """Asks one server; blocks. State: the files it was sent, by name."""

    def __init__(self, channel: grpc.Channel, version: str = "v1") -> None:
        self._messages = MESSAGES[version]
        self._method = channel.stream_stream(
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
            self._messages.ServerReflectionRequest.SerializeToString,
            self._messages.ServerReflectionResponse.FromString,
        )
        self.files: dict[str, FileDescriptorProto] = {}

    def ask(self, **what: Any) -> Any:
        """The response to a request with this one field."""
        request = self._messages.ServerReflectionRequest(host="h", **what)
        (response,) = self._method(iter([request]), timeout=60)
        assert response.original_request == request and response.valid_host == "h"
        return response

    def services(self) -> list[str]:
        return [each.name for each in self.ask(list_services="").list_services_response.service]

    def file(self, **what: Any) -> FileDescriptorProto:
        """The file that answers, taken in with all that it imports. Raises LookupError."""
        response = self.ask(**what)
        if response.HasField("error_response"):
            raise LookupError(f"{what}: {response.error_response.error_message}")
        (data,) = response.file_descriptor_response.file_descriptor_proto
        file = FileDescriptorProto.FromString(data)
        self.files[file.name] = file
        for name in file.dependency:
            if name not in self.files:
                self.file(file_by_filename=name)
        return file

    def described(self, service: str) -> ServiceDescriptor:
        """The descriptor of a service, made of nothing but what the server sends. Raises LookupError."""
        self.file(file_containing_symbol=service)
        pool, added = DescriptorPool(), set[str]()

        def add(name: str) -> None:
            if name not in added:
                added.add(name)
                for dependency in self.files[name].dependency:
                    add(dependency)
                pool.Add(self.files[name])

        for name in self.files:
            add(name)
        return pool.FindServiceByName(service)


@contextmanager
def reflection(
    address: str, credentials: grpc.ChannelCredentials | None = None, *, version: str = "v1"
) -> Iterator[ReflectionClient]:
    with (
        grpc.insecure_channel(address) if credentials is None else grpc.secure_channel(address, credentials)
    ) as channel:
        yield ReflectionClient(channel, version)


def all_methods(client: ReflectionClient) -> dict[str, tuple[str, str]]:
    """Each method of each service that is listed, with the full names of its messages. Raises LookupError."""
    return {
        f"/{service}/{method.name}": (method.input_type.full_name, method.output_type.full_name)
        for service in client.services()
        for method in client.described(service).methods
    }
