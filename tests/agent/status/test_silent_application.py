"""An application that takes a connection and never answers costs its own metrics only."""

from __future__ import annotations

import trio

from tests.agent.status.test_status_server import TEXT, status
from tests.support.small_http import Said, small_http

LINES = 20_000


async def test_a_long_page_of_envoy_is_whole_beside_an_application_that_never_answers() -> None:
    page = b"# TYPE envoy_up gauge\n" + b"".join(b'envoy_up{of="%d"} 1\n' % number for number in range(LINES))
    (silent,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with silent, small_http({"/stats/prometheus": Said(page, TEXT)}) as envoy:
        port = silent.socket.getsockname()[1]
        async with status(admin=envoy.port, scrape={"port": port}) as agent:
            reply = await agent.get("/metrics", {"x-prometheus-scrape-timeout-seconds": "2"})
    assert reply.text.count("envoy_up{") == LINES
    assert 'scrape_failures_total{key="application"} 1\n' in reply.text
    assert 'scrape_failures_total{key="envoy"} 0\n' in reply.text
