"""A herd: all clients of a control plane that has gone come to this one at once, with the versions that they have.

While they are away an endpoint changes, so that each has to be sent something: a client is in sync when it holds the
change. Compared are the memory of the server before the herd (idle, all clients connected) and at most during it.
With another revision the two get their herds by turns, so that what else the machine does touches both alike.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import attrs

from bench.cases import Say, on_stage
from bench.events import Stage
from bench.mesh import HOT_SERVICE, Mesh, edit_marker
from bench.report import Measurement
from bench.server import Server, ServerError, checkout, own_server

_edits = itertools.count(9000)
PUBLISHED_SECONDS = 10.0


def herd(
    mesh: Mesh,
    clients: int,
    variants: Sequence[str],
    repeat: int,
    say: Say,
    *,
    keep: bool = True,
    rate: float = 0,
    revision: str = "",
) -> list[Measurement]:
    """Herds that come so often; without ``keep`` the clients have forgotten what they had.

    ``rate``: new streams a second that the server admits; 0: as many as its default. ``revision``: herds come to this
    git revision, too.
    """
    options = (f"--max-requests-per-second={rate:g}",) if rate else ()
    found: list[Measurement] = []
    for variant in variants:
        with ExitStack() as stack:
            sources = {"mesh-pilot": None} | ({revision: stack.enter_context(checkout(revision))} if revision else {})
            stages = []
            for name, source in sources.items():
                server = stack.enter_context(own_server(name, mesh.files(), source=source, options=options))
                server.start()
                stages.append(stack.enter_context(on_stage(server, mesh, variant, clients, say)))
            for number in range(repeat):
                for stage in stages:
                    stage.repeat = number
                    found.append(_come(stage, keep=keep))
    return found


def _come(stage: Stage, *, keep: bool) -> Measurement:
    server, crew = stage.server, stage.crew
    crew.quiet(0.5, 10)
    idle = server.memory()[0]
    crew.disconnect()
    edit = next(_edits)
    _publish(stage, edit)
    (Path("/proc") / str(server.pid) / "clear_refs").write_text("5")  # the peak begins again
    with stage.measuring(f"herd, {'with' if keep else 'without'} versions") as span:
        crew.expect([("EDS", edit_marker(edit), 1)], stage.mesh.seen_by)
        span.began = time.monotonic()
        crew.reconnect(keep=keep)
        connected = time.monotonic() - span.began
        span.times = crew.collect(stage.patience)
    peak = server.memory()[1]
    measured = stage.measured.pop()
    note = f"clients took {connected:.2f} s to connect; idle {idle:.0f} MB, at most {peak:.0f} MB: {peak / idle:.2f}"
    stage.say(note)
    return attrs.evolve(measured, note=note)


def _publish(stage: Stage, edit: int) -> None:
    """Change the endpoints of a service that all clients see, and wait until that is published."""
    server: Server = stage.server
    before = server.work().publish_count
    stage.write(HOT_SERVICE, stage.mesh.service(0, edit=edit, edited=1))
    deadline = time.monotonic() + PUBLISHED_SECONDS
    while server.work().publish_count == before:
        if time.monotonic() > deadline:
            raise ServerError("the change that the herd is to find is not published")
        time.sleep(0.05)
