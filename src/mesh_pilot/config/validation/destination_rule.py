"""Rules for DestinationRule."""

from __future__ import annotations

from collections.abc import Iterator

from mesh_pilot.api.istio.networking.v1alpha3 import DestinationRule
from mesh_pilot.config.validation.common import check_export_to, check_match_labels
from mesh_pilot.config.validation.context import Context, check, error
from mesh_pilot.config.validation.names import check_labels, dns_label_reason, wildcard_host_reason
from mesh_pilot.config.validation.traffic_policy import check_traffic_policy
from mesh_pilot.model.config import Problem


def validate(spec: DestinationRule, context: Context) -> Iterator[Problem]:
    """Everything that is wrong with a DestinationRule."""
    yield from check("spec.host", wildcard_host_reason(spec.host) if spec.host else "is missing")
    yield from check_traffic_policy("spec.trafficPolicy", spec.traffic_policy)
    seen: set[str] = set()
    for index, subset in enumerate(spec.subsets):
        path = f"spec.subsets[{index}]"
        yield from check(f"{path}.name", dns_label_reason(subset.name) if subset.name else "is missing")
        if subset.name and subset.name in seen:
            yield error(f"{path}.name", f'"{subset.name}" is given twice')
        seen.add(subset.name)
        yield from check_labels(f"{path}.labels", subset.labels)
        yield from check_traffic_policy(f"{path}.trafficPolicy", subset.traffic_policy)
    yield from check_export_to(spec.export_to, context)
    if spec.workload_selector is not None and spec.export_to and spec.export_to != ["."]:
        yield error("spec.exportTo", 'can only be "." where there is a workloadSelector')
    yield from check_match_labels(spec.workload_selector, "spec.workloadSelector")
