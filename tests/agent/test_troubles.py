"""Lines of docs/troubleshooting.md about an agent that does not start. Other tests check those of one that runs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mesh_pilot.agent.envoy.binary import EnvoyError, ask_binary, find_envoy
from mesh_pilot.cli.proxy.machine import why_unusable
from tests.support.troubles import is_quoted


def test_a_line_that_the_page_does_not_have_is_not_quoted() -> None:
    assert not is_quoted("mesh-pilot: something else")
    assert not is_quoted({"event": "clock differs", "reason": "none"})


def test_no_envoy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("ENVOY", raising=False)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(EnvoyError) as nowhere:
        find_envoy()
    assert is_quoted(f"mesh-pilot: {nowhere.value}")
    monkeypatch.setenv("ENVOY", str(tmp_path / "envoy"))
    with pytest.raises(EnvoyError) as missing:
        find_envoy()
    assert is_quoted(f"mesh-pilot: {missing.value}")


@pytest.mark.process
async def test_an_envoy_that_is_too_old(tmp_path: Path) -> None:
    binary = tmp_path / "envoy"
    binary.write_text('#!/bin/sh\necho "envoy  version: 0123/1.20.4/Clean/RELEASE/BoringSSL"\n')
    binary.chmod(0o755)
    with pytest.raises(EnvoyError) as old:
        await ask_binary(binary)
    assert is_quoted(f"mesh-pilot: {old.value}")


def test_a_folder_that_others_may_write(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    end = "; name another folder with --state-dir; see mesh-pilot proxy sidecar --help"
    assert is_quoted(f"mesh-pilot: {tmp_path}: {why_unusable(tmp_path)}{end}")
