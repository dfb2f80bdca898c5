"""Large documents are read in a thread, and nobody waits for them who has nothing to do with them."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import trio
import trio.testing

from mesh_pilot.base.offload import LARGE_BYTES, LARGE_VALUES, has_many_values, offload
from mesh_pilot.model.config import Config
from mesh_pilot.model.events import Event, Replace
from mesh_pilot.sources.files import file_source, objects


async def test_only_large_work_leaves_the_loops_thread() -> None:
    assert await offload(False, threading.current_thread) is threading.current_thread()
    assert await offload(True, threading.current_thread) is not threading.current_thread()


async def test_others_run_while_something_large_is_read() -> None:
    go_on = threading.Event()

    def read() -> str:
        assert go_on.wait(60)
        return "read"

    async def let_go() -> None:
        go_on.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(let_go)
        assert await offload(True, read) == "read"


async def test_what_is_raised_is_raised_where_it_was_asked_for() -> None:
    def fail() -> None:
        raise ValueError("broken")

    for is_large in (False, True):
        with pytest.raises(ValueError, match="broken"):
            await offload(is_large, fail)


async def test_whoever_is_cancelled_does_not_wait_for_the_thread(autojump_clock: trio.testing.MockClock) -> None:
    go_on = threading.Event()
    with trio.move_on_after(5) as scope:
        await offload(True, lambda: go_on.wait(60))
    go_on.set()
    assert scope.cancelled_caught


def test_values_are_counted_as_far_as_it_matters() -> None:
    assert not has_many_values({"a": [1, {"b": 2}], "c": "d" * LARGE_VALUES})
    assert has_many_values({"a": [{"b": [1] * 10}] * (LARGE_VALUES // 10)})
    nested: object = 1
    for _ in range(LARGE_VALUES + 1):
        nested = [nested]
    assert has_many_values(nested)


def service_entry(name: str, endpoints: int) -> str:
    listed = ", ".join(f"{{address: 10.0.{i >> 8}.{i & 255}}}" for i in range(endpoints))
    return (
        f"apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: {name}}}\n"
        f"spec: {{hosts: [{name}.test], resolution: STATIC, ports: [{{number: 80, name: http}}], "
        f"endpoints: [{listed}]}}\n"
    )


async def test_a_large_file_is_read_in_a_thread_and_a_small_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: dict[str, bool] = {}
    decode = objects.decode_document

    def watched(document: object, **rest: object) -> Config:
        config: Config = decode(document, **rest)  # type: ignore[arg-type]
        threads[config.name] = threading.current_thread() is threading.main_thread()
        return config

    monkeypatch.setattr(objects, "decode_document", watched)
    (tmp_path / "small.yaml").write_text(service_entry("small", 1))
    (tmp_path / "large.yaml").write_text(service_entry("large", LARGE_BYTES // 20))
    send, receive = trio.open_memory_channel[Event](10)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(file_source([str(tmp_path)], poll=True).run, send)
        picture = await receive.receive()
        nursery.cancel_scope.cancel()
    assert isinstance(picture, Replace)
    assert {item.name for item in picture.items if isinstance(item, Config)} == {"small", "large"}
    assert threads == {"small": True, "large": False}
