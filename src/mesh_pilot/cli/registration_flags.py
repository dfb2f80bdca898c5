"""The flags of ``mesh-pilot discovery`` about proxies that register themselves."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

from mesh_pilot.cli.options import duration

if TYPE_CHECKING:
    from mesh_pilot.replicas.registration.settings import RegistrationSettings

REGISTRATION_FLAGS: Sequence[tuple[str, Mapping[str, Any]]] = (
    (
        "--auto-register-grace",
        {
            "type": duration,
            "default": "10s",
            "help": "How long the entry of a proxy that registered itself stays after it has disconnected.",
        },
    ),
    (
        "--auto-register-any-address",
        {
            "is_flag": True,
            "help": "Believe the address that a proxy registers, though its connection comes from another one (NAT).",
        },
    ),
    (
        "--auto-register-key",
        {
            "default": "mesh-pilot/auto-registration",
            "help": "KV prefix of Consul where replicas share these entries, with --leader-election consul.",
        },
    ),
)


def take_registration(options: MutableMapping[str, Any]) -> RegistrationSettings:
    """The settings that were given, taken out of the options of the command."""
    from mesh_pilot.replicas.registration.settings import RegistrationSettings

    return RegistrationSettings(
        grace_seconds=options.pop("auto_register_grace"),
        any_address=options.pop("auto_register_any_address"),
        key=options.pop("auto_register_key"),
    )
