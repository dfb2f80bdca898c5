"""Rollouts: how far one is, and an operator's orders about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import attrs
import trio
from starlette.requests import Request

from mesh_pilot.model.json import SPREAD
from mesh_pilot.ops.api.orders import json_body
from mesh_pilot.ops.api.route import TEXT, ApiError, ApiTopic, Found, Parameter, list_of, object_of
from mesh_pilot.ops.api.visitors import Role, Scope, sees_name
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.safety.quarantine.verdicts import name_of
from mesh_pilot.safety.rollout.controller import RolloutController
from mesh_pilot.safety.rollout.progress import Progress, RolloutError, RolloutPhase, plan_of

NAMED = 100
"""Proxies and objects that an answer names."""

ORDER = Parameter("order", "pause, resume, promote (to all, now) or abort (take back).")


PLAN = object_of(
    canary={"type": "number"},
    steps=list_of({"type": "number"}),
    interval={"type": "number"},
    within={"type": "number"},
    labels={"type": "object"},
    names=list_of(TEXT),
    judged_by=TEXT,
    by=TEXT,
)


@attrs.frozen
class CanaryState:
    """The proxies that were chosen to have the new objects."""

    chosen: int
    connected: int
    accepted: int
    names: Sequence[str]


@attrs.frozen
class RolloutObject:
    """An object that not all proxies have."""

    object: str
    where: str
    taken_back: bool


@attrs.frozen(kw_only=True)
class RolloutProgress:
    """How far a rollout is."""

    step: int
    steps: Sequence[float]
    """Percentages of the proxies; of the way of weights if it is by weights."""
    share: float
    """The percentage of now."""
    interval: float
    """Seconds between two steps."""
    within: float | None
    labels: Mapping[str, str]
    names: Sequence[str]
    canary: CanaryState
    proxies: int
    changes: int
    objects: Sequence[RolloutObject]
    """The first of the changed objects."""
    waits_for: str
    by: str
    """``proxies`` or ``weights``."""
    judged_by: str
    """The condition on the canary's traffic."""
    traffic: str
    """The traffic that is judged, and how much there was."""
    reason: str
    """Why it was taken back."""


@attrs.frozen
class RolloutStatus:
    """A rollout."""

    phase: RolloutPhase
    progress: RolloutProgress | None = attrs.field(default=None, metadata=SPREAD)
    """None while there is no rollout."""


routes = ApiTopic()


@routes.declare(
    "/rollout",
    "The rollout: its step, proxies and objects, what it waits for.",
    answers=RolloutStatus,
    scope=Scope.ANY,
)
async def status(state: PlaneState, request: Request) -> Found:
    return rollout_for(request, state.rollouts)


@routes.declare(
    "/rollout",
    'Make the next change of configuration a rollout: {"canary": 5} or {"names": ["web-*"]}.',
    method="POST",
    role=Role.OPERATE,
    answers=RolloutStatus,
    body=PLAN,
)
async def start(state: PlaneState, request: Request) -> Found:
    controller, asked = _controller(state), await json_body(request)
    try:
        plan = plan_of(**_arguments(asked))
        controller.order(lambda progress: progress.arm(plan, trio.current_time()), "start")
    except RolloutError as error:
        raise _refused(error) from None
    return rollout_status(controller)


@routes.declare(
    "/rollout/{order}",
    "Pause the rollout, resume, promote or abort it.",
    method="POST",
    role=Role.OPERATE,
    parameters=(ORDER,),
    answers=RolloutStatus,
)
async def order(state: PlaneState, request: Request) -> Found:
    controller, name = _controller(state), request.path_params["order"]
    orders = {
        "pause": Progress.pause,
        "resume": lambda progress: progress.resume(trio.current_time()),
        "promote": Progress.promote,
        "abort": lambda progress: progress.abort("an operator has aborted it"),
    }
    if name not in orders:
        raise ApiError(404, f"there is no order {name[:40]!r}; there are {', '.join(orders)}")
    try:
        controller.order(orders[name], name)
    except RolloutError as error:
        raise _refused(error) from None
    return rollout_status(controller)


def rollout_for(request: Request, controller: RolloutController | None) -> RolloutStatus:
    """The rollout without the names of objects that the one who asks may not view."""
    found, is_seen = rollout_status(controller), sees_name(request)
    if found.progress is None:
        return found
    objects = [each for each in found.progress.objects if is_seen(each.object)]
    return attrs.evolve(found, progress=attrs.evolve(found.progress, objects=objects))


def rollout_status(controller: RolloutController | None) -> RolloutStatus:
    """The rollout as the API shows it."""
    state = controller.progress.state if controller is not None else None
    if controller is None or state is None:
        return RolloutStatus(RolloutPhase.OFF)
    members, plan = controller.members(), state.plan
    taking_part = [member for node, member in members.items() if controller.progress.takes_part(node)]
    present = sorted(member.name for member in taking_part)
    accepted = sum(member.has_accepted for member in taking_part)
    progress = RolloutProgress(
        step=state.step + 1,
        steps=plan.steps,
        share=state.share,
        interval=plan.interval,
        within=plan.within,
        labels=dict(plan.labels),
        names=plan.names,
        canary=CanaryState(len(state.canary), len(present), accepted, present[:NAMED]),
        proxies=len(members),
        changes=len(state.changes),
        objects=[RolloutObject(name_of(c.key), c.origin, c.is_held) for c in state.changes[:NAMED]],
        waits_for=controller.waits_for(members),
        by="weights" if plan.by_weights else "proxies",
        judged_by=plan.judged_by,
        traffic=controller.finding.says,
        reason=state.reason,
    )
    return RolloutStatus(controller.progress.phase, progress)


def _controller(state: PlaneState) -> RolloutController:
    if state.rollouts is None:
        raise ApiError(409, "rollouts do not work with --workers: each worker would choose its own proxies")
    return state.rollouts


def _refused(error: RolloutError) -> ApiError:
    return ApiError(409, str(error))


def _arguments(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `plan_of` in a body. Raises ApiError."""
    return dict(_checked(asked))


def _checked(asked: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in asked.items():
        if value is None:
            continue
        if name not in _TYPES or not _TYPES[name](value):
            raise ApiError(400, f"{name[:40]!r} is not a member of a plan, or has a value of another type")
        yield name, value


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_list_of(is_one: Callable[[object], bool], value: object) -> bool:
    return isinstance(value, list) and all(map(is_one, value))


def _is_text(value: object) -> bool:
    return isinstance(value, str)


_TYPES: Mapping[str, Callable[[object], bool]] = {
    **dict.fromkeys(("canary", "interval", "within"), _is_number),
    "steps": partial(_is_list_of, _is_number),
    "names": partial(_is_list_of, _is_text),
    **dict.fromkeys(("judged_by", "by"), _is_text),
    "labels": lambda value: isinstance(value, dict) and all(map(_is_text, value.values())),
}
"""The members of a plan, each with a check."""
