"""Rules for ProxyConfig."""

from __future__ import annotations

from collections.abc import Iterator

from mesh_pilot.api.istio.networking.v1beta1 import ProxyConfig
from mesh_pilot.config.validation.common import check_match_labels
from mesh_pilot.config.validation.context import Context, error
from mesh_pilot.model.config import Problem


def validate(spec: ProxyConfig, context: Context) -> Iterator[Problem]:
    """Everything that is wrong with a ProxyConfig."""
    yield from check_match_labels(spec.selector)
    if spec.concurrency is not None and spec.concurrency < 0:
        yield error("spec.concurrency", f"{spec.concurrency} is negative")
    for name in spec.environment_variables:
        if not name or "=" in name:
            yield error(f"spec.environmentVariables[{name}]", f'"{name}" is not the name of a variable')
