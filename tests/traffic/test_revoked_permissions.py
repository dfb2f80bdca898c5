"""A permission that is taken back ends for connections that stand, where Envoy has the flags that the docs name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from mesh_pilot.agent.bootstrap.envoy_bootstrap import DRAIN_FLAGS
from tests.support.guarded import ADDRESS, HOST, allow, guarded

pytestmark = pytest.mark.envoy


async def test_a_connection_that_is_kept_alive_carries_at_most_one_more_request_when_nobody_is_allowed(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    async with (
        guarded(tmp_path, free_ports(4), flags=DRAIN_FLAGS) as guard,
        httpx.AsyncClient(trust_env=False, timeout=60) as kept,
    ):
        url = f"http://{ADDRESS}:{guard.own_http}/"

        async def ask() -> httpx.Response:
            return await kept.get(url, headers={"host": HOST})

        before = [await ask() for _ in range(5)]
        assert [reply.status_code for reply in before] == [200] * 5
        assert "connection" not in before[-1].headers, "it is one connection, and is kept"
        await guard.apply(allow("nobody", "[]"))
        after = [await ask() for _ in range(20)]
        assert [reply.status_code for reply in after[1:]] == [403] * 19
        assert after[0].status_code == 403 or after[0].headers["connection"] == "close"
