"""Modules that a plan does not have: stand-ins, as if they had been fetched."""

from __future__ import annotations

from mesh_pilot.istio.meaning.wasm import KINDS, module_ref, wasm_of
from mesh_pilot.model.events import Upsert, WasmModule
from mesh_pilot.world import World

SOURCE = "wasm"


def unknown_modules(world: World) -> list[Upsert]:
    """The events for modules that extensions ask for and that are not known: nothing is fetched for a plan."""
    found: dict[object, Upsert] = {}
    for config in (config for kind in KINDS for config in world.configs_of.peek(kind)):
        wasm = wasm_of(config.spec)
        if wasm is not None:
            ref = module_ref(wasm, config.namespace)
            if world.modules.peek(ref) is None:
                found[ref] = Upsert(SOURCE, WasmModule(ref, sha256=ref.sha256 or f"what is at {ref}"))
    return list(found.values())
