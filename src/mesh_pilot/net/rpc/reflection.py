"""gRPC server reflection, v1 and v1alpha: clients such as grpcurl learn every service that is served, and its messages.

grpclib's own answers from protobuf's default pool only, and that holds neither the messages of betterproto2 nor the
files that nothing has imported. Here a descriptor is looked for in the default pool, to which the packages of the
services are added from the generated modules of their names, and then in a set of files that the caller brings.

Source: "GRPC Server Reflection Protocol" and the comments of ``reflection.proto``.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, TypeVar, cast

from google.protobuf import descriptor_pool
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from grpclib.const import Cardinality, Handler, Status
from grpclib.reflection.v1.reflection_pb2 import ServerReflectionRequest, ServerReflectionResponse
from grpclib.reflection.v1alpha import reflection_pb2 as _v1alpha

from mesh_pilot.net.rpc.server import Servable
from mesh_pilot.net.rpc.server_stream import ServerStream

__all__ = ["Descriptors", "with_reflection"]

VERSIONS = ("grpc.reflection.v1", _v1alpha.DESCRIPTOR.package)
"""Packages of the service. The messages of both have the same fields with the same numbers."""

_Pool = Any
"""A pool of descriptors, whose methods have no annotations that hold."""

_T = TypeVar("_T")
_Stream = ServerStream[ServerReflectionRequest, ServerReflectionResponse]


class Descriptors:
    """The files of some services and of all that they need, from the default pool and from ``more``, which returns an
    encoded ``FileDescriptorSet``. Mutable state: none, but the pools are filled at the first question."""

    def __init__(self, services: Iterable[str], more: Callable[[], bytes] = bytes) -> None:
        self.services = tuple(sorted(services))
        self._more = more

    @cached_property
    def _pools(self) -> tuple[_Pool, ...]:
        default: _Pool = descriptor_pool.Default()
        for service in self.services:
            if _found(default.FindServiceByName, service) is None:
                _import_package(service.rpartition(".")[0])
        return default, _pool(FileDescriptorSet.FromString(self._more()).file)

    def file(self, name: str) -> FileDescriptor | None:
        """The file of this name."""
        return self._first(lambda pool: pool.FindFileByName(name))

    def of_symbol(self, symbol: str) -> FileDescriptor | None:
        """The file that has a message, enum, service, method, field or extension of this full name."""
        for name in (symbol, symbol.rpartition(".")[0]):  # a method's or a field's parent
            if (found := self._first(partial(_file_of_symbol, name=name))) is not None:
                return found
        return None

    def of_extension(self, message: str, number: int) -> FileDescriptor | None:
        """The file that has the extension of a message with this number."""
        return self._first(lambda pool: pool.FindExtensionByNumber(pool.FindMessageTypeByName(message), number).file)

    def extension_numbers(self, message: str) -> tuple[int, ...] | None:
        """The numbers of all extensions of a message; None for one that is not known."""
        numbers: set[int] = set()
        is_known = False
        for pool in self._pools:
            if (found := _found(pool.FindMessageTypeByName, message)) is not None:
                is_known = True
                numbers.update(each.number for each in pool.FindAllExtensions(found))
        return tuple(sorted(numbers)) if is_known else None

    def _first(self, find: Callable[[_Pool], FileDescriptor]) -> FileDescriptor | None:
        return next((found for pool in self._pools if (found := _found(find, pool)) is not None), None)


def _file_of_symbol(pool: _Pool, name: str) -> FileDescriptor:
    found: FileDescriptor = pool.FindFileContainingSymbol(name)
    return found


def _found(find: Callable[[Any], _T], what: object) -> _T | None:
    try:
        return find(what)
    except KeyError:
        return None


def _import_package(package: str) -> None:
    """Import the generated modules of a package, if there are any: that adds their files to the default pool."""
    try:
        path = importlib.import_module(package).__path__
    except (ImportError, ValueError):
        return
    for module in pkgutil.iter_modules(path):
        if module.name.endswith("_pb2"):
            importlib.import_module(f"{package}.{module.name}")


def _pool(files: Iterable[FileDescriptorProto]) -> _Pool:
    """A pool of these files and those of protobuf that they import."""
    pool: _Pool = descriptor_pool.DescriptorPool()
    added: set[str] = set()
    given = {file.name: file for file in files}

    def add(name: str) -> None:
        if name in added:
            return
        added.add(name)
        file = given.get(name) or _generated(name)
        for dependency in file.dependency:
            add(dependency)
        pool.Add(file)

    for name in given:
        add(name)
    return pool


def _generated(name: str) -> FileDescriptorProto:
    module = importlib.import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2")
    return FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)


class Reflection:
    """The service, in both versions. Without state."""

    def __init__(self, descriptors: Descriptors) -> None:
        self._descriptors = descriptors

    def __mapping__(self) -> Mapping[str, Handler]:
        kinds = (Cardinality.STREAM_STREAM, ServerReflectionRequest, ServerReflectionResponse)
        handler = Handler(self._serve, *kinds)
        return {f"/{version}.ServerReflection/ServerReflectionInfo": handler for version in VERSIONS}

    async def _serve(self, stream: _Stream) -> None:
        while (request := await stream.recv_message()) is not None:
            await stream.send_message(self.answer(request))

    def answer(self, request: ServerReflectionRequest) -> ServerReflectionResponse:
        """The response to a request; what is unknown is NOT_FOUND, a request for nothing INVALID_ARGUMENT."""
        response = ServerReflectionResponse(valid_host=request.host, original_request=request)
        descriptors = self._descriptors
        match request.WhichOneof("message_request"):
            case "list_services":
                for name in descriptors.services:
                    response.list_services_response.service.add(name=name)
                return response
            case "file_by_filename":
                what, file = request.file_by_filename, descriptors.file(request.file_by_filename)
            case "file_containing_symbol":
                what, file = request.file_containing_symbol, descriptors.of_symbol(request.file_containing_symbol)
            case "file_containing_extension":
                asked = request.file_containing_extension
                what = f"{asked.containing_type} {asked.extension_number}"
                file = descriptors.of_extension(asked.containing_type, asked.extension_number)
            case "all_extension_numbers_of_type":
                what, file = request.all_extension_numbers_of_type, None
                numbers = descriptors.extension_numbers(what)
                if numbers is not None:
                    response.all_extension_numbers_response.base_type_name = what
                    response.all_extension_numbers_response.extension_number.extend(numbers)
                    return response
            case _:
                response.error_response.error_code = Status.INVALID_ARGUMENT.value
                response.error_response.error_message = "the request asks for nothing"
                return response
        if file is None:
            response.error_response.error_code = Status.NOT_FOUND.value
            response.error_response.error_message = f"not found: {what[:200]}"
        else:
            response.file_descriptor_response.file_descriptor_proto.append(file.serialized_pb)
        return response


def with_reflection(services: Sequence[Servable], more: Callable[[], bytes] = bytes) -> list[Servable]:
    """``services``, and reflection in both versions, which describes all of them and itself.

    ``more`` returns an encoded ``FileDescriptorSet`` with the files of services that have no generated module of
    protobuf; it is called at the first question for a descriptor.
    """
    named = [path for service in services for path in service.__mapping__()]
    names = {path.split("/")[1] for path in named} | {f"{version}.ServerReflection" for version in VERSIONS}
    return [*services, cast(Servable, Reflection(Descriptors(names, more)))]
