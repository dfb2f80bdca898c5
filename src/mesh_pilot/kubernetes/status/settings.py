"""The settings of the status that is written."""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class StatusSettings:
    """The parts of a status that are written, and how fast."""

    conditions: bool = True
    """Conditions of the Gateway API and of Ingresses."""
    messages: bool = False
    """Messages of analysis, at Istio's objects."""
    distribution: bool = False
    """How many proxies have a change of an object of Istio's."""
    interval: float = 10.0
    """Seconds between two analyses."""
    per_second: float = 50.0
    """The most writes in a second."""

    @property
    def is_on(self) -> bool:
        return self.conditions or self.messages or self.distribution
