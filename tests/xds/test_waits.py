"""The waits of a session by the clock."""

from __future__ import annotations

from mesh_pilot.model.resource import CLUSTER
from mesh_pilot.xds.ads.waits import NackPauses


async def test_a_refusal_that_ends_all_pauses_on_its_way_still_begins_its_own() -> None:
    pauses = NackPauses(1.0, 5.0)
    pauses.refused(CLUSTER)
    count = pauses.refused(CLUSTER)
    pauses.end()  # as quarantine does which has found something to withhold
    pauses.pause(CLUSTER, count)
    assert pauses.on_hold() == {CLUSTER}
