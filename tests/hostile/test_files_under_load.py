"""Files that are written badly, by real processes, under a real Envoy and a steady load: no request fails."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from tests.support.manifests import routes
from tests.support.shop import HOST, TO_V1, reviews, shop

pytestmark = [pytest.mark.envoy, pytest.mark.slow]

# Writers are told by their environment: GOOD and BROKEN are files to write to TARGET.

IN_ONE_GO = """
import os, time
with open(os.environ["TARGET"], "w") as file:
    for document in open(os.environ["GOOD"]).read().split("---\\n"):
        file.write(f"---\\n{document}")
        file.flush()
        time.sleep(0.3)
"""
IN_TURNS = """
import os, time
open(os.environ["TARGET"], "w").close()
for document in open(os.environ["GOOD"]).read().split("---\\n"):
    with open(os.environ["TARGET"], "a") as file:
        file.write(f"---\\n{document}")
    time.sleep(0.3)
"""
BROKEN_FIRST = "cat $BROKEN > $TARGET; sleep 2.5; cat $GOOD > $TARGET"
NO_NAME = "apiVersion: apps/v1\nkind: Deployment\n"
NO_KIND = "apiVersion: networking.istio.io/v1\nkind: Service\nmetadata: {name: reviews}\n"
HALF_A_NAME = "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: rev}\n"

WRITERS: dict[str, tuple[str, str, str]] = {
    "truncated by the shell": ("sh", "(sleep 1; cat $GOOD) > $TARGET", ""),
    "a document at a time": (sys.executable, IN_ONE_GO, ""),
    "a document at a time, closed in between": (sys.executable, IN_TURNS, ""),
    "by two commands": ("sh", "head -30 $GOOD > $TARGET; sleep 0.2; tail -n +31 $GOOD >> $TARGET", ""),
    "with nothing": ("sh", BROKEN_FIRST, ""),
    "with comments": ("sh", BROKEN_FIRST, "# nothing\n"),
    "with text": ("sh", BROKEN_FIRST, "hello\n"),
    "with an object without a name": ("sh", BROKEN_FIRST, NO_NAME),
    "with half a name": ("sh", BROKEN_FIRST, HALF_A_NAME),
    "with an unknown kind": ("sh", BROKEN_FIRST, NO_KIND),
}
"""An interpreter, a script for it, and what BROKEN holds."""

ROUNDS = 2


@pytest.mark.parametrize("how", WRITERS)
async def test_no_request_fails_while_a_file_is_overwritten(
    tmp_path: Path, free_ports: Callable[[int], list[int]], how: str
) -> None:
    (port,) = free_ports(1)
    interpreter, script, broken = WRITERS[how]
    async with shop(tmp_path, port) as at:
        good = reviews(port, at.v1, at.v2) + routes(HOST, f"- route: {TO_V1}")
        await at.mesh.apply(good)
        (tmp_path / "good").write_text(good)
        (tmp_path / "broken").write_text(broken)
        target = at.mesh.folder / "config" / "config.yaml"
        places = {"GOOD": str(tmp_path / "good"), "BROKEN": str(tmp_path / "broken"), "TARGET": str(target)}
        async with at.mesh.load(at.url, host=HOST) as load:
            for _ in range(ROUNDS):
                await trio.run_process([interpreter, "-c", script], env={**os.environ, **places})
                await trio.sleep(1)
        assert load.failures == []
        at.mesh.assert_nothing_refused()
        assert await at.name() == "v1"
