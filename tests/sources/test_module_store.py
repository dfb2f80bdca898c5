"""The store of WebAssembly modules drops what was used longest ago, also of modules that were there before."""

from __future__ import annotations

import os
from pathlib import Path

from mesh_pilot.sources.wasm.store import ModuleStore


def test_a_module_that_is_used_again_outlives_one_that_is_not(tmp_path: Path) -> None:
    store = ModuleStore(tmp_path / "modules", max_bytes=20)
    store.open()
    first, second, third = (bytes([number]) * 10 for number in range(3))
    old, _ = store.put(first, ())
    other, _ = store.put(second, ())
    for seconds, path in enumerate((old, other)):
        os.utime(path, (seconds, seconds))  # both long ago, the first one before the other
    store.put(first, ())
    store.put(third, ())
    assert Path(old).exists()
    assert not Path(other).exists()
