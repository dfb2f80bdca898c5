"""The settings of fetching modules."""

from __future__ import annotations

import attrs

MEBIBYTE = 1024 * 1024


@attrs.frozen(kw_only=True)
class WasmSettings:
    """Limits of modules, and registries that need not prove who they are."""

    module_bytes: int = 32 * MEBIBYTE
    """The size of the largest module that is taken."""
    cache_bytes: int = 1024 * MEBIBYTE
    """The size of all modules on disk, those included that nothing asks for now."""
    insecure_registries: tuple[str, ...] = ()
    """``host`` or ``host:port`` of servers whose certificates are not verified, or that have no TLS; ``*``: all."""

    def is_insecure(self, host: str) -> bool:
        return "*" in self.insecure_registries or host in self.insecure_registries


DEFAULT_WASM = WasmSettings()
