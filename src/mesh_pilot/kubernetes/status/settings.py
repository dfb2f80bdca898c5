"""The settings of the status that is written."""

from __future__ import annotations

from functools import partial

import attrs

from mesh_pilot.model.flags import flag

_flag = partial(flag, section="Status written to Kubernetes")

SHORTEST_SECONDS = 1.0


def interval(text: str) -> float:
    """A duration of a second at least. Raises ValueError."""
    from mesh_pilot.istio.meaning.durations import read_duration

    seconds = read_duration(text).total_seconds()
    if seconds < SHORTEST_SECONDS:
        raise ValueError(f"{text!r} is negative" if seconds < 0 else "must be 1s at least")
    return seconds


@attrs.frozen(kw_only=True)
class StatusSettings:
    """The parts of a status that are written, and how fast."""

    conditions: bool = _flag(
        "--status-conditions/--no-status-conditions",
        default=True,
        help="Write conditions of the Gateway API and Ingress.",
        doc="Write [status](kubernetes-config.md#status) of the Gateway API and Ingress.",
    )
    messages: bool = _flag(
        "--status-messages/--no-status-messages",
        default=False,
        help="Write messages of analysis to Istio's objects.",
        doc="Write messages of [analysis](analysis.md) to Istio's objects.",
    )
    distribution: bool = _flag(
        "--status-distribution/--no-status-distribution",
        default=False,
        help="Write to Istio's objects how many proxies have them.",
    )
    interval: float = _flag(
        "--status-interval",
        kind=interval,
        default=10.0,
        text="10s",
        help="Time between two analyses for messages, 1s at least.",
    )
    per_second: float = _flag("--status-qps", default=50.0, least=0.1, help="The most writes in a second.")

    @property
    def is_on(self) -> bool:
        return self.conditions or self.messages or self.distribution
