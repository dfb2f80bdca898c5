"""Limits of gRPC for tests: on a machine under load, a handshake may take longer than users would wait."""

from __future__ import annotations

import attrs

from mesh_pilot.net.rpc import CLIENT_LIMITS, SERVER_LIMITS

HANDSHAKE_SECONDS = 100.0

PATIENT_CLIENT = attrs.evolve(CLIENT_LIMITS, handshake_timeout_seconds=HANDSHAKE_SECONDS)
PATIENT_SERVER = attrs.evolve(SERVER_LIMITS, handshake_timeout_seconds=HANDSHAKE_SECONDS)
