from __future__ import annotations

import gc
import sys

from mesh_pilot.cli.lib.process import SWITCH_SECONDS, THRESHOLDS, long_lived, set_aside


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
