"""Mirrors: copies of requests whose answers nobody waits for."""

from __future__ import annotations

from collections.abc import Iterator

from envoy.config.core.v3 import base_pb2
from envoy.config.route.v3 import route_components_pb2 as rc
from envoy.type.v3 import percent_pb2

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.envoy.core.protobuf import boolean, fractional_percent
from mesh_pilot.envoy.routes.destination import route_destination
from mesh_pilot.mesh.virtual_services.client import RouteClient
from mesh_pilot.world import View


def mirror_policies(
    view: View, spec: api.HttpRoute, namespace: str, client: RouteClient, port: int
) -> Iterator[rc.RouteAction.RequestMirrorPolicy]:
    """The mirrors of a rule: ``mirror`` with its percentage, or ``mirrors`` with theirs. All requests if not said."""
    mirrors = [(m.destination, _share(m.percentage)) for m in spec.mirrors]
    if spec.mirror is not None:
        percentage = spec.mirror_percentage
        if percentage is None and spec.mirror_percent is not None:
            percentage = api.Percent(value=float(spec.mirror_percent))
        mirrors.append((spec.mirror, _share(percentage)))
    for destination, share in mirrors:
        if destination is not None and share.numerator:
            yield rc.RouteAction.RequestMirrorPolicy(
                cluster=route_destination(view, destination, namespace, client, port).cluster,
                runtime_fraction=base_pb2.RuntimeFractionalPercent(default_value=share),
                trace_sampled=boolean(False),
            )


def _share(percentage: api.Percent | None) -> percent_pb2.FractionalPercent:
    if percentage is None:
        return percent_pb2.FractionalPercent(numerator=100)
    return fractional_percent(percentage.value)
