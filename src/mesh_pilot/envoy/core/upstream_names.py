"""Names of upstreams in the metadata of clusters and endpoints, from which a client's proxy takes labels of metrics."""

from __future__ import annotations

from collections.abc import Iterable

from mesh_pilot.base.protowire import field

METADATA = "istio"
"""The filter metadata with these names."""

SERVICE_NAMES = ("service", "service_name", "service_namespace")
"""The names of a cluster's service, in the order of their labels: host, name, namespace."""


def upstream_metadata(values: Iterable[tuple[str, str]]) -> bytes:
    """An encoded ``core.v3.Metadata`` with names of a cluster's service or of an endpoint's workload."""
    struct = b"".join(field(1, field(1, name.encode()) + field(2, field(3, value.encode()))) for name, value in values)
    return field(1, field(1, METADATA.encode()) + field(2, struct))
