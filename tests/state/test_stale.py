"""How it is said that a source has not confirmed the picture that is in force, and when that is too old to be ready."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from mesh_pilot.app.control_plane import ControlPlane, control_plane
from mesh_pilot.safety.state.settings import StateSettings
from tests.state.test_restart import Told, kept, names, picture
from tests.support.envoy import eventually
from tests.support.planes import settings

pytestmark = pytest.mark.plane


async def page(plane: ControlPlane, path: str) -> tuple[int, str]:
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        reply = await client.get(f"http://{plane.addresses.http}{path}")
        return reply.status_code, reply.text


async def test_a_stale_source_is_named_everywhere_and_is_over_when_it_answers(tmp_path: Path) -> None:
    limits: dict[str, float] = {}
    state = StateSettings(folder=tmp_path / "state", max_ages=limits)
    async with control_plane(settings(state=state), more_sources=[Told(*picture("a", "b"))]) as plane:
        await kept(plane)
    source = Told()
    async with control_plane(settings(state=state), more_sources=[source]) as plane:
        await plane.wait_ready()
        await eventually(lambda: set(plane.state.reducer.intake.stale()) == {"told"})
        code, text = await page(plane, "/ready")
        assert code == 200
        assert "told: stale: as it was 0:00:0" in text
        assert "before the restart: silence" in text
        _, text = await page(plane, "/metrics")
        (line,) = [line for line in text.splitlines() if 'source_stale_seconds{source="told"}' in line]
        assert float(line.split()[1]) > 0
        _, text = await page(plane, "/debug/rejections")
        assert '"state": "stale"' in text

        limits["told"] = 0.0
        code, text = await page(plane, "/ready")
        assert code == 503
        assert text.startswith("told: the picture is 0:00:0")
        assert "may be 0:00:00 old at most" in text
        assert names(plane) == {"a", "b"}, "proxies are served all the same"

        source.say(*picture("a", "b"))
        await eventually(lambda: not plane.state.reducer.intake.stale())
        code, text = await page(plane, "/ready")
        assert (code, "told" in text) == (200, False)


async def test_a_dead_server_of_one_namespace_is_named_and_makes_no_picture_too_old(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.mkdir()
    (config / "keys.yaml").write_text(
        "apiVersion: security.istio.io/v1\nkind: RequestAuthentication\nmetadata: {name: a, namespace: evil}\n"
        "spec: {jwtRules: [{issuer: a, jwksUri: 'http://jo:pa55@127.0.0.1:1/keys?api_key=pa55'}]}\n"
    )
    state = StateSettings(folder=tmp_path / "state", max_age=0.0)
    async with control_plane(settings(config, state=state)) as plane:
        await plane.wait_ready()
        await eventually(lambda: plane.state.ages().get("jwks", 0.0) > 0)
        code, text = await page(plane, "/ready")
        assert code == 200
        assert "jwks: silent for" in text
        assert "http://127.0.0.1:1/keys?...: all attempts to connect to 127.0.0.1:1 failed" in text
        assert "pa55" not in text
