"""The certificates of proxies, as far as they are known here."""

from __future__ import annotations

from datetime import datetime

from mesh_pilot.identity.trust.validity import ValidityPeriod
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.ops.plane.state import PlaneState


def certificate_of(state: PlaneState, proxy: Proxy, shown: datetime | None) -> ValidityPeriod | None:
    """The life of a proxy's certificate: of the one that was signed here last for it, or of the one that it has shown,
    of which ``shown`` is the end.

    Of one that was shown only the end is known; it then begins where it ends. The later end counts: a stream outlives
    the replacement of the certificate that it began with.
    """
    signed = state.callers.periods.of(proxy.identity, proxy.peer) if proxy.identity else None
    if shown is None or (signed is not None and signed.ends >= shown):
        return signed
    return ValidityPeriod(shown, shown)
