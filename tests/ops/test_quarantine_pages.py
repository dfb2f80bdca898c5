"""Quarantine as operators see it: a whole control plane, and a client that refuses whatever has a mark."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from mesh_pilot.app.control_plane import ControlPlane
from mesh_pilot.safety.quarantine.options import QuarantineOptions
from tests.support.command import mesh_pilot
from tests.support.envoy import eventually
from tests.support.picky import ODD, WORDS, proxy
from tests.support.planes import SERVICE, running_plane

pytestmark = pytest.mark.plane


class Web:
    """A control plane and a client for its pages."""

    def __init__(self, plane: ControlPlane, client: httpx.AsyncClient, folder: Path) -> None:
        self.plane = plane
        self.folder = folder
        self._client = client

    async def get(self, path: str, *, monitoring: bool = False) -> str:
        address = self.plane.addresses.monitoring if monitoring else self.plane.addresses.http
        reply = await self._client.get(f"http://{address}{path}")
        assert reply.status_code == 200
        return reply.text

    async def rejections(self) -> Any:
        return json.loads(await self.get("/debug/rejections"))

    async def metrics(self) -> dict[tuple[str, ...], float]:
        families = text_string_to_metric_families(await self.get("/metrics"))
        return {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}

    async def status(self, *more: str) -> tuple[int, str]:
        """Exit code and output of ``proxy-status``."""
        asked = ("proxy-status", "--pilot", self.plane.addresses.http, *more)
        done = await trio.to_thread.run_sync(lambda: mesh_pilot(*asked))
        return done.code, done.out


@asynccontextmanager
async def serving(folder: Path, nursery: trio.Nursery, **more: Any) -> AsyncIterator[Web]:
    (folder / "reviews.yaml").write_text(SERVICE)
    async with running_plane(folder, **more) as plane, httpx.AsyncClient(trust_env=False, timeout=60) as client:
        web = Web(plane, client, folder)
        await nursery.start(proxy, plane.addresses.grpc)
        await eventually(is_synced(web))
        yield web
        nursery.cancel_scope.cancel()


def is_synced(web: Web) -> Callable[[], Awaitable[bool]]:
    async def found() -> bool:
        streams = json.loads(await web.get("/debug/syncz"))
        return bool(streams) and all(stream["status"] == {"CDS": "SYNCED"} for stream in streams)

    return found


def has(web: Web, name: str) -> Callable[[], Awaitable[bool]]:
    """True once a list of ``/debug/rejections`` has entries."""

    async def found() -> bool:
        return bool((await web.rejections())[name])

    return found


async def test_while_nothing_is_refused_nothing_is_shown(tmp_path: Path, nursery: trio.Nursery) -> None:
    async with serving(tmp_path, nursery) as web:
        assert await web.get("/ready") == "ready\n"
        found = await web.rejections()
        assert (found["quarantined"], found["trials"], found["held"]) == ([], [], [])
        metrics = await web.metrics()
        assert metrics["mesh_pilot_refusals_held",] == metrics["mesh_pilot_quarantine_trials",] == 0
        assert not [key for key in metrics if key[0] == "mesh_pilot_quarantined_objects"]
        assert (await web.status())[0] == 0


async def test_a_withheld_object_is_shown_everywhere_with_its_line_and_its_stand_in(
    tmp_path: Path, nursery: trio.Nursery
) -> None:
    async with serving(tmp_path, nursery) as web:
        (tmp_path / "odd.yaml").write_text("# one line\n" + ODD)
        await eventually(has(web, "quarantined"))
        await eventually(is_synced(web))
        (entry,) = (await web.rejections())["quarantined"]
        since = datetime.fromisoformat(entry.pop("since"))
        assert timedelta() <= datetime.now(UTC) - since < timedelta(minutes=5)
        assert entry.pop("where").endswith("/odd.yaml:2")
        assert entry == {
            "object": "ServiceEntry/shop/odd",
            "fields": ["spec.hosts[0]"],
            "from": "sidecar~10.9.9.9~web-1.shop~shop.svc.cluster.local at 127.0.0.1 alone",
            "served": "nothing, it is left out",
            "proxy": "web-1.shop",
            "type": "CDS",
            "resources": ["outbound|9080||odd.test"],
            "reason": WORDS,
            "proxies": ["web-1.shop"],
            "proxies_in_all": 1,
        }
        ready = (await web.get("/ready", monitoring=True)).splitlines()
        assert ready == [
            "ready",
            "quarantine: 1 object withheld from proxies that refuse them, 0 refusals on hold; "
            "see /debug/rejections on the web port",
        ]
        metrics = await web.metrics()
        assert metrics["mesh_pilot_quarantined_objects", "ServiceEntry"] == 1
        assert metrics["mesh_pilot_quarantine_verdicts",] == 1
        assert metrics["mesh_pilot_quarantine_trials",] >= 1
        statistics = json.loads(await web.get("/debug/statistics"))["quarantine"]
        assert (statistics["objects"], statistics["held"]) == (1, 0)


async def test_proxy_status_lists_it_until_it_changes(tmp_path: Path, nursery: trio.Nursery) -> None:
    async with serving(tmp_path, nursery) as web:
        (tmp_path / "odd.yaml").write_text(ODD)
        await eventually(has(web, "quarantined"))
        await eventually(is_synced(web))
        await nursery.start(lambda task_status: proxy(web.plane.addresses.grpc, name="web-2", task_status=task_status))
        await eventually(is_synced(web))
        code, out = await web.status()
        assert code == 1
        table, told, _ = out.split("\n\n")
        assert [row.split()[-3] for row in table.splitlines()] == ["WITHHELD", "1", "1"]
        lines = told.splitlines()
        assert lines[0] == "ServiceEntry/shop/odd is withheld from web-1.shop"
        assert "/odd.yaml:1, spec.hosts[0]; since " in lines[1]
        assert lines[1].endswith("; served instead: nothing, it is left out")
        assert lines[2] == f"  web-1.shop refused CDS outbound|9080||odd.test: {WORDS}"
        (tmp_path / "odd.yaml").write_text(ODD.replace("odd.test", "even.test"))

        async def is_over() -> bool:
            return not (await web.rejections())["quarantined"]

        await eventually(is_over)
        await eventually(is_synced(web))
        assert (await web.status())[0] == 0


async def test_a_refusal_that_nothing_is_done_about_is_shown_with_the_reason(
    tmp_path: Path, nursery: trio.Nursery
) -> None:
    async with serving(tmp_path, nursery, quarantine=QuarantineOptions(max_objects=0)) as web:
        (tmp_path / "odd.yaml").write_text(ODD)
        await eventually(has(web, "held"))
        (entry,) = (await web.rejections())["held"]
        assert (entry["proxy"], entry["type"], entry["reason"]) == ("web-1.shop", "CDS", WORDS)
        assert entry["held"] == "more than 0 objects would be withheld"
        assert "1 refusal on hold" in await web.get("/ready")
        assert (await web.metrics())["mesh_pilot_refusals_held",] == 1
        code, out = await web.status()
        assert code == 1
        assert out.endswith("\n  on hold: more than 0 objects would be withheld\n")


async def test_a_trial_is_listed_while_its_answer_is_awaited(tmp_path: Path, nursery: trio.Nursery) -> None:
    async with serving(tmp_path, nursery, quarantine=QuarantineOptions(answer_seconds=600)) as web:
        await nursery.start(partial(proxy, web.plane.addresses.grpc, name="slow", answers=2))
        (tmp_path / "odd.yaml").write_text(ODD)
        await eventually(has(web, "quarantined"))
        await eventually(has(web, "trials"))
        (entry,) = (await web.rejections())["trials"]
        assert (entry["proxy"], entry["objects"], entry["type"]) == ("slow.shop", ["ServiceEntry/shop/odd"], "CDS")
        code, out = await web.status("slow")
        assert code == 1
        assert "slow.shop is briefly served without ServiceEntry/shop/odd" in out


@pytest.mark.parametrize("path", ["/ready", "/debug/syncz", "/debug/rejections", "/metrics", "/debug/statistics"])
async def test_without_quarantine_every_page_works(path: str, tmp_path: Path) -> None:
    async with (
        running_plane(tmp_path, quarantine=None) as plane,
        httpx.AsyncClient(trust_env=False, timeout=60) as client,
    ):
        assert "quarantine_" not in await Web(plane, client, tmp_path).get(path)
