"""Time limits, retries and faults of routes, seen from both ends of a real Envoy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.support.echo import failing
from tests.support.envoy import eventually
from tests.support.shop import TO_V1, shop

pytestmark = pytest.mark.envoy

Ports = Callable[[int], list[int]]


async def test_requests_are_given_the_time_that_the_rule_gives_them(tmp_path: Path, free_ports: Ports) -> None:
    """The one without a limit was asked for first, and is still waited for when the other is given up."""
    http = """
    - match: [{uri: {prefix: /limited}}]
      timeout: 1s
      route: $v1
    - match: [{uri: {prefix: /unlimited}}]
      timeout: 0s
      route: $v1
    """
    (port,) = free_ports(1)
    async with shop(tmp_path, port, http, delta=True, v1=TO_V1) as at, trio.open_nursery() as nursery:
        at.v1.gate = trio.Event()
        statuses: list[int] = []

        async def patiently() -> None:
            statuses.append((await at.ask("/unlimited")).status_code)

        nursery.start_soon(patiently)
        await eventually(lambda: at.v1.asked("/unlimited") == 1)
        late = await at.ask("/limited")
        assert late.status_code == 504
        assert at.v1.asked("/limited") <= 1, "given up, not tried again"
        assert statuses == []
        at.v1.gate.set()
        await eventually(lambda: statuses == [200])
        assert (await at.ask("/limited")).status_code == 200


RETRIES: dict[str, tuple[tuple[int, ...], int, int]] = {
    "": ((503,), 503, 1),
    "retries: {attempts: 0},": ((503,), 503, 1),
    "retries: {attempts: 3},": ((503,), 503, 1),
    "retries: {attempts: 1, retryOn: '503'},": ((503, 503), 503, 2),
    "retries: {attempts: 3, retryOn: '503'},": ((503, 503, 503), 200, 4),
    "retries: {attempts: 2, retryOn: 5xx},": ((500, 502), 200, 3),
    "retries: {attempts: 2, retryOn: gateway-error},": ((500,), 500, 1),
    "retries: {attempts: 2, retryOn: '429,408'},": ((429, 408), 200, 3),
    "retries: {attempts: 2, retryOn: retriable-4xx},": ((409,), 200, 2),
    "retries: {attempts: 2, retryOn: connect-failure},": ((503,), 503, 1),
    "retries: {attempts: 2, retryOn: 5xx, backoff: 1ms, retryIgnorePreviousHosts: false},": ((500, 500), 200, 3),
}
"""A rule: what the backend answers at first, what the client gets, and how often the backend is asked."""


@pytest.mark.smoke
async def test_requests_are_tried_again_as_often_as_the_rule_says_on_what_it_says(
    tmp_path: Path, free_ports: Ports
) -> None:
    (port,) = free_ports(1)
    http = "".join(f"- {{match: [{{uri: {{exact: /{n}}}}}], {rule} route: $v1}}\n" for n, rule in enumerate(RETRIES))
    async with shop(tmp_path, port, http, delta=True, v1=TO_V1) as at:
        wrong = []
        for n, (rule, (statuses, final, tries)) in enumerate(RETRIES.items()):
            at.v1.answer = failing(*statuses)
            got = (await at.ask(f"/{n}")).status_code, at.v1.asked(f"/{n}")
            if got != (final, tries):
                wrong.append((rule, got, (final, tries)))
        assert wrong == []


async def test_each_try_has_its_time_and_another_endpoint_is_tried(tmp_path: Path, free_ports: Ports) -> None:
    http = """
    - match: [{uri: {prefix: /v1}}]
      retries: {attempts: 2, perTryTimeout: 0.1s, retryOn: reset, backoff: 1ms}
      route: $v1
    - timeout: 10s
      retries: {attempts: 1, perTryTimeout: 1s, retryOn: reset}
      route: [{destination: {host: reviews.example.com}}]
    """
    (port,) = free_ports(1)
    async with shop(tmp_path, port, http, v1=TO_V1) as at:
        at.v1.gate = trio.Event()
        assert (await at.ask("/v1")).status_code == 504
        # Envoy's own count: this process may have been too busy to see a try before it was given up.
        assert await at.envoy.counted("v1.*upstream_rq_per_try_timeout$") == 3
        with trio.fail_after(60):
            while not at.v1.asked("/any"):
                assert await at.name("/any") == "v2"
        at.v1.gate.set()


async def test_the_mesh_says_how_requests_are_tried_again_where_no_rule_does(tmp_path: Path, free_ports: Ports) -> None:
    http = "- {match: [{uri: {exact: /own}}], retries: {attempts: 0}, route: $v1}\n- {route: $v1}"
    mesh = "defaultHttpRetryPolicy: {attempts: 1, retryOn: 5xx}"
    (port,) = free_ports(1)
    async with shop(tmp_path, port, http, mesh=mesh, v1=TO_V1) as at:
        at.v1.answer = failing(500)
        assert [await at.name("/"), await at.name("/own")] == ["v1", "500"]
        at.v1.answer = failing(500, 500)
        assert await at.name("/twice") == "500"


FAULTS: dict[str, dict[str, Any]] = {
    "abort: {httpStatus: 418, percentage: {value: 100}}": {"status": 418},
    "abort: {httpStatus: 418, percentage: {value: 0}}": {"status": 200},
    "abort: {httpStatus: 418}": {"status": 200},
    "abort: {grpcStatus: RESOURCE_EXHAUSTED, percentage: {value: 100}}": {"status": 200, "grpc": "8"},
    "abort: {grpcStatus: UNAVAILABLE, percentage: {value: 100}}": {"status": 200, "grpc": "14"},
    "delay: {fixedDelay: 0.2s, percentage: {value: 100}}": {"status": 200, "delays": 1},
    "delay: {fixedDelay: 60s, percentage: {value: 0}}": {"status": 200},
    "delay: {fixedDelay: 0.2s, percentage: {value: 100}}, abort: {httpStatus: 503, percentage: {value: 100}}": {
        "status": 503,
        "delays": 1,
    },
}


async def test_faults_are_injected(tmp_path: Path, free_ports: Ports) -> None:
    (port,) = free_ports(1)
    http = "".join(
        f"- {{match: [{{uri: {{exact: /{n}}}}}], fault: {{{fault}}}, route: $v1}}\n" for n, fault in enumerate(FAULTS)
    )
    async with shop(tmp_path, port, http, delta=True, v1=TO_V1) as at:
        wrong: list[tuple[str, Mapping[str, Any]]] = []
        for n, (fault, wanted) in enumerate(FAULTS.items()):
            headers = {"content-type": "application/grpc"} if "grpc" in wanted else {}
            before = await at.envoy.counted("fault.delays_injected$")
            reply = await at.ask(f"/{n}", headers=headers)
            got: dict[str, Any] = {"status": reply.status_code}
            if "grpc-status" in reply.headers:
                got["grpc"] = reply.headers["grpc-status"]
            if delays := await at.envoy.counted("fault.delays_injected$") - before:
                got["delays"] = delays
            if got != wanted:
                wrong.append((fault, got))
        assert wrong == []


async def test_a_share_of_requests_gets_the_fault(tmp_path: Path, free_ports: Ports) -> None:
    http = "- {fault: {abort: {httpStatus: 500, percentage: {value: 30}}}, retries: {attempts: 0}, route: $v1}"
    (port,) = free_ports(1)
    async with shop(tmp_path, port, http, v1=TO_V1) as at:
        statuses = Counter([await at.name() for _ in range(200)])
        assert statuses.keys() == {"v1", "500"} and 25 < statuses["500"] < 100, statuses
