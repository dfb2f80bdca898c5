"""The certificates of proxies, as far as they are known here."""

from __future__ import annotations

from mesh_pilot.identity.trust.validity import ValidityPeriod
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.xds.ads.status import Connection


def certificate_of(state: PlaneState, connection: Connection) -> ValidityPeriod | None:
    """The life of a proxy's certificate: of the one that was signed here last for it, or that it has shown.

    Of one that was shown only the end is known; it then begins where it ends. The later end counts: a stream outlives
    the replacement of the certificate that it began with.
    """
    proxy = connection.proxy
    if proxy is None:
        return None
    signed = state.callers.periods.of(proxy.identity, proxy.peer) if proxy.identity else None
    shown = connection.certificate_end
    if shown is None or (signed is not None and signed.ends >= shown):
        return signed
    return ValidityPeriod(shown, shown)
