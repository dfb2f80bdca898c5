"""The settings of what is sent to OpenTelemetry's receivers: traces, and by ``ops.metrics.push`` metrics."""

from __future__ import annotations

import secrets
import socket
import ssl

import attrs

from mesh_pilot import __version__
from mesh_pilot.net.otlp.client import signal_url
from mesh_pilot.net.otlp.push import PushSettings
from mesh_pilot.net.otlp.values import Value
from mesh_pilot.net.rpc.tls import CertificateFiles, http_client_tls


@attrs.frozen
class ReceiverSettings:
    """The settings of all receivers: how they are known, and who says so."""

    files: CertificateFiles = CertificateFiles()
    """The files for https. Without roots among them, the system's."""
    revision: str = ""
    """The revision of this control plane."""

    def tls(self) -> ssl.SSLContext:
        """Raises TlsError for files that cannot be loaded."""
        return http_client_tls(self.files)

    def resource(self) -> dict[str, Value]:
        """The attributes of this control plane."""
        found: dict[str, Value] = {
            "service.name": "mesh-pilot",
            "service.version": __version__,
            "service.instance.id": socket.gethostname(),
        }
        return found | ({"revision": self.revision} if self.revision else {})


@attrs.frozen
class TraceSettings:
    """The receiver of traces, and the seed of their ids, which the workers of a control plane share."""

    endpoint: str
    """URL of an OTLP receiver over HTTP: ``http://localhost:4318``."""
    seed: bytes = attrs.field(factory=lambda: secrets.token_bytes(16), repr=False)
    receiver: ReceiverSettings = ReceiverSettings()

    @property
    def url(self) -> str:
        """The address that spans are posted to (OpenTelemetry, "OTLP/HTTP Request")."""
        return signal_url(self.endpoint, "/v1/traces")


@attrs.frozen
class MetricsPushSettings:
    """The receiver of metrics."""

    push: PushSettings
    receiver: ReceiverSettings = ReceiverSettings()
