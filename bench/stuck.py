"""What one client that reads nothing costs the others: the same edits with and without it, by turns on one server.

Machines have moods that last longer than an edit. So blocks of edits with and without the stuck client alternate, in
both orders, and what is compared are medians over edits, and the last hundredth of all clients in all edits.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from statistics import median

import attrs

from bench.cases import Say, on_stage
from bench.crew import Wanted
from bench.events import Stage
from bench.mesh import HOT_ROUTE, HOT_SERVICE, Mesh, edit_marker, route_marker
from bench.report import Measurement, spread
from bench.server import own_server

BLOCK = 3
"""Edits in a row without and with the stuck client."""

_edits = itertools.count(5000)


def _route(stage: Stage) -> tuple[Callable[[], float], Sequence[Wanted]]:
    edit = next(_edits)
    text = stage.mesh.virtual_service(0, edit)
    return lambda: stage.write(HOT_ROUTE, text), [("RDS", route_marker(edit), 1)]


def _endpoint(stage: Stage) -> tuple[Callable[[], float], Sequence[Wanted]]:
    edit = next(_edits)
    text = stage.mesh.service(0, edit=edit, edited=1)
    return lambda: stage.write(HOT_SERVICE, text), [("EDS", edit_marker(edit), 1)]


EDITS = {"route": _route, "endpoint": _endpoint}


@attrs.define
class Side:
    """All edits with what is compared, or all without it."""

    edits: list[Measurement] = attrs.Factory(list)
    times: list[float] = attrs.Factory(list)
    """Of every client in every edit."""

    def summary(self, event: str, note: str = "") -> Measurement:
        middle = sorted(self.edits, key=lambda m: m.last)[len(self.edits) // 2]
        problems = list(dict.fromkeys(problem for m in self.edits for problem in m.problems))
        return attrs.evolve(
            middle,
            event=event,
            missing=sum(m.missing for m in self.edits),
            cpu=median(m.cpu for m in self.edits),
            problems=problems,
            note=note,
            **spread(self.times),
        )


def stuck(mesh: Mesh, clients: int, variants: Sequence[str], edits: int, say: Say) -> list[Measurement]:
    """Both kinds of edit, so many with and so many without a stuck client."""
    found: list[Measurement] = []
    for variant in variants:
        with own_server("mesh-pilot", mesh.files()) as server:
            server.start()
            with on_stage(server, mesh, variant, clients, say) as stage:
                for kind in EDITS:
                    found += _compare(stage, kind, edits)
    return found


def _compare(stage: Stage, kind: str, edits: int) -> list[Measurement]:
    sides = {False: Side(), True: Side()}
    stage.change("warming up", *EDITS[kind](stage))
    order = itertools.cycle((False, True, True, False))
    while len(sides[False].edits) < edits or len(sides[True].edits) < edits:
        with_one = next(order)
        stage.crew.set_role("stuck" if with_one else "aside")
        for _ in range(BLOCK):
            do, wanted = EDITS[kind](stage)
            with stage.measuring(f"{kind} edit, {'one' if with_one else 'none'} stuck") as span:
                stage.crew.expect(wanted, stage.mesh.seen_by)
                span.began = do()
                span.times = stage.crew.collect(stage.patience)
            sides[with_one].edits.append(stage.measured.pop())
            sides[with_one].times += [at - span.began for at in span.times.at]
    stage.crew.set_role("normal")
    none, one = sides[False].summary(f"{kind} edit, none stuck"), sides[True].summary(f"{kind} edit, one stuck")
    typical = [median(m.p99 for m in sides[side].edits) for side in (False, True)]
    note = (
        f"{len(sides[True].edits)} edits each; against none: p99 {one.p99 / none.p99 - 1:+.1%}, "
        f"p99 of the middle edit {typical[1] / typical[0] - 1:+.1%}, CPU {one.cpu / none.cpu - 1:+.1%}"
    )
    stage.say(note)
    return [none, attrs.evolve(one, note=note)]
