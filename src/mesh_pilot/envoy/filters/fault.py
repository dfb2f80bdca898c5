"""Faults: routes say which (``VirtualService.http.fault``); without the filter theirs have no effect."""

from __future__ import annotations

from envoy.extensions.filters.http.fault.v3 import fault_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2 as hcm_pb2

from mesh_pilot.envoy.filters.common import http_filter
from mesh_pilot.mesh.policies import PolicyContext
from mesh_pilot.model.service import Protocol
from mesh_pilot.world.view import View

NAME = "envoy.filters.http.fault"


def fault(view: View, context: PolicyContext, protocol: Protocol) -> hcm_pb2.HttpFilter:
    return http_filter(NAME, fault_pb2.HTTPFault())
