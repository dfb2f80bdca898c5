"""Names of the client's workload, in headers of its requests, for the metrics of the server's proxy.

Whatever a request already says there is replaced, or removed: an application does not speak for its proxy, nor a client
outside the mesh for a gateway. Proxies that report no metrics remove it too, as soon as any proxy of the mesh has
them: the server's proxy believes every certificate of the mesh. Rules: Envoy's header mutation filter.
"""

from __future__ import annotations

import re

from envoy.config.common.mutation_rules.v3.mutation_rules_pb2 import HeaderMutation as Mutation
from envoy.config.core.v3 import base_pb2
from envoy.extensions.filters.http.header_mutation.v3 import header_mutation_pb2
from google.protobuf import any_pb2

from mesh_pilot.envoy.core.protobuf import any_of
from mesh_pilot.envoy.filters.translator import FilterTranslator
from mesh_pilot.envoy.telemetry.metrics import PEER_HEADERS
from mesh_pilot.mesh.policies.context import PolicyContext, TrafficSide
from mesh_pilot.mesh.proxy.metric_source import metrics_anywhere
from mesh_pilot.model.service import Protocol
from mesh_pilot.world.view import View

_TEXT = re.compile("[ -~]+")
"""Names that may be in a header: the server's proxy reads no others, and Envoy refuses some."""


def _hcm(view: View, context: PolicyContext, protocol: Protocol) -> any_pb2.Any | None:
    if context.side is TrafficSide.INBOUND or not metrics_anywhere(view):
        return None
    source = context.spans.metrics
    names = dict(source.names) if source is not None else {}
    config = header_mutation_pb2.HeaderMutation()
    for name, header in PEER_HEADERS.items():
        value = names.get(name, "")
        config.mutations.request_mutations.append(
            _set(header, value) if _TEXT.fullmatch(value) else Mutation(remove=header)
        )
    return any_of(config)


def _set(header: str, value: str) -> Mutation:
    return Mutation(
        append=base_pb2.HeaderValueOption(
            header=base_pb2.HeaderValue(key=header, value=value.replace("%", "%%")),
            append_action=base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD,
        )
    )


# Not Envoy's own name: what an EnvoyFilter says of its filter of that name must not be about this one.
PEER_NAMES = FilterTranslator(
    name="envoy.filters.http.header_mutation.peer_names", config=header_mutation_pb2.HeaderMutation, hcm=_hcm
)
