"""Flags on the connections to the gRPC ports: how many, and how long one lasts."""

from __future__ import annotations

import math
from collections.abc import Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from mesh_pilot.cli.options import duration

if TYPE_CHECKING:
    from mesh_pilot.net.rpc import Limits

_COUNT = click.IntRange(min=0)

FLAGS: Sequence[tuple[str, Mapping[str, Any]]] = (
    (
        "--max-concurrent-streams",
        {
            "type": click.IntRange(min=1),
            "default": 100,
            "help": "Streams on one connection to a gRPC port; an Envoy needs one, a proxy in front many.",
        },
    ),
    (
        "--max-connections",
        {
            "type": _COUNT,
            "default": 0,
            "help": "Connections to the gRPC ports, never more than open files allow. Stalled ones give way first, "
            "then the newest of whoever has more than half.",
        },
    ),
    ("--max-handshakes", {"type": _COUNT, "default": 1000, "help": "TLS handshakes at the same time; more wait."}),
    (
        "--max-connection-age",
        {
            "type": duration,
            "default": "0s",
            "help": "Send clients elsewhere after so long, give or take a tenth: replicas even out (docs/replicas.md).",
        },
    ),
    (
        "--max-connection-age-grace",
        {"type": duration, "default": "10s", "help": "How long the streams of such a connection may take to end."},
    ),
)


def take_connection_limits(options: MutableMapping[str, Any], requests_per_second: float) -> Limits:
    """The limits that were given, taken out of the options of the command.

    ``requests_per_second`` are the xDS streams that may begin (0: any number). Each may need a connection of its own,
    so at least as many connections and calls are admitted.
    """
    import attrs

    from mesh_pilot.net.rpc import SERVER_LIMITS

    return attrs.evolve(
        SERVER_LIMITS,
        connection_rate=requests_per_second and max(SERVER_LIMITS.connection_rate, requests_per_second),
        stream_rate=requests_per_second and max(SERVER_LIMITS.stream_rate, requests_per_second),
        max_concurrent_streams=options.pop("max_concurrent_streams"),
        max_connections=options.pop("max_connections") or math.inf,
        max_handshakes=options.pop("max_handshakes") or math.inf,
        max_connection_age_seconds=options.pop("max_connection_age") or math.inf,
        max_connection_age_grace_seconds=options.pop("max_connection_age_grace"),
    )
