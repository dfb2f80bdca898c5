"""Rules for PeerAuthentication."""

from __future__ import annotations

from collections.abc import Iterator

from mesh_pilot.api.istio.security.v1beta1 import PeerAuthentication
from mesh_pilot.config.validation.common import check_match_labels
from mesh_pilot.config.validation.context import Context, check, error
from mesh_pilot.config.validation.names import port_reason
from mesh_pilot.model.config import Problem


def validate(spec: PeerAuthentication, context: Context) -> Iterator[Problem]:
    """Everything that is wrong with a PeerAuthentication."""
    yield from check_match_labels(spec.selector)
    if spec.port_level_mtls and (spec.selector is None or not spec.selector.match_labels):
        yield error("spec.portLevelMtls", "needs a selector: ports are those of workloads, not of a namespace")
    for port in spec.port_level_mtls:
        yield from check(f"spec.portLevelMtls[{port}]", port_reason(port))
