"""WebAssembly modules, fetched from where WasmPlugins and TrafficExtensions say.

Proxies are sent the modules themselves, so that none of them has to reach a registry or keep its credentials. Rules:
Istio's WasmPlugin reference; the OCI Distribution Specification; the image formats that Istio's agent accepts.
"""

from mesh_pilot.sources.wasm.source import Asked as Asked
from mesh_pilot.sources.wasm.source import ModuleDemand as ModuleDemand
from mesh_pilot.sources.wasm.source import ModuleSource as ModuleSource
from mesh_pilot.sources.wasm.source import asked_by as asked_by
from mesh_pilot.sources.wasm_settings import WasmSettings as WasmSettings
