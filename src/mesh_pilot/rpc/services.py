"""gRPC's own services: health (grpc.health.v1), for load balancers and probes, and server reflection, for grpcurl.

grpclib has their messages and method tables. Its health service waits on asyncio, so this one waits on Trio; its
reflection services answer from protobuf's default descriptor pool, which does not hold betterproto2's messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from grpclib.health.v1.health_grpc import HealthBase
from grpclib.health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpclib.reflection._deprecated import ServerReflection as ServerReflectionV1Alpha
from grpclib.reflection.service import ServerReflection

from mesh_pilot.rpc.server import Servable
from mesh_pilot.rpc.server_stream import ServerStream

__all__ = ["HealthService", "with_reflection"]

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


def with_reflection(services: Sequence[Servable]) -> list[Servable]:
    """``services``, and the two reflection services that list every service their tables name."""
    names = sorted({path.split("/")[1] for service in services for path in service.__mapping__()})
    reflections = (ServerReflection(_service_names=names), ServerReflectionV1Alpha(_service_names=names))
    return [*services, *(cast(Servable, reflection) for reflection in reflections)]
