"""Settings of callers and the certificates that they ask for."""

from __future__ import annotations

import attrs

from mesh_pilot.identity.authenticators.xfcc import TrustedGateways
from mesh_pilot.identity.certificates.service import DEFAULT_RATE


@attrs.frozen(kw_only=True)
class CallerSettings:
    trusted_gateways: TrustedGateways = attrs.field(factory=TrustedGateways)
    """The proxies whose word is taken about the client certificates that they saw."""
    certificates_per_second: float = DEFAULT_RATE
    """Certificates a second that are signed for one identity at one address; 0: no limit."""
