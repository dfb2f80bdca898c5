"""Instances that a registry leaves out are described with the reason, as they are nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.state.test_consul_returns import CATALOG, entry, plane
from tests.support.consul_stub import consul_stub
from tests.support.envoy import http_client

pytestmark = pytest.mark.plane


async def test_a_critical_instance_is_described_with_the_output_of_its_check(tmp_path: Path) -> None:
    bad = entry("web", "10.0.0.2")
    bad["Checks"] = [{"CheckID": "c", "Name": "HTTP", "Status": "critical", "Output": "connection refused"}]
    async with consul_stub() as stub:
        stub.answer(CATALOG, {"consul": [], "web": []}, index=5)
        stub.answer("/v1/health/service/web", [entry("web", "10.0.0.1"), bad], index=5)
        async with plane(stub, tmp_path) as running, http_client() as client:
            url = f"http://{running.addresses.http}/api/v1/describe/service/web.service.consul"
            found = (await client.get(url)).json()
    assert found["summary"] == "1 port, 1 of 1 endpoints healthy, 1 left out"
    (lines,) = [each["lines"] for each in found["sections"] if each["title"] == "Left out by the registry"]
    assert [line["text"] for line in lines] == ["web-10.0.0.2 on n, 10.0.0.2:80, critical: HTTP: connection refused"]
