"""The flags that say how changes are rolled out."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from mesh_pilot.cli.options import ListOption, duration

if TYPE_CHECKING:
    from mesh_pilot.model.events import RolloutPlan


def share(text: str) -> float:
    """The type of a share: ``5%`` or ``5``."""
    try:
        found = float(text.strip().removesuffix("%"))
    except ValueError:
        found = -1.0
    if not 0 < found <= 100:
        raise click.BadParameter(f"{text!r} is no share such as 5%")
    return found


def shares(text: str) -> tuple[float, ...]:
    """The type of shares: ``5,25,50,100``."""
    found = tuple(map(share, text.split(",")))
    if list(found) != sorted(set(found)):
        raise click.BadParameter(f"{text!r}: each step must be larger than the one before")
    return found


def labels(text: str) -> dict[str, str]:
    """The type of labels: ``app=web,tier=front``."""
    found = {}
    for part in text.split(","):
        key, equals, value = part.strip().partition("=")
        if not key or not equals:
            raise click.BadParameter(f"{text!r} is no selector such as app=web,tier=front")
        found[key] = value
    return found


ROLLOUT_FLAGS: Sequence[tuple[str, dict[str, Any]]] = [
    (
        "--rollout-canary",
        {
            "type": share,
            "metavar": "PERCENT",
            "help": "Every change of configuration goes to this share of the proxies first (docs/rollout.md)."
            "  [default: off]",
        },
    ),
    (
        "--rollout-steps",
        {
            "cls": ListOption,
            "type": shares,
            "metavar": "PERCENT,...",
            "help": "The shares after that.  [default: 25,50,100]",
        },
    ),
    ("--rollout-interval", {"type": duration, "default": "2m", "help": "The time that a step takes at least."}),
]


def take_rollout(settings: MutableMapping[str, Any], workers: int) -> RolloutPlan | None:
    """The plan for every change, taken out of the options of the command; None: there is none."""
    canary, steps = settings.pop("rollout_canary"), settings.pop("rollout_steps")
    interval = settings.pop("rollout_interval")
    if canary is None:
        if steps:
            raise click.UsageError("--rollout-steps needs --rollout-canary")
        return None
    if workers > 1:
        raise click.UsageError("--rollout-canary does not work with --workers: leave one of them out")
    from mesh_pilot.safety.rollout.progress import RolloutError, plan_of

    try:
        return plan_of(canary=canary, steps=steps or (), interval=interval)
    except RolloutError as error:
        raise click.UsageError(f"--rollout-steps: {error}") from None
