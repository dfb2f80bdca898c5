"""Rewrites the list of routes in ``docs/api.md``: ``python -m tools.gen_api_docs``."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable
from pathlib import Path

import trio

from mesh_pilot.ops.api.app import api_routes
from mesh_pilot.ops.api.route import ApiRoute
from tests.support.planes import running_plane

PAGE = Path(__file__).parents[1] / "docs" / "api.md"
LIST = re.compile(r"(?:^- `[A-Z]+ /.*\n)+", re.MULTILINE)


def items(routes: Iterable[ApiRoute]) -> str:
    """A line for each route: the first clause of its summary; role and scope where they are not those of most."""
    lines = []
    for route in sorted(routes, key=lambda route: (route.path, route.method)):
        said = ", ".join(word for word in (str(route.role), str(route.scope)) if word not in {"view", "any"})
        path = re.sub(r":[a-z]+}", "}", route.path)
        short = re.split(r"[:;] ", route.summary.removesuffix("."))[0]
        lines.append(f"- `{route.method} {path}`{said and f' ({said})'}: {short}\n")
    return "".join(lines)


async def current() -> str:
    with tempfile.TemporaryDirectory() as folder:
        async with running_plane(Path(folder)) as plane:
            return items(api_routes(plane.state))


if __name__ == "__main__":
    made = trio.run(current)
    PAGE.write_text(LIST.sub(lambda _: made, PAGE.read_text(encoding="utf-8"), count=1), encoding="utf-8")
