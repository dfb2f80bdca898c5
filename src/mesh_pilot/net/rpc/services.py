"""gRPC's health service (grpc.health.v1), for load balancers and probes.

grpclib has its messages and method table. Its own implementation waits on asyncio, so this one waits on Trio.
"""

from __future__ import annotations

import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from grpclib.health.v1.health_grpc import HealthBase
from grpclib.health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from mesh_pilot.net.rpc.server_stream import ServerStream

__all__ = ["HealthService"]

_HealthStream = ServerStream[HealthCheckRequest, HealthCheckResponse]

_SERVING = HealthCheckResponse.SERVING
_NOT_SERVING = HealthCheckResponse.NOT_SERVING
_UNKNOWN = HealthCheckResponse.SERVICE_UNKNOWN


class HealthService(HealthBase):
    """grpc.health.v1: serving states set by ``set("", True)``, for the whole server (the empty name) or one service.

    The whole server is serving until set otherwise.
    """

    def __init__(self) -> None:
        self._serving = {"": True}
        self._changed = trio.Event()

    def __repr__(self) -> str:
        return f"<Health {self._serving}>"

    def set(self, service: str, serving: bool) -> None:
        """Set a serving state and notify watchers."""
        if self._serving.get(service) is not serving:
            self._serving[service] = serving
            self._changed.set()
            self._changed = trio.Event()

    def _status(self, service: str) -> HealthCheckResponse.ServingStatus.ValueType:
        serving = self._serving.get(service)
        return _UNKNOWN if serving is None else _SERVING if serving else _NOT_SERVING

    async def Check(self, stream: _HealthStream) -> None:  # type: ignore[override]
        """The status now; NOT_FOUND for a service that was never set."""
        request = await stream.recv_message()
        assert request is not None
        status = self._status(request.service)
        if status == _UNKNOWN:
            raise GRPCError(Status.NOT_FOUND, f"nothing is known of service {request.service!r}")
        await stream.send_message(HealthCheckResponse(status=status))

    async def Watch(self, stream: _HealthStream) -> None:  # type: ignore[override]
        """The status now, and whenever it changes; SERVICE_UNKNOWN while the service was never set."""
        request = await stream.recv_message()
        assert request is not None
        sent = None
        while True:
            changed = self._changed
            status = self._status(request.service)
            if status != sent:
                await stream.send_message(HealthCheckResponse(status=status))
                sent = status
            else:
                await changed.wait()
