"""Flags of ``mesh-pilot discovery`` about the status that it writes to objects in Kubernetes."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from mesh_pilot.cli.options import duration

if TYPE_CHECKING:
    from mesh_pilot.kubernetes.status.settings import StatusSettings

SHORTEST_SECONDS = 1.0


def interval(text: str) -> float:
    seconds = float(duration(text))
    if seconds < SHORTEST_SECONDS:
        raise click.BadParameter("must be 1s at least")
    return seconds


FLAGS: Sequence[tuple[str, Mapping[str, Any]]] = (
    (
        "--status-conditions/--no-status-conditions",
        {"default": True, "help": "Write conditions of the Gateway API and Ingress."},
    ),
    (
        "--status-messages/--no-status-messages",
        {"default": False, "help": "Write messages of analysis to Istio's objects."},
    ),
    (
        "--status-distribution/--no-status-distribution",
        {"default": False, "help": "Write to Istio's objects how many proxies have their last change."},
    ),
    (
        "--status-interval",
        {"type": interval, "default": "10s", "help": "Time between two analyses for messages, 1s at least."},
    ),
    ("--status-qps", {"type": click.FloatRange(min=0.1), "default": 50.0, "help": "The most writes in a second."}),
)
"""Each flag with what click takes of it."""


def take_status(options: MutableMapping[str, Any]) -> StatusSettings:
    """The settings of status, taken out of the options of the command."""
    from mesh_pilot.kubernetes.status.settings import StatusSettings

    return StatusSettings(
        conditions=options.pop("status_conditions"),
        messages=options.pop("status_messages"),
        distribution=options.pop("status_distribution"),
        interval=options.pop("status_interval"),
        per_second=options.pop("status_qps"),
    )
