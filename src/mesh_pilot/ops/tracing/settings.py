"""The settings of traces."""

from __future__ import annotations

import secrets

import attrs


@attrs.frozen
class TraceSettings:
    """The receiver of traces, and the seed of their ids, which the workers of a control plane share."""

    endpoint: str
    """URL of an OTLP receiver over HTTP: ``http://localhost:4318``."""
    seed: bytes = attrs.field(factory=lambda: secrets.token_bytes(16), repr=False)

    @property
    def url(self) -> str:
        """The address that spans are posted to (OpenTelemetry, "OTLP/HTTP Request")."""
        path = "/v1/traces"
        return self.endpoint if self.endpoint.endswith(path) else self.endpoint.rstrip("/") + path
