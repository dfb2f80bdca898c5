"""Faults: an HTTPFaultInjection as configuration of Envoy's fault filter for one route."""

from __future__ import annotations

from envoy.extensions.filters.common.fault.v3 import fault_pb2 as common
from envoy.extensions.filters.http.fault.v3 import fault_pb2

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.config.validation.http_policies import GRPC_STATUSES
from mesh_pilot.envoy.core.protobuf import duration, fractional_percent

FILTER = "envoy.filters.http.fault"


def fault_config(fault: api.HttpFaultInjection) -> fault_pb2.HTTPFault:
    """The faults of a route. Without a percentage none is injected: Istio asks for one."""
    result = fault_pb2.HTTPFault()
    if fault.delay is not None and fault.delay.fixed_delay is not None:
        result.delay.CopyFrom(_delay(fault.delay))
    if fault.abort is not None:
        result.abort.CopyFrom(_abort(fault.abort))
    return result


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
