"""DNS rebinding: a web port that is open to its machine alone is not reached by names that others can own."""

from __future__ import annotations

import pytest

from mesh_pilot.ops.access.gate import names_this_machine


@pytest.mark.parametrize("host", ["evil-localhost", "evillocalhost:8080", "notlocalhost."])
def test_a_name_that_only_ends_like_localhost_is_not_this_machine(host: str) -> None:
    assert not names_this_machine(host)
