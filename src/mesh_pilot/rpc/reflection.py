"""Server reflection (v1 and v1alpha), which lets grpcurl and its kin ask what a server serves.

grpclib's services do the answering, from protobuf's default descriptor pool; messages of betterproto2 are not in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from grpclib.reflection._deprecated import ServerReflection as ServerReflectionV1Alpha
from grpclib.reflection.service import ServerReflection

from mesh_pilot.rpc.server import Service

__all__ = ["with_reflection"]


def with_reflection(services: Sequence[Service]) -> list[Service]:
    """``services``, and the two reflection services that list every service their tables name."""
    names = sorted({path.split("/")[1] for service in services for path in service.__mapping__()})
    reflections = (ServerReflection(_service_names=names), ServerReflectionV1Alpha(_service_names=names))
    return [*services, *(cast(Service, reflection) for reflection in reflections)]
