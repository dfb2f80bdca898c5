"""Rewrites the table of routes in ``docs/api.md``: ``python -m tools.gen_api_docs``."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import trio

from mesh_pilot.ops.api.app import api_routes
from tests.support.planes import running_plane

PAGE = Path(__file__).parents[1] / "docs" / "api.md"
TABLE = re.compile(r"(?<=\| --- \| --- \| --- \|\n)(\| `[A-Z]+ .*\n)*")


async def rows() -> list[str]:
    """The rows, one for each route."""
    with tempfile.TemporaryDirectory() as folder:
        async with running_plane(Path(folder)) as plane:
            return [
                f"| `{route.method} {re.sub(r':[a-z]+}', '}', route.path)}` | {route.role} | {route.summary} |\n"
                for route in sorted(api_routes(plane.state), key=lambda route: (route.path, route.method))
            ]


if __name__ == "__main__":
    table = "".join(trio.run(rows))
    PAGE.write_text(TABLE.sub(lambda _: table, PAGE.read_text(encoding="utf-8"), count=1), encoding="utf-8")
