"""Revisions in the API: objects by name, who refused them, trials folded in, and paging to the last that is kept."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from mesh_pilot.model.history import EdgeOutcome, RevisionTraffic
from mesh_pilot.safety.state.settings import StateSettings
from tests.support.command import mesh_pilot
from tests.support.envoy import eventually
from tests.support.picky import ODD, proxy
from tests.support.planes import SERVICE, running_plane

pytestmark = pytest.mark.plane


@pytest.mark.parametrize("kept", ["store", "memory"])
async def test_trials_are_folded_into_the_change_that_was_refused(
    kept: str, tmp_path: Path, nursery: trio.Nursery
) -> None:
    config = tmp_path / "config"
    config.mkdir()
    (config / "reviews.yaml").write_text(SERVICE)
    more = {"state": StateSettings(folder=tmp_path / "state")} if kept == "store" else {}
    async with running_plane(config, **more) as plane, httpx.AsyncClient(trust_env=False, timeout=60) as client:

        async def history(**query: Any) -> Any:
            reply = await client.get(f"http://{plane.addresses.http}/api/v1/history", params=query or None)
            assert reply.status_code == 200, reply.text
            return reply.json()

        await nursery.start(partial(proxy, plane.addresses.grpc))
        await eventually(lambda: any(each.position().revision is None for each in plane.state.xds.status.proxies()))
        (config / "odd.yaml").write_text(ODD)

        async def is_told() -> bool:
            # The verdict is a revision, too: what is read before and after it are two histories.
            facts, rows, each = plane.state.facts(), (await history())["items"], (await history(trials="true"))["items"]
            if not rows or not facts.in_force or facts.trials or each[0]["revision"] != plane.state.world.revision:
                return False
            return bool(rows[0]["trials"] and rows[0]["refused_by"] and not rows[0]["waiting"])

        await eventually(is_told)
        found = await history()
        assert found["kept"] == kept
        row = found["items"][0]
        assert (row["changed"], row["refused_by"]) == (["ServiceEntry/shop/odd"], ["web-1.shop"])
        assert row["causes"][0].endswith("/odd.yaml:1") and row["at"]
        apart = await history(trials="true")
        assert len(apart["items"]) == len(found["items"]) + sum(each["trials"] for each in found["items"])

        seen: list[int] = []
        following: int | None = None
        while True:
            piece = await history(limit=1, trials="true", **({"before": following} if following else {}))
            seen += [each["revision"] for each in piece["items"]]
            if (following := piece["next"]) is None:
                break
        assert seen == [each["revision"] for each in apart["items"]]
        one = (await client.get(f"http://{plane.addresses.http}/api/v1/history/{row['revision']}")).json()
        assert [each["object"] for each in one["changes"]] == ["ServiceEntry/shop/odd"]
        assert one["nacks"][0]["proxy"] == "web-1.shop"
        last = (await client.get(f"http://{plane.addresses.http}/api/v1/now")).json()["last_hour"]
        assert last[0]["changed"] == ["ServiceEntry/shop/odd"]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("kept", ["store", "memory"])
async def test_a_row_has_what_came_of_the_revision_in_traffic(kept: str, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.mkdir()
    (config / "reviews.yaml").write_text(SERVICE)
    more = {"state": StateSettings(folder=tmp_path / "state")} if kept == "store" else {}
    async with running_plane(config, **more) as plane, httpx.AsyncClient(trust_env=False, timeout=60) as client:
        number = plane.state.world.revision
        edge = EdgeOutcome("web", "shop", "reviews.test:9080", "requests", 10, 0, 10, 9, "worse")
        outcome = RevisionTraffic(number, "worse", 1, (edge,), 1, 10, 0, 10, 9, 10, 10, None, True)
        plane.state.revisions.judged(outcome)
        if plane.state.recorder is not None and plane.state.recorder.history is not None:
            plane.state.recorder.history.judged(outcome)
        found: Any = None

        async def is_told() -> bool:
            nonlocal found
            reply = await client.get(f"http://{plane.addresses.http}/api/v1/history")
            rows = {each["revision"]: each["traffic"] for each in reply.json()["items"]}
            found = rows.get(number)
            return found is not None

        await eventually(is_told)
        assert (found["verdict"], found["worse"][0]["called"]) == ("worse", "reviews.test:9080")
        one = (await client.get(f"http://{plane.addresses.http}/api/v1/history/{number}")).json()
        assert one["traffic"] == found
        address = plane.addresses.http
        assert address is not None
        listed = await trio.to_thread.run_sync(partial(mesh_pilot, "history", "--pilot", address))
        assert "worse: web.shop to reviews.test:9080" in listed.out
