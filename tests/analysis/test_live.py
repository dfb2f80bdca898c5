"""Analysis of a whole control plane in-process: its API, and files on top of what is in force."""

from __future__ import annotations

import io
from pathlib import Path

import httpx
import pytest
import trio

from mesh_pilot.cli.explain.analysis_output import as_json, of_plane
from mesh_pilot.explain.analysis.command_line import LivePlane, analyze
from mesh_pilot.explain.plan.picture import read_picture
from tests.support.planes import SERVICE, running_plane

pytestmark = pytest.mark.plane

ROUTES = """\
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: reviews, namespace: shop}
spec:
  hosts: [reviews.test]
  http:
  - route:
    - destination: {host: revews.test}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop}
spec:
  selector: {istio: ingressgateway}
  servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ["*"]}]
"""


async def test_a_live_plane_says_what_is_wrong_and_files_are_analyzed_on_top_of_it(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.mkdir()
    (config / "service.yaml").write_text(SERVICE)
    (config / "routes.yaml").write_text(ROUTES)
    async with running_plane(config) as plane, httpx.AsyncClient(trust_env=False, timeout=60) as client:
        url = f"http://{plane.addresses.http}/api/v1"
        found = (await client.get(f"{url}/analysis")).json()
        assert found["objects"] == 3
        assert found["counts"] == {"errors": 1, "warnings": 1, "infos": 0}
        error = found["errors"][0]
        assert (error["code"], error["where"]) == ("IST0101", f"{config}/routes.yaml:8")
        assert error["fix"] == "Did you mean reviews.test?"
        assert [warning["code"] for warning in found["warnings"]] == ["MP0014"]
        assert '"objects": 3' in as_json(of_plane(found))

        quiet = (await client.get(f"{url}/analysis", params={"suppress": ["IST0101=VirtualService/*", "MP*"]})).json()
        assert (quiet["errors"], quiet["warnings"], quiet["suppressed"]) == ([], [], 2)
        wrong = await client.get(f"{url}/analysis", params={"suppress": "IST9999"})
        assert (wrong.status_code, wrong.json()["error"][:37]) == (400, "there is no message 'IST9999'; see do")

        picture = read_picture((await client.get(f"{url}/picture")).json())
    live = LivePlane(picture.items, picture.settings, ())
    change = tmp_path / "change.yaml"
    change.write_text(ROUTES.partition("---")[0].replace("revews", "reviews"))
    after = await trio.to_thread.run_sync(lambda: analyze([str(change)], io.BytesIO(), plane=live))
    assert [finding.code for finding in after.findings] == ["MP0014"]
    assert after.objects == 1
    change.write_text(SERVICE.replace("reviews.test", "other.test"))
    broken = await trio.to_thread.run_sync(lambda: analyze([str(change)], io.BytesIO(), plane=live))
    assert [finding.code for finding in broken.findings] == ["IST0101", "MP0014"]
