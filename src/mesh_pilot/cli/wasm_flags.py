"""Flags of ``mesh-pilot discovery`` about WebAssembly modules."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from mesh_pilot.cli.options import ListOption, words

if TYPE_CHECKING:
    from mesh_pilot.sources.wasm.settings import WasmSettings

FLAGS: Sequence[tuple[str, Mapping[str, Any]]] = (
    (
        "--wasm-module-bytes",
        {
            "type": click.IntRange(min=1),
            "default": 32 * 1024 * 1024,
            "help": "Size of the largest WebAssembly module (docs/extensions.md).",
        },
    ),
    (
        "--wasm-cache-bytes",
        {"type": click.IntRange(min=1), "default": 1024 * 1024 * 1024, "help": "Size of all modules kept on disk."},
    ),
    (
        "--wasm-insecure-registries",
        {
            "cls": ListOption,
            "default": "",
            "metavar": "HOST,...",
            "help": "Servers of modules whose certificates are not verified; *: all.",
        },
    ),
)
"""Each flag with what click takes of it."""


def take_wasm(options: MutableMapping[str, Any]) -> WasmSettings:
    """The settings of modules, taken out of the options of the command."""
    from mesh_pilot.sources.wasm.settings import WasmSettings

    return WasmSettings(
        module_bytes=options.pop("wasm_module_bytes"),
        cache_bytes=options.pop("wasm_cache_bytes"),
        insecure_registries=words(options.pop("wasm_insecure_registries")),
    )
