"""Rules for TrafficExtension."""

from __future__ import annotations

from collections.abc import Iterator

from mesh_pilot.api.istio.extensions.v1alpha1 import TrafficExtension
from mesh_pilot.config.validation.common import check_match_labels, check_targets
from mesh_pilot.config.validation.context import Context, check, error
from mesh_pilot.config.validation.names import port_reason
from mesh_pilot.config.validation.wasm_plugin import check_environment, url_reason
from mesh_pilot.model.config import Problem

MAX_CODE = 65536
"""Bytes of a script."""


def validate(spec: TrafficExtension, context: Context) -> Iterator[Problem]:
    """Everything that is wrong with a TrafficExtension."""
    yield from check_match_labels(spec.selector)
    yield from check_targets(spec.selector is not None, None, spec.target_refs, context)
    if spec.wasm is not None:
        yield from check("spec.wasm.url", url_reason(spec.wasm.url))
        if spec.wasm.vm_config is not None:
            yield from check_environment("spec.wasm.vmConfig.env", spec.wasm.vm_config)
    elif spec.lua is None:
        yield error("spec", "needs wasm or lua")
    elif not spec.lua.inline_code:
        yield error("spec.lua.inlineCode", "is missing")
    elif len(spec.lua.inline_code.encode()) > MAX_CODE:
        yield error("spec.lua.inlineCode", f"has more than {MAX_CODE} bytes")
    for index, selector in enumerate(spec.match):
        for number, port in enumerate(selector.ports):
            yield from check(f"spec.match[{index}].ports[{number}].number", port_reason(port.number))
