"""Rollouts of a whole plane by its API and the command line: orders, pages, metrics, mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import click
import httpx
import pytest
import trio

from mesh_pilot.app.control_plane import ControlPlane
from mesh_pilot.cli.change.rollout import status_lines
from mesh_pilot.cli.discovery.flags import RolloutFlags
from mesh_pilot.cli.lib.rollout_types import labels, share, shares
from mesh_pilot.model.json import as_json
from mesh_pilot.ops.api.rollout import rollout_status
from mesh_pilot.safety.quarantine.controller import QuarantineController
from mesh_pilot.safety.rollout.controller import RolloutController
from mesh_pilot.safety.rollout.progress import RolloutPhase
from mesh_pilot.safety.state.settings import StateSettings
from mesh_pilot.world import World
from tests.support.command import Done, mesh_pilot
from tests.support.envoy import eventually
from tests.support.planes import SERVICE, running_plane

ROUTE = """\
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: reviews, namespace: shop}
spec: {hosts: [reviews.test], http: [{timeout: 1s, route: [{destination: {host: reviews.test}}]}]}
"""


async def page(plane: ControlPlane, path: str) -> str:
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        return (await client.get(f"http://{plane.addresses.http}{path}")).text


@pytest.mark.plane
async def test_orders_from_start_to_promotion(tmp_path: Path) -> None:
    config, folder = tmp_path / "config", tmp_path / "state"
    config.mkdir()
    (config / "a.yaml").write_text(SERVICE)
    (config / "b.yaml").write_text(ROUTE)

    async def run(*arguments: str) -> Done:
        return await trio.to_thread.run_sync(
            lambda: mesh_pilot("rollout", *arguments, "--state-dir", str(folder)), abandon_on_cancel=True
        )

    state = StateSettings(folder=folder)
    async with running_plane(config, state=state, debounce_after=0.01, guard=None) as plane:
        keeper = plane.state.rollouts
        assert keeper is not None
        assert json.loads(await page(plane, "/api/v1/rollout")) == {"phase": "off"}
        done = await run("start", "--proxies", "web-*", "--steps", "50", "--interval", "1h", "-o", "json")
        assert done.code == 0, done.err
        assert json.loads(done.out)["steps"] == [0, 50, 100]
        assert keeper.progress.phase is RolloutPhase.ARMED
        assert "rollout" not in await page(plane, "/ready")

        (config / "a.yaml").write_text(SERVICE.replace("10.0.0.1", "10.0.0.2"))
        await eventually(lambda: plane.state.world.revision > 1)
        assert keeper.progress.phase is RolloutPhase.ARMED, "endpoints are not change of configuration"

        (config / "b.yaml").write_text(ROUTE.replace("1s", "2s"))
        await eventually(lambda: keeper.progress.phase is RolloutPhase.RUNNING)
        done = await run("status")
        assert "running: step 1 of 3 (selected, 50%, 100%)" in done.out
        assert "waits for a proxy of the canary to connect" in done.out
        assert "VirtualService/shop/reviews" in done.out
        assert "rollout: 1 object at step 1 of 3; see mesh-pilot rollout status" in await page(plane, "/ready")
        assert 'mesh_pilot_rollout_phase{phase="running"} 1.0' in await page(plane, "/metrics")

        refused = await run("start")
        assert refused.code == 1
        assert "a rollout is running: promote or abort it first" in refused.err
        assert (await run("abort")).out.startswith("taken back: an operator has aborted it")
        (entry,) = json.loads(await page(plane, "/debug/rejections"))["taken_back"]
        assert entry["object"] == "VirtualService/shop/reviews"
        assert "b.yaml" in entry["where"]
        assert "taken back from all proxies" in await page(plane, "/ready")
        assert (await run("promote")).out == "promoted: all proxies get the new objects\n"
        assert "there is nothing to promote: the rollout is off; mesh-pilot rollout start" in (await run("promote")).err
        await eventually(lambda: not plane.state.world.overlays)
        async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
            reply = await client.post(f"http://{plane.addresses.http}/api/v1/rollout", json={})
            assert reply.status_code == 403, "an order"


def test_without_a_rollout_nothing_stands_between_a_session_and_quarantine() -> None:
    world = World()
    inner = QuarantineController(world, lambda proxy: proxy.namespace)
    keeper = RolloutController(world, inner)
    for name in ("joining", "sent", "accepted", "is_interested", "trial_of"):
        assert getattr(keeper, name) == getattr(inner, name)
    assert not world.overlays


@pytest.mark.parametrize(
    ("given", "workers", "reason"),
    [
        (RolloutFlags(canary=5.0), 2, "does not work with --workers"),
        (RolloutFlags(steps=(5.0,)), 1, "needs --rollout-canary"),
    ],
)
def test_flags_that_do_not_go_together_are_refused_with_one_line(
    given: RolloutFlags, workers: int, reason: str
) -> None:
    with pytest.raises(click.UsageError, match=reason):
        given.plan(workers)


def test_types_of_flags() -> None:
    assert (share("5%"), shares("5,25%,100"), labels("app=web,a=")) == (
        5.0,
        (5.0, 25.0, 100.0),
        {"app": "web", "a": ""},
    )
    for kind, text in ((share, "0"), (share, "nan"), (share, "101"), (shares, "5,5"), (labels, "web")):
        with pytest.raises(ValueError, match=text.split(",")[0]):
            kind(text)  # type: ignore[operator]  # each takes a string
    found = RolloutFlags(canary=10.0, interval=5.0).plan(1)
    assert found is not None
    assert (found.steps, found.interval) == ((10.0, 25.0, 50.0, 100.0), 5.0)


def test_off_is_one_line() -> None:
    assert [*status_lines(as_json(rollout_status(None)))] == ["no rollout: changes go to all proxies at once"]
