"""Health and generated services on our server; generated stubs on our channel."""

from __future__ import annotations

import grpc
import pytest
from grpclib.health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from mesh_pilot.api.istio.v1.auth import (
    IstioCertificateRequest,
    IstioCertificateResponse,
    IstioCertificateServiceBase,
    IstioCertificateServiceStub,
)
from mesh_pilot.net.rpc import Cardinality, GRPCError, HealthService, Status, open_channel
from tests.rpc.rpc_support import in_thread, serving


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
