"""The connection to a control plane: the nearest that answers, and back to the best when it returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs

from mesh_pilot.agent.bootstrap.envoy_bootstrap import Pilot
from mesh_pilot.agent.observable import Observable
from mesh_pilot.agent.settings import PlaneSettings
from mesh_pilot.model.service import Locality
from mesh_pilot.rpc import Channel, TlsSource


@attrs.frozen(eq=False)
class Connected:
    """A channel in use. Its streams end when it is lost, or when a better control plane takes over."""

    pilot: Pilot
    channel: Channel


class Planes:
    """``current`` is the channel that new streams use, None while no control plane can be reached."""

    def __init__(
        self,
        settings: PlaneSettings,
        locality: Locality,
        tls: Callable[[], TlsSource | None],
        call_metadata: Callable[[], Mapping[str, str]],
    ) -> None:
        self.current: Observable[Connected | None] = Observable(None)
        self.call_metadata = call_metadata

    async def run(self) -> None:
        """Connect, watch, fail over, and come back, for ever."""
        raise NotImplementedError

    def reconnect(self) -> None:
        """Drop the channel and make another: the certificate was renewed."""
        raise NotImplementedError
