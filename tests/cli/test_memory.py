from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from mesh_pilot.cli.lib.process import SWITCH_SECONDS, THRESHOLDS, long_lived, set_aside
from mesh_pilot.model.config import Origin
from mesh_pilot.sources.files.objects import read_objects
from tests.support.planes import SERVICE
from tests.support.worlds import configs, world_of


def test_collection_rests_until_the_first_world_is_in_and_is_rare_from_then_on() -> None:
    before = gc.get_threshold()
    with long_lived():
        assert not gc.isenabled()
        set_aside()
        assert gc.isenabled()
        assert gc.get_threshold() == THRESHOLDS
        assert gc.get_freeze_count() > 0
    assert gc.isenabled()
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


def test_threads_that_make_pages_give_way_soon() -> None:
    before = sys.getswitchinterval()
    with long_lived():
        assert abs(sys.getswitchinterval() - SWITCH_SECONDS) < 1e-6 < before
    assert sys.getswitchinterval() == before


@contextmanager
def without_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "text",
    [
        SERVICE,
        SERVICE.replace("9080", "many"),
        SERVICE.replace("hosts:", "hosst:"),
        SERVICE.replace("ports:", "ports: }{"),
        SERVICE.replace("STATIC", "&a STATIC"),
    ],
)
def test_reading_and_refusing_objects_leaves_no_cycles_to_collect(text: str) -> None:
    def read() -> None:
        list(read_objects(text.encode(), Origin("files", "x.yaml"), "default"))

    read()  # what is made once
    with without_collection():
        for _ in range(20):
            read()
        assert gc.collect() < 20


def test_applying_objects_leaves_no_cycles_to_collect() -> None:
    texts = [SERVICE.replace("reviews", f"s{number}") for number in range(50)]
    found = [configs(text) for text in texts]
    world_of(texts[0])
    with without_collection():
        world = world_of("---\n".join(texts))
        assert gc.collect() < 50
    assert len(found) == 50 and len(world.services) == 50
