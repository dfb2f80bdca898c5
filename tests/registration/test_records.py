"""Records as they are written down, and what else may stand in their place."""

from __future__ import annotations

import json
import math
from typing import Any

import attrs
import pytest
import trio

from mesh_pilot.consul.client.kv import KvEntry
from mesh_pilot.consul.stores.registrations import ConsulRecords
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.replicas.registration.membership import Kept
from mesh_pilot.replicas.registration.records import Record, RegisteredWorkload, decode, encode, items_of


def record(number: int = 1, **more: Any) -> Record:
    address = f"10.0.0.{number}"
    workload = RegisteredWorkload(
        key=ConfigKey("WorkloadEntry", "shop", f"web-{address}"),
        group="web",
        identity="spiffe://cluster.local/ns/shop/sa/web",
        address=address,
        labels={"app": "web", "name": "caf\u00e9"},
    )
    return Record(workload=workload, controller="r1", created=1.7e9, **more)


def test_a_record_is_read_as_it_was_written() -> None:
    assert decode(encode(record(is_healthy=False, reason="503"))) == record(is_healthy=False, reason="503")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("created",), 1e300),
        (("created",), math.inf),
        (("created",), math.nan),
        (("created",), -1e18),
        (("created",), 253402300800.0),
        (("turn",), "1"),
        (("controller",), None),
        (("reason",), "\ud800"),
        (("workload", "key"), ["Gateway", "shop", "web-10.0.0.1"]),
        (("workload", "key"), ["WorkloadEntry", "shop"]),
        (("workload", "key"), []),
        (("workload", "key"), 7),
        (("workload", "address"), "nowhere"),
        (("workload", "labels"), {"app": 7}),
        (("workload", "labels"), {"app": "\udfff"}),
        (("workload", "more"), 1),
        (("workload",), None),
    ],
)
def test_anything_else_is_no_record_and_makes_no_object(path: tuple[str, ...], value: Any) -> None:
    found = json.loads(encode(record()))
    place = found
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    with pytest.raises(ValueError, match=r"."):
        decode(json.dumps(found).encode())


def test_the_last_moment_that_is_read_can_be_shown() -> None:
    (config, *_) = items_of(decode(encode(attrs.evolve(record(), created=253402300799.0))))
    assert config.created.year == 9999  # type: ignore[union-attr]


class FakeKv:
    """A KV store that tells all entries at each change."""

    def __init__(self, *pictures: list[KvEntry]) -> None:
        self._pictures = [*pictures]
        self._index = 0

    async def tree(self, prefix: str, after: int, wait_seconds: float) -> tuple[list[KvEntry], int]:
        if not self._pictures:
            await trio.sleep_forever()
        self._index += 1
        await trio.lowlevel.checkpoint()
        return self._pictures.pop(0), self._index


def kv_entry(record: Record, index: int) -> KvEntry:
    return KvEntry(f"mesh/shop/{record.key.name}", encode(record), index, "")


async def test_what_is_as_before_is_not_decoded_again(autojump_clock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = []

    def counted(data: bytes) -> Record:
        decoded.append(data)
        return decode(data)

    monkeypatch.setattr("mesh_pilot.consul.stores.registrations.decode", counted)
    entries = [kv_entry(record(number), number) for number in range(1, 251)]
    changed = kv_entry(record(2, is_connected=False), 300)
    bad = KvEntry("mesh/shop/junk", b"{", 301, "")
    kv: Any = FakeKv(entries, [*entries, bad], [entries[0], changed, bad], [])
    store = ConsulRecords(kv, "mesh", 1.0)
    pictures: list[dict[ConfigKey, Kept]] = []
    with trio.move_on_after(5):
        await store.follow(lambda kept, index: pictures.append({**kept}))
    assert [len(picture) for picture in pictures] == [250, 250, 2, 0]
    assert len(decoded) == 250 + 1 + 2  # what cannot be read is looked at each time
    assert pictures[2][record(2).key] == Kept(record(2, is_connected=False), 300)
