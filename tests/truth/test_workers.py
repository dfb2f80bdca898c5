"""The truth over several workers: each tells of its own proxies, and the first adds up what all have seen."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest

from mesh_pilot.explain.truth.fleet import FleetTruth, SeenAt
from mesh_pilot.explain.truth.states import Truth, TruthState
from mesh_pilot.ops.api.analysis import workers_together
from mesh_pilot.ops.api.objects import routes
from mesh_pilot.ops.values.truth import truth_now
from mesh_pilot.ops.workers import about_this_worker
from mesh_pilot.replicas.workers.questions import TruthQuestion
from tests.support.planes import SERVICE, running_plane

pytestmark = pytest.mark.plane

KEY = ("config", "ServiceEntry", "shop", "reviews")
OLD = Truth(TruthState.WITHHELD, "web-2.shop refused it", has_newest=False)


class Second:
    """The other worker. It has two proxies from which an object is withheld, and one that has it once it is asked."""

    numbers = (2,)

    def __init__(self) -> None:
        self.asked: list[object] = []

    def missing(self) -> Mapping[int, str]:
        return {}

    async def ask(self, question: object) -> Mapping[int, object]:
        assert isinstance(question, TruthQuestion)
        self.asked.append(question.asked)
        groups = (SeenAt(OLD, 2, ("web-2.shop", "web-3.shop")),)
        if KEY in question.asked:
            groups += (SeenAt(Truth(TruthState.IN_FORCE), 1, ("web-4.shop",)),)
        answer: object = pickle.loads(pickle.dumps({KEY: FleetTruth(groups)}))  # as between processes
        return {2: answer, 3: None}


async def test_what_another_worker_withholds_is_told_by_the_first(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(SERVICE)
    async with running_plane(tmp_path) as plane:
        second: Any = Second()
        truth = (await truth_now(attrs.evolve(plane.state, others=second))).of(KEY)
        assert truth.state is TruthState.WITHHELD
        assert truth.why == "from 2 of 3 proxies that it applies to: web-2.shop refused it"
        assert (truth.proxies, truth.proxies_in_all, truth.applies_to) == (["web-2.shop", "web-3.shop"], 2, 3)
        assert second.asked == [(), (KEY,)]
        assert await about_this_worker(plane.state, None)(TruthQuestion((KEY,))) == {}


def test_of_findings_about_all_proxies_those_of_the_first_worker_count() -> None:
    def answer(reason: str) -> dict[str, Any]:
        row = {"code": "MP0040", "object": "ServiceEntry/shop/reviews", "reason": reason}
        return {"errors": [], "warnings": [row], "infos": [], "counts": {"errors": 0, "warnings": 1, "infos": 0}}

    merged = workers_together({1: answer("withheld from 3 of 5"), 2: answer("withheld from 1 of 2")})
    assert [row["reason"] for row in merged["warnings"]] == ["withheld from 3 of 5"]


def test_an_object_at_a_proxy_is_told_by_the_worker_that_has_it() -> None:
    (merge,) = (route.merge for route in routes(None) if route.path.endswith("{name}"))  # type: ignore[arg-type]
    assert merge is not None
    merged: Any = merge({2: {"truth": {"state": "withheld"}, "produces": [{"type": "CDS", "name": "a", "proxies": 1}]}})
    assert merged["truth"] == {"state": "withheld"} and merged["produces"][0]["proxies"] == 1
