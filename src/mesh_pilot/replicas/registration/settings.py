"""The settings of auto-registration."""

from __future__ import annotations

from functools import partial

import attrs

from mesh_pilot.model.flags import FlagKind, flag

_flag = partial(flag, section="Proxies that register themselves")


@attrs.frozen(kw_only=True)
class RegistrationSettings:
    """Times are in seconds."""

    grace_seconds: float = _flag(
        "--auto-register-grace",
        kind=FlagKind.DURATION,
        default=10.0,
        help="Time for which the entry of a proxy that registered itself outlives its last stream.",
        doc="Time for which the entry of a proxy that [registered itself](auto-registration.md) outlives its "
        "last stream.",
    )
    any_address: bool = _flag(
        "--auto-register-any-address",
        default=False,
        help="Believe the address that a proxy registers, though its connection comes from another (NAT).",
    )
    key: str = _flag(
        "--auto-register-key",
        default="mesh-pilot/auto-registration",
        help="KV prefix where replicas share these entries, with --leader-election consul.",
    )
