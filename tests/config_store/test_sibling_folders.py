"""The folder of the API's configuration is that folder: one next to it whose name begins alike is not in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from mesh_pilot.model.config import ConfigKey
from mesh_pilot.sources.config_store.base import ConfigRefusal
from mesh_pilot.sources.config_store.folder import ConfigFolder

KEY = ConfigKey("VirtualService", "shop", "reviews")
TEXT = (
    "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: reviews, namespace: shop}\nspec: {}\n"
)


async def test_an_object_in_a_folder_of_a_longer_name_is_outside(tmp_path: Path) -> None:
    ours, beside = tmp_path / "mesh", tmp_path / "mesh-secret"
    for folder in (ours, beside):
        folder.mkdir()
        (folder / "reviews.yaml").write_text(TEXT)
    store = ConfigFolder(ours)
    assert await store.read(KEY, str(ours / "reviews.yaml")) is not None
    with pytest.raises(ConfigRefusal, match="outside of"):
        await store.read(KEY, str(beside / "reviews.yaml"))
