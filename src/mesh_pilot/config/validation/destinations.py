"""Rules for where traffic is sent: destinations and their weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mesh_pilot.api.istio.networking.v1alpha3 import Destination
from mesh_pilot.config.validation.context import check, error
from mesh_pilot.config.validation.names import dns_label_reason, port_reason, wildcard_host_reason
from mesh_pilot.model.config import Problem

MAX_TOTAL_WEIGHT = 2**32 - 1
"""What Envoy can add up."""


def check_destination(path: str, destination: Destination | None) -> Iterator[Problem]:
    """A destination that must be there."""
    if destination is None:
        yield error(path, "is missing")
        return
    if destination.host == "*":
        yield error(f"{path}.host", '"*" is not a host to send traffic to')
    else:
        yield from check(f"{path}.host", wildcard_host_reason(destination.host) if destination.host else "is missing")
    if destination.subset:
        yield from check(f"{path}.subset", dns_label_reason(destination.subset))
    if destination.port is not None:
        yield from check(f"{path}.port.number", port_reason(destination.port.number))


def check_weights(path: str, weights: Sequence[int]) -> Iterator[Problem]:
    """The weights of the destinations listed at `path`."""
    for index, weight in enumerate(weights):
        if weight < 0:
            yield error(f"{path}[{index}].weight", f"{weight} is negative")
    if len(weights) > 1 and not any(weights):
        yield error(path, "all weights are 0: of several destinations at least one must have a weight")
    if sum(weights) > MAX_TOTAL_WEIGHT:
        yield error(path, f"the weights add up to more than {MAX_TOTAL_WEIGHT}")
