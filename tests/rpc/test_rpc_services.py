"""Health, reflection and generated services on our server; generated stubs on our channel."""

from __future__ import annotations

import grpc
import pytest
from envoy.service.discovery.v3 import ads_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpclib.health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpclib.reflection.v1.reflection_pb2 import ServerReflectionRequest, ServerReflectionResponse
from grpclib.reflection.v1alpha.reflection_pb2 import ServerReflectionRequest as AlphaRequest
from grpclib.reflection.v1alpha.reflection_pb2 import ServerReflectionResponse as AlphaResponse

from mesh_pilot.api.istio.v1.auth import (
    IstioCertificateRequest,
    IstioCertificateResponse,
    IstioCertificateServiceBase,
    IstioCertificateServiceStub,
)
from mesh_pilot.rpc import Cardinality, GRPCError, Handler, HealthService, Status, open_channel, with_reflection
from tests.rpc.rpc_support import Echo, in_thread, serving

ADS = "envoy.service.discovery.v3.AggregatedDiscoveryService"


class Ads:
    def __mapping__(self) -> dict[str, Handler]:
        path = f"/{ADS}/StreamAggregatedResources"
        return {path: Handler(None, Cardinality.STREAM_STREAM, bytes, bytes)}


class Authority(IstioCertificateServiceBase):
    async def create_certificate(self, request: IstioCertificateRequest) -> IstioCertificateResponse:
        if not request.csr:
            raise GRPCError(Status.INVALID_ARGUMENT, "no csr")
        return IstioCertificateResponse(cert_chain=[request.csr, "root"])


async def test_a_generated_service_answers_its_generated_stub() -> None:
    async with serving(Authority()) as server, open_channel(server.addresses[0]) as channel:
        stub = IstioCertificateServiceStub(channel)
        reply = await stub.create_certificate(IstioCertificateRequest(csr="leaf"))
        assert reply.cert_chain == ["leaf", "root"]
        with pytest.raises(GRPCError, match="no csr"):
            await stub.create_certificate(IstioCertificateRequest())


async def test_health_is_checked_by_grpcio() -> None:
    health = HealthService()

    def check(address: str) -> HealthCheckResponse:
        with grpc.insecure_channel(address) as channel:
            method = channel.unary_unary(
                "/grpc.health.v1.Health/Check", HealthCheckRequest.SerializeToString, HealthCheckResponse.FromString
            )
            reply: HealthCheckResponse = method(HealthCheckRequest(), timeout=60)
            return reply

    async with serving(health) as server:
        assert (await in_thread(check, server.addresses[0])).status == HealthCheckResponse.SERVING
        health.set("", False)
        assert (await in_thread(check, server.addresses[0])).status == HealthCheckResponse.NOT_SERVING


async def test_health_of_an_unknown_service_is_not_found() -> None:
    async with serving(HealthService()) as server, open_channel(server.addresses[0]) as channel:
        with pytest.raises(GRPCError) as caught:
            await channel.unary(
                "/grpc.health.v1.Health/Check", HealthCheckRequest(service="nobody"), HealthCheckResponse
            )
        assert caught.value.status is Status.NOT_FOUND


async def test_health_is_watched() -> None:
    health = HealthService()
    async with serving(health) as server, open_channel(server.addresses[0]) as channel:
        call = channel.request(
            "/grpc.health.v1.Health/Watch", Cardinality.UNARY_STREAM, HealthCheckRequest, HealthCheckResponse
        )
        async with call:
            await call.send_message(HealthCheckRequest(service="late"))
            for serving_now, expected in [
                (None, HealthCheckResponse.SERVICE_UNKNOWN),
                (True, HealthCheckResponse.SERVING),
                (False, HealthCheckResponse.NOT_SERVING),
            ]:
                if serving_now is not None:
                    health.set("other", serving_now)
                    health.set("late", serving_now)
                reply = await call.recv_message()
                assert reply is not None
                assert reply.status == expected


async def test_reflection_lists_services_and_describes_xds() -> None:
    assert ads_pb2.DESCRIPTOR is not None

    def ask(address: str) -> list[ServerReflectionResponse]:
        with grpc.insecure_channel(address) as channel:
            method = channel.stream_stream(
                "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
                ServerReflectionRequest.SerializeToString,
                ServerReflectionResponse.FromString,
            )
            requests = [
                ServerReflectionRequest(list_services=""),
                ServerReflectionRequest(file_containing_symbol=ADS),
                ServerReflectionRequest(file_containing_symbol="no.Such"),
            ]
            return list(method(iter(requests), timeout=60))

    async with serving(*with_reflection([Ads(), HealthService(), Echo()])) as server:
        services, described, unknown = await in_thread(ask, server.addresses[0])
        names = [service.name for service in services.list_services_response.service]
        assert names == [ADS, "grpc.health.v1.Health", "test.Echo"]
        file = FileDescriptorProto.FromString(described.file_descriptor_response.file_descriptor_proto[0])
        assert [service.name for service in file.service] == ["AggregatedDiscoveryService"]
        assert unknown.error_response.error_code == Status.NOT_FOUND.value


async def test_reflection_answers_the_alpha_protocol_too() -> None:
    async with serving(*with_reflection([HealthService()])) as server, open_channel(server.addresses[0]) as channel:
        path = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
        async with channel.request(path, Cardinality.STREAM_STREAM, AlphaRequest, AlphaResponse) as call:
            await call.send_message(AlphaRequest(list_services=""), end=True)
            reply = await call.recv_message()
            assert reply is not None
            assert [each.name for each in reply.list_services_response.service] == ["grpc.health.v1.Health"]
            assert await call.recv_message() is None
