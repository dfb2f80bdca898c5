"""WebAssembly modules, fetched from where WasmPlugins and TrafficExtensions say.

Proxies are sent the modules themselves, so that none of them has to reach a registry or keep its credentials. Rules:
Istio's WasmPlugin reference; the OCI Distribution Specification; the image formats that Istio's agent accepts.
"""
