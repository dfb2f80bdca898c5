"""The settings of fetching modules."""

from __future__ import annotations

from functools import partial

import attrs

from mesh_pilot.model.flags import FlagKind, flag

MEBIBYTE = 1024 * 1024

_flag = partial(flag, section="WebAssembly modules")


@attrs.frozen(kw_only=True)
class WasmSettings:
    """Limits of modules, and registries that need not prove who they are."""

    module_bytes: int = _flag(
        "--wasm-module-bytes",
        default=32 * MEBIBYTE,
        least=1,
        help="Size of the largest WebAssembly module (docs/extensions.md).",
    )
    cache_bytes: int = _flag(
        "--wasm-cache-bytes",
        default=1024 * MEBIBYTE,
        least=1,
        help="Size of all modules kept on disk.",
    )
    """Modules that nothing asks for now included."""
    insecure_registries: tuple[str, ...] = _flag(
        "--wasm-insecure-registries",
        kind=FlagKind.WORDS,
        default=(),
        adds_up=True,
        metavar="HOST,...",
        help="Servers of modules whose certificates are not verified; *: all.",
    )
    """``host`` or ``host:port``; servers without TLS are meant as well."""

    def is_insecure(self, host: str) -> bool:
        return "*" in self.insecure_registries or host in self.insecure_registries


DEFAULT_WASM = WasmSettings()
