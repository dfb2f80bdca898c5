"""Fault injection (``VirtualService.http.fault``): routes have the faults; they have no effect without the filter.

Rules: Istio's HTTPFaultInjection reference; Envoy's fault filter; the gRFC A33 for gRPC clients.
"""

from __future__ import annotations

from envoy.extensions.filters.common.fault.v3 import fault_pb2 as common
from envoy.extensions.filters.http.fault.v3 import fault_pb2
from google.protobuf import any_pb2

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.envoy.core.protobuf import any_of, duration, fractional_percent
from mesh_pilot.envoy.filters.translator import FilterTranslator
from mesh_pilot.istio.rules.http_policies import GRPC_STATUSES
from mesh_pilot.mesh.policies.context import PolicyContext
from mesh_pilot.model.service import Protocol
from mesh_pilot.world.view import View


def _hcm(view: View, context: PolicyContext, protocol: Protocol) -> any_pb2.Any:
    return any_of(fault_pb2.HTTPFault())


def _per_route(spec: api.HttpRoute) -> any_pb2.Any | None:
    """The faults of a route. Without a percentage none is injected: Istio requires one."""
    if spec.fault is None:
        return None
    result = fault_pb2.HTTPFault()
    if spec.fault.delay is not None and spec.fault.delay.fixed_delay is not None:
        result.delay.CopyFrom(_delay(spec.fault.delay))
    abort = spec.fault.abort
    if abort is not None and (abort.http_status is not None or abort.grpc_status is not None):
        result.abort.CopyFrom(_abort(abort))
    return any_of(result)


def _delay(delay: api.HttpFaultInjectionDelay) -> common.FaultDelay:
    assert delay.fixed_delay is not None
    result = common.FaultDelay(fixed_delay=duration(delay.fixed_delay))
    if delay.percentage is not None:
        result.percentage.CopyFrom(fractional_percent(delay.percentage.value))
    else:
        result.percentage.numerator = delay.percent
    return result


def _abort(abort: api.HttpFaultInjectionAbort) -> fault_pb2.FaultAbort:
    result = fault_pb2.FaultAbort()
    if abort.grpc_status is not None:
        result.grpc_status = GRPC_STATUSES.index(abort.grpc_status)
    elif abort.http_status is not None:
        result.http_status = abort.http_status
    if abort.percentage is not None:
        result.percentage.CopyFrom(fractional_percent(abort.percentage.value))
    return result


FAULT = FilterTranslator(
    name="envoy.filters.http.fault",
    config=fault_pb2.HTTPFault,
    hcm=_hcm,
    per_route=_per_route,
    grpc_client=True,
)
