"""Files that are written badly, by real processes, under a real Envoy and a steady load: no request fails."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from support.manifests import routes
from support.shop import HOST, TO_V1, reviews, shop

pytestmark = [pytest.mark.envoy, pytest.mark.slow]

_PARTS = """
import sys, time
source, target, size, pause = sys.argv[1:]
data = open(source).read()
steps = [data[at:at + int(size)] for at in range(0, len(data), int(size))]
"""
_SLOWLY = (
    _PARTS
    + """
file = open(target, "w")
for step in steps:
    file.write(step)
    file.flush()
    time.sleep(float(pause))
"""
)
_IN_TURNS = (
    _PARTS
    + """
open(target, "w").close()
for step in steps:
    with open(target, "a") as file:
        file.write(step)
    time.sleep(float(pause))
"""
)
_TWO_COMMANDS = "head -30 {good} > {target}; sleep 0.2; tail -n +31 {good} >> {target}"
_BROKEN_FIRST = "cat {broken} > {target}; sleep 2.5; cat {good} > {target}"
_NO_KIND = "apiVersion: networking.istio.io/v1\nkind: Service\nmetadata: {name: reviews}\n"
_HALF_A_NAME = "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: rev}\n"
ROUNDS = 2


def slowly(program: str, size: str, pause: str) -> tuple[str, ...]:
    return (sys.executable, "-c", program, "{good}", "{target}", size, pause)


def shell(script: str) -> tuple[str, ...]:
    return ("sh", "-c", script)


WRITERS: dict[str, tuple[tuple[str, ...], str]] = {
    "truncated by the shell": (shell("(sleep 1; cat {good}) > {target}"), ""),
    "slowly, some bytes at a time": (slowly(_SLOWLY, "200", "0.2"), ""),
    "in two parts": (slowly(_SLOWLY, "600", "0.3"), ""),
    "closed between the parts": (slowly(_IN_TURNS, "600", "0.2"), ""),
    "by two commands": (shell(_TWO_COMMANDS), ""),
    "with nothing": (shell(_BROKEN_FIRST), ""),
    "with text": (shell(_BROKEN_FIRST), "hello\n"),
    "with an object without a name": (shell(_BROKEN_FIRST), "apiVersion: apps/v1\nkind: Deployment\n"),
    "with half a name": (shell(_BROKEN_FIRST), _HALF_A_NAME),
    "with an unknown kind": (shell(_BROKEN_FIRST), _NO_KIND),
    "with comments": (shell(_BROKEN_FIRST), "# nothing\n"),
}


@pytest.mark.parametrize("how", WRITERS)
async def test_no_request_fails_while_a_file_is_overwritten(
    tmp_path: Path, free_ports: Callable[[int], list[int]], how: str
) -> None:
    (port,) = free_ports(1)
    command, broken = WRITERS[how]
    async with shop(tmp_path, port) as at:
        good = reviews(port, at.v1, at.v2) + routes(HOST, f"- route: {TO_V1}")
        await at.mesh.apply(good)
        names = {"target": str(at.mesh.folder / "config" / "config.yaml")}
        for name, text in (("good", good), ("broken", broken)):
            (tmp_path / name).write_text(text)
            names[name] = str(tmp_path / name)
        filled = [part.format(**names) for part in command]
        async with at.mesh.load(at.url, host=HOST) as load:
            for _ in range(ROUNDS):
                await trio.run_process(filled, check=True, stderr=subprocess.STDOUT)
                await trio.sleep(1)
        assert load.failures == []
        at.mesh.assert_nothing_refused()
        assert await at.name() == "v1"
