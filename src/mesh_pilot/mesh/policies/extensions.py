"""Extensions of proxies: the WasmPlugins and TrafficExtensions that apply to connections, in order.

An extension is in force once the first try to get its module is over. Until then, and if a changed object asks for a
module that is not available, what the object said before is kept, with the module of then. Where there never was a
module, ``failStrategy`` decides. Rules: Istio's WasmPlugin and TrafficExtension references.
"""

from __future__ import annotations

from enum import IntEnum

import attrs

from mesh_pilot.api.istio.extensions import v1alpha1 as api
from mesh_pilot.api.istio.type.v1beta1 import WorkloadMode
from mesh_pilot.engine import derived
from mesh_pilot.istio.meaning.wasm import KINDS, module_ref, wasm_of
from mesh_pilot.mesh.policies.context import PolicyContext, TrafficSide
from mesh_pilot.mesh.selection.workloads import Labels, selected
from mesh_pilot.model.config import Config, ConfigKey
from mesh_pilot.model.events import WasmModule
from mesh_pilot.world.view import View

PLUGIN, EXTENSION = KINDS
EXTENSION_PREFIX = "extensions.istio.io/trafficextension/"
"""Begins the names of filters of TrafficExtensions, as in Istio."""

_LOWEST = -(2**31)
"""The priority of an extension without one."""


class ExtensionPhase(IntEnum):
    """The place of an extension among a proxy's own filters."""

    LAST = 0
    """After all that secures traffic."""
    AUTHN = 1
    """Before requests are authenticated."""
    AUTHZ = 2
    """After that, before they are authorized."""
    STATS = 3
    """After that."""


@attrs.frozen(cache_hash=True)
class Extension:
    """An extension, as listeners see it: all but its module and settings."""

    key: ConfigKey
    phase: ExtensionPhase
    is_network: bool = False
    """True if it filters connections, not requests."""
    script: str = attrs.field(default="", repr=False)
    """Lua for requests; empty for WebAssembly."""

    @property
    def name(self) -> str:
        """The name of its filter, and of its settings where they are fetched: ``shop.limits``."""
        name = f"{self.key.namespace}.{self.key.name}"
        return name if self.key.kind == PLUGIN else f"{EXTENSION_PREFIX}{name}"


Extensions = tuple[Extension, ...]
"""The extensions of some connections, in their order."""


@attrs.frozen
class WasmInForce:
    """The settings that an extension runs with, and its module."""

    wasm: api.WasmConfig
    module: WasmModule
    """Without bytes where ``failStrategy`` decides."""


@derived
def wasm_in_force(view: View, key: ConfigKey) -> WasmInForce | None:
    """The settings and module of an extension; None: it has none yet, or is a script, or gone."""
    config = view.config(key)
    wasm = wasm_of(config.spec) if config is not None else None
    if wasm is None:
        return None
    module = view.module(module_ref(wasm, key.namespace))
    if module is not None and module.is_there:
        return WasmInForce(wasm, attrs.evolve(module, trouble=""))
    before = view.extension_in_force(key)
    if before is not None:
        return WasmInForce(api.WasmConfig.parse(before.spec), before.module)
    return WasmInForce(wasm, attrs.evolve(module, trouble="")) if module is not None else None


@derived
def extensions_for(view: View, namespace: str, labels: Labels) -> tuple[ConfigKey, ...]:
    """The extensions of a proxy, those of the root namespace first, then the oldest; in the order of priority."""
    keys = [key for kind in KINDS for key in selected(view, kind, namespace, labels)]
    if not keys:
        return ()
    found = {key: config for key in keys if (config := view.config(key)) is not None}
    in_order = sorted(found, key=lambda key: (key.namespace != view.root_namespace, found[key].order))
    return tuple(sorted(in_order, key=lambda key: -_priority(found[key])))


def _priority(config: Config) -> int:
    priority: int | None = config.spec.priority
    return _LOWEST if priority is None else priority


@derived
def extension_of(view: View, key: ConfigKey) -> Extension | None:
    """An object as an extension; None: it is not in force yet."""
    config = view.config(key)
    if config is None:
        return None
    spec = config.spec
    phase = ExtensionPhase(int(spec.phase)) if int(spec.phase) in set(ExtensionPhase) else ExtensionPhase.LAST
    script: api.LuaConfig | None = getattr(spec, "lua", None)
    if script is not None:
        return Extension(key, phase, script=script.inline_code)
    in_force = wasm_in_force(view, key)
    return None if in_force is None else Extension(key, phase, in_force.wasm.type is api.PluginType.NETWORK)


@derived
def _matches(view: View, key: ConfigKey) -> tuple[tuple[WorkloadMode, frozenset[int]], ...]:
    """The modes and ports that an object is for, one of which must match; none: all. No ports: all of them."""
    config = view.config(key)
    selectors = config.spec.match if config is not None else []
    return tuple((selector.mode, frozenset(port.number for port in selector.ports)) for selector in selectors)


def extensions_at(view: View, context: PolicyContext, port: int) -> Extensions:
    """The extensions of a context's listeners for connections to a port; 0: to ports that nothing declares."""
    keys = extensions_for(view, context.namespace, context.labels)
    if not keys:
        return ()
    mode = WorkloadMode.SERVER if context.side is TrafficSide.INBOUND else WorkloadMode.CLIENT
    both = (mode, WorkloadMode.CLIENT_AND_SERVER, WorkloadMode.UNDEFINED)
    found = []
    for key in keys:
        matches = _matches(view, key)
        if matches and not any(m in both and (not ports or port in ports) for m, ports in matches):
            continue
        extension = extension_of(view, key)
        if extension is not None:
            found.append(extension)
    return tuple(found)


def extension_trouble(view: View, key: ConfigKey) -> str:
    """Why the module that an object asks for is not the one that runs, and what happens to traffic; empty: it is."""
    config = view.config(key)
    wasm = wasm_of(config.spec) if config is not None else None
    module = view.module(module_ref(wasm, key.namespace)) if wasm is not None else None
    if wasm is None or module is None or not module.trouble:
        return ""
    if module.is_there:
        return f"the module can't be looked for again: {module.trouble}; the one that was fetched is kept"
    if view.extension_in_force(key) is not None:
        return f"cannot fetch the module: {module.trouble}; the object as it was before is kept"
    fails_open = wasm.fail_strategy is api.FailStrategy.FAIL_OPEN
    meanwhile = "traffic passes without it (FAIL_OPEN)" if fails_open else "traffic is denied (failStrategy)"
    return f"cannot fetch the module: {module.trouble}; {meanwhile}"
