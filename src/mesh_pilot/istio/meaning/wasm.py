"""WebAssembly in WasmPlugins and TrafficExtensions: both as one message, and the module that it asks for."""

from __future__ import annotations

from typing import Any

from mesh_pilot.api.istio.extensions import v1alpha1 as api
from mesh_pilot.model.modules import OCI, ModuleRef

KINDS = ("WasmPlugin", "TrafficExtension")
"""The kinds that extend proxies."""

_SECRET_PREFIX = "kubernetes://"


def wasm_of(spec: Any) -> api.WasmConfig | None:
    """The WebAssembly of an object of these kinds; None: it is a script."""
    if isinstance(spec, api.TrafficExtension):
        return spec.wasm
    plugin: api.WasmPlugin = spec
    return api.WasmConfig(
        url=plugin.url,
        sha256=plugin.sha256,
        image_pull_policy=plugin.image_pull_policy,
        image_pull_secret=plugin.image_pull_secret,
        verification_key=plugin.verification_key,
        plugin_config=plugin.plugin_config,
        plugin_name=plugin.plugin_name,
        fail_strategy=plugin.fail_strategy,
        vm_config=plugin.vm_config,
        type=plugin.type,
    )


def module_ref(wasm: api.WasmConfig, namespace: str) -> ModuleRef:
    """The module that an object of a namespace asks for; its pull secret is always of that namespace."""
    url = wasm.url if "://" in wasm.url else f"{OCI}{wasm.url}"
    secret = wasm.image_pull_secret.removeprefix(_SECRET_PREFIX).rpartition("/")[2]
    return ModuleRef(url, wasm.sha256, (namespace, secret) if secret else ("", ""))


def is_pulled_always(wasm: api.WasmConfig, ref: ModuleRef) -> bool:
    """True if the module is looked for again. Istio's default: for images with the tag ``latest``."""
    if ref.is_pinned:
        return False
    if wasm.image_pull_policy is api.PullPolicy.UNSPECIFIED_POLICY:
        return ref.is_latest
    return wasm.image_pull_policy is api.PullPolicy.Always


def fails_open(wasm: api.WasmConfig) -> bool:
    """True if traffic passes where there is no module to run."""
    return wasm.fail_strategy is api.FailStrategy.FAIL_OPEN
