"""Extension configs with a WebAssembly module that Envoy would refuse, of which the patch says that they fail closed.

A patch that Envoy would refuse is left out, and so are the filters that name its extension config. One that asks for
``FAIL_CLOSED`` (or ``FAIL_RELOAD``) secures something: its requests or connections are denied, as for a WasmPlugin
without a module. The filters that name it then have to accept the config of an RBAC filter, too.
"""

from __future__ import annotations

from typing import Any

from envoy.config.core.v3.extension_pb2 import TypedExtensionConfig
from envoy.extensions.filters.http.rbac.v3.rbac_pb2 import RBAC as HttpRbac
from envoy.extensions.filters.http.wasm.v3.wasm_pb2 import Wasm as HttpWasm
from envoy.extensions.filters.network.rbac.v3.rbac_pb2 import RBAC as NetworkRbac
from envoy.extensions.filters.network.wasm.v3.wasm_pb2 import Wasm as NetworkWasm
from envoy.extensions.wasm.v3.wasm_pb2 import FAIL_CLOSED, FAIL_RELOAD
from google.protobuf.message import Message

from mesh_pilot.envoy.core.api_types import type_name
from mesh_pilot.envoy.core.protobuf import any_of
from mesh_pilot.envoy.filters.extensions import stand_in
from mesh_pilot.model.resource import PREFIX

_STAND_INS: dict[str, type[Message]] = {
    HttpWasm.DESCRIPTOR.full_name: HttpRbac,
    NetworkWasm.DESCRIPTOR.full_name: NetworkRbac,
}


def denying(value: Any) -> TypedExtensionConfig | None:
    """The extension config in place of a refused one; None if that does not ask to fail closed."""
    for kind in (HttpWasm, NetworkWasm):
        wasm: Any = kind()
        is_wasm = type_name(value.typed_config.type_url) == kind.DESCRIPTOR.full_name
        if is_wasm and value.typed_config.Unpack(wasm) and wasm.config.failure_policy in (FAIL_CLOSED, FAIL_RELOAD):
            config = stand_in(is_network=kind is NetworkWasm, passes=False)
            return TypedExtensionConfig(name=value.name, typed_config=any_of(config))
    return None


def accept_stand_ins(filter_: Any) -> None:
    """Let a filter whose config is discovered take the stand-in of a module."""
    urls = filter_.config_discovery.type_urls
    for name in [type_name(url) for url in urls]:
        other = _STAND_INS.get(name)
        if other is not None and other.DESCRIPTOR.full_name not in map(type_name, urls):
            urls.append(PREFIX + other.DESCRIPTOR.full_name)
