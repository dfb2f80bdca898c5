"""The rows of traffic of all workers: each counts what the proxies report that are connected to it."""

from __future__ import annotations

import math

import attrs
import trio

from mesh_pilot.base.in_turns import in_turns
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.replicas.workers.questions import TrafficQuestion
from mesh_pilot.traffic.table import TrafficEdge


async def traffic_edges(state: PlaneState, begin: float = -math.inf, end: float = math.inf) -> list[TrafficEdge]:
    """The rows that counted anything between two times of Trio's clock, as ``TrafficTable.edges`` of all workers; none
    where traffic is not counted. While a worker does not answer, no row is complete."""
    now = trio.current_time()
    question = TrafficQuestion(now - begin, now - end)
    found = await own_edges(state, question)
    if state.others is None:
        return found
    answers = await state.others.ask(question)
    for answer in answers.values():
        if isinstance(answer, list):
            found += answer
    if len(answers) < len(state.others.numbers):
        found = [attrs.evolve(each, counts=attrs.evolve(each.counts, is_complete=False)) for each in found]
    return found


async def own_edges(state: PlaneState, question: TrafficQuestion) -> list[TrafficEdge]:
    """The rows of this worker alone."""
    if state.traffic is None:
        return []
    now = trio.current_time()
    return await in_turns(state.traffic.table.edges(now - question.begin_ago, now - question.end_ago))
