"""The observer of workloads: who learns which workloads are connected, and how their applications are."""

from __future__ import annotations

from mesh_pilot.model.proxy import Proxy


class WorkloadObserver:
    """Learns which workloads have streams, known by the number of their connection. This one does nothing."""

    def joining(self, client: int, proxy: Proxy, peer: str) -> None:
        """A proxy, or its agent, connects from an address. Raises StreamError to refuse it."""

    def reported(self, client: int, error: str | None) -> None:
        """The health of its application: why it is ill, None if it is well."""

    def left(self, client: int) -> None:
        """A stream is over, whether it had joined or not."""
