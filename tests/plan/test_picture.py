"""The picture of a plane: equal items on the other side, and no private key in it."""

from __future__ import annotations

import base64
import json
import zlib
from datetime import UTC, datetime

import attrs
import pytest

from mesh_pilot import __version__
from mesh_pilot.explain.plan.picture import PictureError, read_picture, read_proxies, take_picture, without_secrets
from mesh_pilot.model.events import Quarantine, Refusal, Secret, Synced, Upsert, Withheld, item_key
from mesh_pilot.world import World
from tests.support.planes import SERVICE
from tests.support.worlds import SOURCE, world_of

KEY = b"-----BEGIN PRIVATE KEY-----\nc2VjcmV0c2VjcmV0c2VjcmV0\n-----END PRIVATE KEY-----\n"
SECRET = Secret("edge", "shop", certificate_chain=b"chain", private_key=KEY)


def taken(world: World) -> str:
    return json.dumps(take_picture(world, __version__)())


def test_private_keys_never_leave_the_plane() -> None:
    refusal = Refusal("web-1.shop", "", "", (), "no", datetime(2026, 1, 1, tzinfo=UTC))
    withheld = Quarantine("all", (Withheld(("secret", "shop", "edge"), (SECRET,), (SECRET,), refusal),))
    world = world_of()
    world.apply([Upsert(SOURCE, SECRET), Upsert("quarantine", withheld), Synced("quarantine")])
    text = taken(world)
    bodies = [zlib.decompress(base64.b64decode(packed)) for packed in json.loads(text)["sources"].values()]
    assert not any(b"c2VjcmV0" in body or b"PRIVATE KEY" in body for body in bodies)
    assert any(b"chain" in body for body in bodies)


def test_a_key_that_stays_is_told_from_one_that_changes_by_stand_ins_of_the_same_length() -> None:
    same, again = without_secrets(SECRET), without_secrets(attrs.evolve(SECRET))
    other = without_secrets(attrs.evolve(SECRET, private_key=KEY.replace(b"c2", b"d2")))
    assert isinstance(same, Secret)
    assert isinstance(other, Secret)
    assert same == again != other
    assert len(same.private_key) == len(other.private_key) == len(KEY)


def test_a_picture_that_is_none_is_one_line() -> None:
    for wrong in ([], {}, {"format": 0}, {"format": 1, "sources": {"files": "?"}}):
        with pytest.raises(PictureError) as caught:
            read_picture(wrong)
        assert "\n" not in str(caught.value)
    with pytest.raises(PictureError):
        read_proxies([{"id": "x"}])


def test_items_are_equal_on_the_other_side() -> None:
    world = world_of(SERVICE)
    picture = read_picture(json.loads(taken(world)))
    assert picture.items[SOURCE] == {item_key(item): item for item in world.items_of(SOURCE).values()}
    assert picture.settings == world.settings
