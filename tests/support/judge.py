"""An authorization server over gRPC (Envoy's ``envoy.service.auth.v3``)."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import attrs
import grpc
from envoy.service.auth.v3 import external_auth_pb2 as auth_pb2
from google.rpc import status_pb2


@attrs.define
class Judge:
    """An authorization server over gRPC: who comes from where it is told, or is a friend, may."""

    port: int
    asked: list[auth_pb2.CheckRequest] = attrs.field(factory=list)
    everybody: bool = False

    def check(self, request: auth_pb2.CheckRequest, context: grpc.ServicerContext) -> auth_pb2.CheckResponse:
        self.asked.append(request)
        may = self.everybody or request.attributes.request.http.headers.get("x-user") == "friend"
        return auth_pb2.CheckResponse(status=status_pb2.Status(code=0 if may else 7))


@contextmanager
def judge(port: int) -> Iterator[Judge]:
    server = grpc.server(ThreadPoolExecutor(2))
    held = Judge(port)
    handler = grpc.unary_unary_rpc_method_handler(
        held.check,
        request_deserializer=auth_pb2.CheckRequest.FromString,
        response_serializer=auth_pb2.CheckResponse.SerializeToString,
    )
    handlers = grpc.method_handlers_generic_handler("envoy.service.auth.v3.Authorization", {"Check": handler})
    server.add_generic_rpc_handlers((handlers,))
    assert server.add_insecure_port(f"127.0.0.1:{port}") == port
    server.start()
    try:
        yield held
    finally:
        server.stop(None).wait()
