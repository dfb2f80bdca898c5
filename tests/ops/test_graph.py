"""The picture of the mesh: which ends there are, and which routes lead from one to another."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.browser.mesh import GOOD, HOST
from tests.support.planes import running_plane

pytestmark = pytest.mark.plane

RATINGS = "ratings.shop.svc.cluster.local"


async def test_a_service_is_one_end_and_its_subsets_have_shares(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(GOOD.replace("{host: ratings}, weight: 5", "{host: nobody.test}, weight: 5"))
    async with running_plane(tmp_path) as plane, httpx.AsyncClient(trust_env=False, timeout=60) as client:
        found = (await client.get(f"http://{plane.addresses.http}/api/v1/graph")).json()
    edges = {(each["from"]["name"], each["to"]["name"], each["subset"]): each for each in found["edges"]}
    assert {key: each["share"] for key, each in edges.items()} == {
        ("shop/edge", HOST, ""): 1.0,
        (HOST, HOST, "v1"): 0.9,
        (HOST, HOST, "v2"): 1.0,
        (HOST, HOST, "v3"): 0.05,
        (HOST, "nobody.test", ""): 0.05,
        ("shop/web", RATINGS, ""): 1.0,
    }
    assert [key for key, each in edges.items() if each["is_conditional"]] == [(HOST, HOST, "v2")], "testers only"
    itself = edges[HOST, HOST, "v1"]
    assert itself["from"] == itself["to"] == {"kind": "service", "name": HOST, "namespace": "shop"}
    assert edges["shop/edge", HOST, ""]["from"]["kind"] == "gateway"
    assert edges[HOST, "nobody.test", ""]["to"] == {"kind": "unknown", "name": "nobody.test", "namespace": None}
