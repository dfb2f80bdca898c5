"""What an outbound cluster stands for."""

from __future__ import annotations

import attrs

from mesh_pilot.mesh.destination_rules import DestinationRuleRef
from mesh_pilot.mesh.names import outbound, outbound_sni
from mesh_pilot.model.service import ServiceKey


@attrs.frozen(cache_hash=True)
class Upstream:
    """A port and subset of a service, under the rule that a client follows for it."""

    service: ServiceKey
    port: int
    subset: str
    """Empty: the service as a whole."""
    rule: DestinationRuleRef
    by_sni: bool = False
    """The cluster by which a gateway passes connections on by their server name, untouched."""

    @property
    def name(self) -> str:
        """The cluster's name."""
        spell = outbound_sni if self.by_sni else outbound
        return spell(self.service.host, self.port, self.subset)
